"""activations_table.csv and weights_table.csv: Neural Compressor's titles first, as scripts know them, then ours."""

from __future__ import annotations

import csv
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from inc_tb.measure.diagnosis import Diagnosis


class CsvTable(NamedTuple):
    file: str
    theirs: Mapping[str, str]
    """Neural Compressor's title -> our column."""
    other: str
    """How columns begin that are not of this table."""
    sort: str
    few: Sequence[str]
    """Of our columns those that are worth their place beside every run."""


ACTIVATIONS = CsvTable(
    "activations_table.csv",
    {"OP name": "name", "MSE": "a_inc_mse", "Activation min": "a_min", "Activation max": "a_max"},
    "w_",
    "added_sqnr_db",
    ("type", "a_range", "a_mse", "added_sqnr_db", "arrived_sqnr_db", "total_sqnr_db", "sensitivity", "verdict"),
)
WEIGHTS = CsvTable(
    "weights_table.csv",
    {
        "OP name": "name", "MSE": "w_inc_mse",
        "Input model min": "w_min", "Input model max": "w_max", "Input model mean": "w_mean",
        "Input model standard deviation": "w_std", "Input model variance": "w_var",
        "Optimized model min": "w_q_min", "Optimized model max": "w_q_max", "Optimized model mean": "w_q_mean",
        "Optimized model standard deviation": "w_q_std", "Optimized model variance": "w_q_var",
    },
    "a_",
    "w_sqnr_db",
    ("type", "w_range", "w_mse", "w_sqnr_db", "weight_dtype", "verdict"),
)  # fmt: skip
TABLES = (ACTIVATIONS, WEIGHTS)
_OURS = "verdict"
"""A title that Neural Compressor does not have, and every table of ours."""


def write_table(table: CsvTable, folder: Path, diagnosis: Diagnosis | None, *, few: bool = False) -> Path:
    """All columns, or the few that are worth a copy beside every run; without a diagnosis the titles alone.

    A reader finds the table of before or this one, never a part.
    """
    path = folder / table.file
    part = path.with_name(f"{table.file}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        with part.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
            csv.writer(file).writerows(_rows(table, diagnosis, few))
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


def is_ours(path: Path) -> bool:
    """Whether we have written the table: Neural Compressor's own is never replaced, nor ours taken for its."""
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        return _OURS in next(csv.reader([file.readline().replace("\0", "")]), [])


def _rows(table: CsvTable, diagnosis: Diagnosis | None, few: bool) -> list[list[Any]]:
    """Of the ops of which there is a number to put under Neural Compressor's titles."""
    if diagnosis is None:
        return [[*table.theirs, *table.few]]
    ops = diagnosis.ops
    all_ours = [c for c in ops if not c.startswith(table.other) and c not in table.theirs.values()]
    ours = table.few if few else all_ours
    columns = [ops[name].tolist() if name in ops else [""] * ops.count for name in (*table.theirs.values(), *ours)]
    has_any = np.zeros(ops.count, bool)
    for name in (name for name in table.theirs.values() if name != "name" and name in ops):
        has_any |= ~np.isnan(ops[name])
    rows = diagnosis.worst(sort=table.sort if table.sort in ops else "name")
    cells = [[_cell(column[row], few) for column in columns] for row in rows if has_any[row]]
    return [[*table.theirs, *ours], *cells]


def _cell(value: Any, few: bool) -> Any:
    if value != value:
        return ""
    return f"{value:.7g}" if few and isinstance(value, float) else value
