"""Everything measured about one quantized model against its reference."""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from inc_tb.errors import UsageError
from inc_tb.measure.by_sample import BySample
from inc_tb.measure.tables import TABLES, write_table
from inc_tb.records import (
    SLOWER,
    ChannelRow,
    GraphNode,
    HistogramRow,
    OpTable,
    Origin,
    Suggestion,
    Tokens,
    brief,
    listed,
    plural,
)
from inc_tb.shown import Shown, above

VERDICTS = ("bad", "watch", "ok", "")
META = ("reference", "quantized", "framework", "samples", "notes")
"""What is stored beside the op table."""
_RANKS = ("sensitivity", "added_sqnr_db", "total_sqnr_db", "w_sqnr_db", "a_inc_mse", "w_inc_mse")
_OF_WEIGHTS = ("w_sqnr_db", "w_inc_mse")


@dataclass(repr=False)
class Diagnosis(Shown):
    _card = "diagnoses:diagnosis_card"

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
    tokens: Tokens | None = None
    """Of a language model, what its reader notices."""
    origin: Origin | None = None
    """What makes it comparable with others; None where that was not recorded."""
    by_sample: BySample = field(default_factory=BySample)
    """Errors of single samples; none where they were not recorded."""
    logged: Path | None = field(default=None, compare=False)
    """The folder of the run that holds it, where that is known."""

    def __repr__(self) -> str:
        names = f"{brief(self.quantized) or 'a model'} against {brief(self.reference) or 'its reference'}"
        return f"<Diagnosis of {names}: {self.counts}; {self.verdict}>"

    @property
    def counts(self) -> str:
        return f"{plural(self.ops.count, 'op')}, {plural(self.samples, 'sample')}"

    @property
    def verdict(self) -> str:
        """What has come of it, in one line."""
        if self.ranked_by is None:
            return self.why_no_suggestion
        worst, column = self.worst(1, sort=self.ranked_by)[0], self.ops.column(self.ranked_by)
        figure = column.figure(self.ops[self.ranked_by][worst])
        return f"{self._finding()}; worst op {brief(str(self.ops['name'][worst]))}, {column.label} {figure}"

    def _finding(self) -> str:
        first = self.cure
        if first is not None:
            others = len(self.suggestions) - 1
            more = f" and {plural(others, 'more suggestion')}" if others else ""
            return f"{brief(first.rule.replace('_', ' '))} at {brief(listed(first.ops, 4), 160)}{more}"
        return f"no suggestion; {self.why_no_suggestion}" if self.watched else self.why_no_suggestion

    @property
    def cure(self) -> Suggestion | None:
        """The first suggestion for the accuracy; what only saves time cures nothing."""
        return next((s for s in self.suggestions if s.rule != SLOWER), None)

    @property
    def why_no_suggestion(self) -> str:
        """What is known of the ops where there is none."""
        if self.ranked_by is None:
            return "no op could be measured"
        if not self.is_measured:
            return "too little is known of any op to judge it"
        if self.ranked_by in _OF_WEIGHTS:
            return "only weights could be measured, and they call for nothing"
        if self.watched:
            return f"{plural(self.watched, 'op adds', 'ops add')} more error than usual"
        return "no op adds more error than quantizing usually does"

    @property
    def is_healthy(self) -> bool:
        """Whether enough is known to say that no op adds more error than usual."""
        return self.is_measured and self.ranked_by not in (None, *_OF_WEIGHTS) and not self.watched

    @property
    def watched(self) -> int:
        """How many ops are not as they should be."""
        return sum(verdict in ("watch", "bad") for verdict in self.ops.get("verdict", ()))

    @property
    def ranked_by(self) -> str | None:
        """The column that tells the worst op, the one nearest to the output that was measured; None if none was."""
        known = (name for name in _RANKS if name in self.ops and not np.isnan(self.ops[name]).all())
        return next(known, None)

    @property
    def meta(self) -> dict[str, Any]:
        told = {name: getattr(self, name) for name in META}
        return told if self.origin is None else {**told, "origin": self.origin}

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

    def plot(self, op: str) -> Any:
        """The histograms and channel ranges of one op: a picture that notebooks show, with .save("op.svg")."""
        return above("plots:plot_op")(self, op)

    def show(self, height: int = 800) -> Any:
        """The Quantization tab in the cell of a notebook, at the run that holds this diagnosis."""
        return above("tab:show_tab")(self.logged, "suggestions" if self.suggestions else "", height)

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
        tokens = {"tokens": self.tokens.to_json()} if self.tokens is not None else {}
        return {"version": VERSION, **self.meta, **tokens, "columns": columns, "ops": ops, "suggestions": suggestions}

    def to_pandas(self) -> Any:
        """A pandas.DataFrame with one row an op; needs pandas, which inc-tb does not install."""
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise UsageError(
                f"to_pandas() needs {error.name}, which is not installed; to_csv() and .ops do without. "
                "Install it: pip install pandas."
            ) from error
        return pandas.DataFrame({name: self.ops[name] for name in self.ops}).set_index("name", drop=False)

    def to_csv(self, folder: str | PathLike[str]) -> list[Path]:
        """activations_table.csv and weights_table.csv, with Neural Compressor's columns first and ours behind."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        return [write_table(table, folder, self) for table in TABLES]
