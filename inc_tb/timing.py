"""What a profile holds: the time of each op in one model or in two, and what ran when."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import msgspec

from inc_tb.diagnosis import Diagnosis
from inc_tb.recipes import configs
from inc_tb.records import Effect, GraphNode, ProfileRow, Suggestion, Value
from inc_tb.traces import Slice, to_chrome

SLOWER = "slower_in_int8"
_WORTH = 0.02
"""Of the int8 model's time, before slower ops are worth a suggestion."""
_SIDES = ("fp32", "int8")
_PLAIN = ("fp32", "int8", "framework", "runs", "threads", "samples", "overhead", "accounted", "notes")
_FUSED = "runs as part of {}"
_UNTIMED = "the profile has no time of it"
_NOISE = "the times in fp32 and int8 cannot be told apart from noise"


@dataclass
class Profile:
    """Times per op, medians over runs; `fp32` and `int8` are the names of the two models, "" for one that is not."""

    rows: list[ProfileRow]
    """In the order of the model; the one without a name is what no op accounts for."""
    total: ProfileRow
    """Of whole runs without a profiler."""
    fp32: str = ""
    int8: str = ""
    framework: str = ""
    runs: int = 0
    threads: int | None = None
    samples: int | None = None
    """In each run."""
    overhead: dict[str, float] = field(default_factory=dict)
    """Model ("fp32", "int8") -> by which share the profiler slows it down."""
    accounted: dict[str, float] = field(default_factory=dict)
    """Model -> the share of a run that its ops take together."""
    notes: list[str] = field(default_factory=list)
    graph: list[GraphNode] = field(default_factory=list)
    """Of the reference, where it is known; its nodes have the names of the rows."""
    slices: list[Slice] = field(default_factory=list)
    """Some runs of each model, everything that the runtime says about them."""
    traces: dict[str, bytes] = field(default_factory=dict)
    """Name of a file -> what the framework's own profiler wrote."""

    @property
    def meta(self) -> dict[str, Any]:
        """What is stored beside the rows."""
        found: dict[str, Any] = {name: getattr(self, name) for name in _PLAIN}
        total: Mapping[str, Any] = msgspec.to_builtins(self.total)
        known = {"fp32_total_us": self.total.fp32_us, "int8_total_us": self.total.int8_us}
        found.update({name: value for name, value in known.items() if value is not None}, total=total)
        return {name: value for name, value in found.items() if value not in (None, "", [], {})}

    @property
    def sides(self) -> list[str]:
        """The models that it has times of."""
        rows = [self.total, *self.rows]
        return [side for side in _SIDES if any(getattr(row, f"{side}_us") is not None for row in rows)] or ["fp32"]

    def by_time(self) -> list[tuple[ProfileRow, float, float]]:
        """Rows with their share of the time and that of all up to them, longest first; of int8 where that is there."""
        side = self.sides[-1]
        times = [(getattr(row, f"{side}_us") or 0.0) + (row.convert_us if side == "int8" else 0.0) for row in self.rows]
        total = sum(times) or 1.0
        found, upto = [], 0.0
        for us, row in sorted(zip(times, self.rows, strict=True), key=lambda pair: -pair[0]):
            upto += us / total
            found.append((row, us / total, upto))
        return found

    def save_trace(self, path: str | PathLike[str]) -> None:
        """As a Chrome trace, for Perfetto and chrome://tracing."""
        Path(path).write_bytes(to_chrome(self.slices))

    def to_json(self) -> dict[str, Any]:
        """As `inc-tb profile --json` prints it: the first model, and the second with how it compares."""
        first, *others = self.sides
        found = {
            **self._json_of(first), "overhead": self.overhead, "accounted": self.accounted, "notes": self.notes,
        }  # fmt: skip
        if others:
            found["quantized"] = self._json_of("int8")
            named = ("difference_us", "low_us", "high_us", "differs")
            found["comparison"] = [
                {"name": row.op, **{name: getattr(row, name) for name in named}, "speedup": speedup(row)}
                for row in self.rows
                if row.op and row.fp32_us is not None and row.int8_us is not None
            ]
            found["total"] = {**{name: getattr(self.total, name) for name in named}, "speedup": speedup(self.total)}
        return found

    def _json_of(self, side: str) -> dict[str, Any]:
        total = getattr(self.total, f"{side}_us")
        ops = []
        for row in self.rows:
            median = getattr(row, f"{side}_us")
            convert = row.convert_us if side == "int8" else 0.0
            if median is None and not convert:
                continue
            ops.append({
                "name": row.op, "type": row.type or "outside of all ops", "mean_us": getattr(row, f"{side}_mean_us"),
                "p50_us": median, "p95_us": getattr(row, f"{side}_p95_us"), "convert_us": convert,
                "share": ((median or 0.0) + convert) / total if total else None, "fused": row.ops,
            })  # fmt: skip
        return {"model": getattr(self, side), "runs": self.runs, "threads": self.threads, "samples": self.samples,
                "total_us": total, "total_p95_us": getattr(self.total, f"{side}_p95_us"), "ops": ops}  # fmt: skip

    def join(self, diagnosis: Diagnosis) -> Diagnosis:
        """The diagnosis with the times in its op table, and in its suggestions what keeping their ops in fp32 costs.

        Ops that got slower by quantization are a suggestion of their own.
        """
        row_of = {op: row for row in self.rows for op in (*row.ops, row.op) if op}
        names = [str(name) for name in diagnosis.ops["name"]]

        def column(value_of: Callable[[ProfileRow], Value]) -> list[Value]:
            found: list[Value] = []
            for name in names:
                row = row_of.get(name)
                is_head = row is not None and row.op == name
                found.append(value_of(row) if row is not None and is_head else _untimed(row))
            return found

        columns: dict[str, list[Value]] = {
            "time_fp32_us": column(lambda row: _known(row.fp32_us)),
            "time_int8_us": column(lambda row: _known(row.int8_us)),
            "convert_us": column(lambda row: row.convert_us),
            "speedup": column(lambda row: _known(speedup(row)) if row.differs or speedup(row) is None else _NOISE),
        }
        suggestions = [
            msgspec.structs.replace(s, effects=[*(e for e in s.effects if e.unit != "µs"), *self._price(s.ops)])
            for s in diagnosis.suggestions
            if s.rule != SLOWER
        ]
        suggestions += self._slower(diagnosis, 1 + max((s.rank for s in suggestions), default=0))
        return replace(diagnosis, ops=diagnosis.ops.replaced(columns), suggestions=suggestions)

    def _slower(self, diagnosis: Diagnosis, rank: int) -> list[Suggestion]:
        total, table = self.total.int8_us, diagnosis.ops
        dtypes = zip(table["weight_dtype"], table["act_dtype"], strict=True)
        quantized = {str(name) for name, types in zip(table["name"], dtypes, strict=True) if any(types)}
        slower = [row for row in self.rows if row.differs and (row.difference_us or 0.0) > 0]
        rows = [row for row in slower if quantized.intersection((row.op, *row.ops))]
        lost = sum(row.difference_us or 0.0 for row in rows)
        if not total or lost < _WORTH * total:
            return []
        known = {str(name) for name in table["name"]}
        ops = [op for row in rows for op in (row.op, *row.ops) if op in known]
        worst = max(rows, key=lambda row: row.difference_us or 0.0)
        because = (
            f"quantizing made {'this op' if len(rows) == 1 else f'these {len(rows)} ops'} slower: together "
            f"{lost:.1f} µs a run, {lost / total:.0%} of the int8 model's time; {worst.op} alone "
            f"{worst.difference_us:.1f} µs ({worst.fp32_us:.1f} in fp32)"
        )
        evidence = {"op": worst.op, "slower_us": lost, "share": lost / total}
        texts = configs(diagnosis.framework, diagnosis.ops, diagnosis.graph, ops)
        return [Suggestion(ops, SLOWER, because, evidence, texts, "", rank, self._price(ops))]

    def _price(self, ops: Sequence[str]) -> list[Effect]:
        """What keeping the ops in fp32 costs in time, or gains."""
        rows = [row for row in self.rows if {row.op, *row.ops}.intersection(ops) and row.differs is not None]
        if not rows:
            return []
        clear = [row for row in rows if row.differs and row.difference_us is not None]
        change = -sum(row.difference_us or 0.0 for row in clear)
        how = (
            "fp32 minus int8 and its conversions, measured; conversions at new borders come on top"
            if clear
            else "inside the noise: fp32 and int8 cannot be told apart"
        )
        kind: Literal["costs", "recovers"] = "recovers" if change < 0 else "costs"
        return [Effect(kind, "less time" if change < 0 else "more time", abs(change), "µs", "measured", how)]


def speedup(row: ProfileRow) -> float | None:
    """fp32 over int8 with conversion."""
    int8 = None if row.int8_us is None else row.int8_us + row.convert_us
    return row.fp32_us / int8 if row.fp32_us is not None and int8 else None


def _known(value: float | None) -> Value:
    return _UNTIMED if value is None else value


def _untimed(row: ProfileRow | None) -> str:
    return _UNTIMED if row is None else _FUSED.format(row.op)


def stored(rows: list[ProfileRow], meta: Mapping[str, Any]) -> Profile:
    """What was logged: rows, and the `meta` beside them."""
    total = meta.get("total") or {"op": "", "fp32_us": meta.get("fp32_total_us"), "int8_us": meta.get("int8_total_us")}
    return Profile(rows, msgspec.convert(total, ProfileRow), **{name: meta[name] for name in _PLAIN if name in meta})
