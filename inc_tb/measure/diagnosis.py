"""Everything measured about one quantized model against its reference."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from inc_tb.records import ChannelRow, GraphNode, HistogramRow, OpTable, Suggestion

VERDICTS = ("bad", "watch", "ok", "")
ACTIVATIONS_CSV = {"OP name": "name", "MSE": "a_inc_mse", "Activation min": "a_min", "Activation max": "a_max"}
WEIGHTS_CSV = {
    "OP name": "name", "MSE": "w_inc_mse",
    "Input model min": "w_min", "Input model max": "w_max", "Input model mean": "w_mean",
    "Input model standard deviation": "w_std", "Input model variance": "w_var",
    "Optimized model min": "w_q_min", "Optimized model max": "w_q_max", "Optimized model mean": "w_q_mean",
    "Optimized model standard deviation": "w_q_std", "Optimized model variance": "w_q_var",
}  # fmt: skip


@dataclass
class Diagnosis:
    ops: OpTable
    suggestions: list[Suggestion] = field(default_factory=list)
    histograms: list[HistogramRow] = field(default_factory=list)
    channels: list[ChannelRow] = field(default_factory=list)
    graph: list[GraphNode] = field(default_factory=list)
    reference: str = ""
    quantized: str = ""
    framework: str = ""
    samples: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def meta(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("reference", "quantized", "framework", "samples", "notes")}

    def worst(self, top: int | None = None, sort: str = "added_sqnr_db") -> list[int]:
        """Rows by a column, worst first by its own direction, else largest first; rows without a value come last."""
        values, column = self.ops[sort], self.ops.column(sort)
        rows = list(range(self.ops.count))
        if sort == "verdict":
            rows.sort(key=lambda i: VERDICTS.index(values[i]))
        elif column.type == "text":
            rows.sort(key=lambda i: str(values[i]))
        else:
            sign = 1 if column.better == "higher" else -1
            rows.sort(key=lambda i: (np.isnan(values[i]), sign * values[i]))
        return rows[:top]

    @property
    def is_measured(self) -> bool:
        """Whether an error of any op is known; else there is nothing to judge by."""
        known = [self.ops[name] for name in ("total_sqnr_db", "w_sqnr_db") if name in self.ops]
        return not known or any(not np.isnan(column).all() for column in known)

    @property
    def missing(self) -> dict[str, str]:
        """Ops that could not be compared, with the reason; not those that are part of another op's row."""
        if "a_mse" not in self.ops:
            return {}
        is_lost = np.isnan(self.ops["a_mse"])
        # What is part of an op changes precision with it, so the two have the same unit.
        names, units = self.ops["name"], self.ops["unit" if "unit" in self.ops else "name"]
        compared = set(units[~is_lost])
        is_part = [unit != name and unit in compared for name, unit in zip(names, units, strict=True)]
        rows = (row for row in np.flatnonzero(is_lost).tolist() if not is_part[row])
        return {str(names[row]): self.ops.why_null("a_mse", row) for row in rows}

    def to_json(self) -> dict[str, Any]:
        """What `inc-tb diagnose --json` prints."""
        from inc_tb.records import VERSION

        ops = []
        for i, row in enumerate(self.ops.rows()):
            missing = {name: self.ops.why_null(name, i) for name, value in row.items() if value is None}
            ops.append({**row, "null_reasons": missing})
        columns = [
            {"name": c.name, "label": c.label, "unit": c.unit, "better": c.better, "normal": c.normal, "help": c.help}
            for c in self.ops.columns
        ]
        suggestions = [
            {"rank": s.rank, "ops": s.ops, "rule": s.rule, "because": s.because, "evidence": s.evidence,
             "pattern": s.pattern, "recipes": s.recipes, "effects": s.effects}
            for s in self.suggestions
        ]  # fmt: skip
        return {"version": VERSION, **self.meta, "columns": columns, "ops": ops, "suggestions": suggestions}

    def to_pandas(self) -> Any:
        """A pandas.DataFrame with one row an op; needs pandas, which inc-tb does not install."""
        import pandas

        return pandas.DataFrame({name: self.ops[name] for name in self.ops}).set_index("name", drop=False)

    def to_csv(self, folder: str | PathLike[str]) -> list[Path]:
        """activations_table.csv and weights_table.csv, with Neural Compressor's columns first and ours behind."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        return [
            self._write_csv(folder / "activations_table.csv", ACTIVATIONS_CSV, "w_", "a_mse", "added_sqnr_db"),
            self._write_csv(folder / "weights_table.csv", WEIGHTS_CSV, "a_", "w_mse", "w_sqnr_db"),
        ]

    def _write_csv(self, path: Path, theirs: Mapping[str, str], leave_out: str, needs: str, sort: str) -> Path:
        ours = [c for c in self.ops if not c.startswith(leave_out) and c not in theirs.values()]
        rows = self.worst(sort=sort)
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([*theirs, *ours])
            for i in rows:
                if not np.isnan(self.ops[needs][i]):
                    values = [self.ops[column][i] for column in (*theirs.values(), *ours)]
                    writer.writerow(["" if v != v else v for v in values])
        return path
