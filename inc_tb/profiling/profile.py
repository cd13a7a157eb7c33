"""What a profile holds: the time of each op in one model or in two, and what ran when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from inc_tb.frameworks.traces import Slice
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.profiling.benchmark import Speed, as_told
from inc_tb.profiling.traces import to_chrome
from inc_tb.records import GraphNode, ProfileRow, brief, plural
from inc_tb.shown import Shown

_SIDES = ("fp32", "int8")
_PLAIN = ("fp32", "int8", "framework", "runs", "threads", "samples", "overhead", "accounted", "notes")


@dataclass(repr=False)
class Profile(Shown):
    """Times per op, medians over runs; `fp32` and `int8` are the names of the two models, "" for one that is not."""

    _card = "profiles:profile_card"

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
    benchmark: list[Speed] = field(default_factory=list)
    """Latency and throughput by the size of the batches."""
    logged: Path | None = field(default=None, compare=False)
    """The folder of the run that holds it, where that is known."""

    def __repr__(self) -> str:
        totals = [
            f"{side} {us:,.1f} µs" for side in self.sides if (us := getattr(self.total, f"{side}_us")) is not None
        ]
        names = " and ".join(brief(name) for name in (self.fp32, self.int8) if name) or "a model"
        told = f"{plural(len(self.rows), 'row')}, {plural(self.runs, 'run')}"
        return f"<Profile of {names}: {told}; {', '.join(totals) or 'no time of a whole run'}>"

    @property
    def meta(self) -> dict[str, Any]:
        """What is stored beside the rows."""
        found: dict[str, Any] = {name: getattr(self, name) for name in _PLAIN}
        total: Mapping[str, Any] = msgspec.to_builtins(self.total)
        known = {"fp32_total_us": self.total.fp32_us, "int8_total_us": self.total.int8_us}
        found.update({name: value for name, value in known.items() if value is not None}, total=total)
        found["benchmark"] = msgspec.to_builtins(self.benchmark)
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
            "benchmark": as_told(self.benchmark),
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
        """The diagnosis with the times in its op table, and in its suggestions what keeping their ops in fp32 costs."""
        from inc_tb.profiling.join import joined

        return joined(self, diagnosis)


def speedup(row: ProfileRow) -> float | None:
    """fp32 over int8 with conversion."""
    int8 = None if row.int8_us is None else row.int8_us + row.convert_us
    return row.fp32_us / int8 if row.fp32_us is not None and int8 else None


def stored_profile(rows: list[ProfileRow], meta: Mapping[str, Any]) -> Profile:
    """What was logged: rows, and the `meta` beside them."""
    total = meta.get("total") or {"op": "", "fp32_us": meta.get("fp32_total_us"), "int8_us": meta.get("int8_total_us")}
    speeds = msgspec.convert(meta.get("benchmark", []), list[Speed])
    types = get_type_hints(Profile)
    plain = {name: msgspec.convert(meta[name], types[name]) for name in _PLAIN if name in meta}
    return Profile(rows, msgspec.convert(total, ProfileRow), **plain, benchmark=speeds)
