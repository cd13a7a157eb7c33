"""What a profile holds: the time of each op in one model or in two, and what ran when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from inc_tb.records import GraphNode, ProfileRow
from inc_tb.traces import Slice

LARGEST_GAP = 0.15
"""Ops that add up to the latency but for this share account for it."""


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
        plain = ("fp32", "int8", "framework", "runs", "threads", "samples", "overhead", "notes")
        found: dict[str, Any] = {name: getattr(self, name) for name in plain}
        total: Mapping[str, Any] = msgspec.to_builtins(self.total)
        known = {"fp32_total_us": self.total.fp32_us, "int8_total_us": self.total.int8_us}
        found.update({name: value for name, value in known.items() if value is not None}, total=total)
        return {name: value for name, value in found.items() if value not in (None, "", [], {})}
