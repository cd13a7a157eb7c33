"""activations_table.csv and weights_table.csv: the numbers that Neural Compressor printed."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from inc_tb.measure.tables import ACTIVATIONS, WEIGHTS, CsvTable, is_ours
from inc_tb.sources.neural_compressor.trials import number_of

Row = dict[str, float]
"""Our column -> its number."""


def read_tables(folder: Path) -> tuple[dict[str, Row], dict[str, Row]]:
    """Activations and weights, by op. An op has a row for its weight and one for its bias: the larger MSE counts."""
    activations, weights = (_read(folder, table) for table in (ACTIVATIONS, WEIGHTS))
    return {op: rows[0] for op, rows in activations.items()}, {
        op: max(rows, key=lambda row: row.get("w_inc_mse", 0.0)) for op, rows in weights.items()
    }


def has_tables(folder: Path, files: Sequence[str]) -> bool:
    """Whether one of Neural Compressor's own is among these files of a folder."""
    return any(table.file in files and not is_ours(folder / table.file) for table in (ACTIVATIONS, WEIGHTS))


def _read(folder: Path, table: CsvTable) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    path = folder / table.file
    if not path.is_file() or is_ours(path):
        return found
    text = path.read_bytes().decode("utf-8-sig", "replace").replace("\0", "")
    for row in csv.DictReader(io.StringIO(text, newline="")):
        op = row.get("OP name")
        numbers = {ours: number_of(row.get(theirs)) for theirs, ours in table.theirs.items() if ours != "name"}
        if op and any(number is not None for number in numbers.values()):
            found.setdefault(op, []).append({name: n for name, n in numbers.items() if n is not None})
    return found
