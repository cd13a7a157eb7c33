"""From what profilers saw to a table: the time of each op, in one model or in two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from inc_tb.capture import Execution, Kernel, Recorded, Timer
from inc_tb.noise import difference
from inc_tb.records import ProfileRow, Span
from inc_tb.traces import Slice

Times = npt.NDArray[np.float64]
Side = Literal["fp32", "int8"]
Twins = Mapping[str, Sequence[str]]
KEPT_RUNS = 3
"""Whose traces are kept."""


@dataclass
class Measured:
    """One model, over all openings."""

    plain: list[float] = field(default_factory=list)
    """Whole runs in µs, as it ships …"""
    profiled: list[float] = field(default_factory=list)
    """… and with the profiler."""
    runs: list[list[Execution]] = field(default_factory=list)
    slices: list[Slice] = field(default_factory=list)
    traces: dict[str, bytes] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    resolution_us: float = 0.0
    is_quantized: bool = False

    def add(self, timer: Timer, recorded: Sequence[Recorded], *, is_last: bool) -> None:
        self.runs += [found.executions for found in recorded]
        self.resolution_us, self.is_quantized = timer.resolution_us, timer.is_quantized
        if is_last:
            self.slices = [s for found in recorded[-KEPT_RUNS:] for s in found.slices]
            self.traces, self.notes = timer.traces, timer.notes

    @property
    def overhead(self) -> float:
        """By which share the profiler slows it down."""
        return float(np.median(self.profiled) / np.median(self.plain)) - 1


def tabulate(
    measured: Mapping[Side, Measured], twins: Twins, blocks: Sequence[int]
) -> tuple[list[ProfileRow], ProfileRow]:
    """A row for each op, or for several that one of the models has fused; and one for whole runs.

    `twins` has the ops of the fp32 model for those of the int8 model, `blocks` the number of runs of each opening.
    """
    table = _Table(measured, twins)
    compared = sum(all(name in found for found in table.series.values()) for name in table.names)
    rows = []
    for name in table.names:
        row = ProfileRow(name, table.types[name], ops=table.members[name], spans=table.spans[name])
        for side, found in table.series.items():
            if name in found:
                _fill(row, side, found[name])
        rows.append(_compared(row, _gap(table.series, name), measured, blocks, compared))
    total = ProfileRow("")
    for side, found in measured.items():
        whole = np.array(found.plain)
        _fill(total, side, _Series(whole, np.zeros_like(whole)))
    gap = np.subtract(measured["int8"].plain, measured["fp32"].plain) if len(measured) > 1 else None
    return [*rows, _rest(rows, total)], _compared(total, gap, {}, blocks, 1)


@dataclass
class _Series:
    """The time of one row in each run of one model."""

    itself: Times
    conversion: Times
    is_computed: bool = True
    """Otherwise only conversions are there."""


class _Table:
    """Rows by name: kernels that share an op of the fp32 model are one row, whichever model has fused them."""

    def __init__(self, measured: Mapping[Side, Measured], twins: Twins) -> None:
        self._twins = twins if len(measured) > 1 else {}
        self._root: dict[str, str] = {}
        self._ops: dict[tuple[Side, Kernel], list[str]] = {}
        for side, found in measured.items():
            self._join(side, found)
        self.series: dict[Side, dict[str, _Series]] = {side: self._sum(side, m) for side, m in measured.items()}
        present = {name for found in self.series.values() for name in found}
        self.names = [name for name in dict.fromkeys(map(self.row_of, self._root)) if name in present]
        self.members: dict[str, list[str]] = {name: [] for name in self.names}
        for op in self._root:
            if self.row_of(op) in self.members and op != self.row_of(op):
                self.members[self.row_of(op)].append(op)
        self.types = self._find_types()
        self.spans = self._find_spans(measured)

    def _join(self, side: Side, measured: Measured) -> None:
        for kernel in dict.fromkeys(execution.kernel for run in measured.runs for execution in run):
            twins = self._twins if side == "int8" else {}
            ops = [twin for op in kernel.ops for twin in twins.get(op, [op])] or [kernel.name]
            self._ops[side, kernel] = ops
            for op in ops[:1] if kernel.is_conversion else ops:
                self._root.setdefault(op, op)
                first, second = self.row_of(ops[0]), self.row_of(op)
                self._root[second] = first

    def row_of(self, op: str) -> str:
        """The name of the row that an op is in."""
        while self._root[op] != op:
            op = self._root[op]
        return op

    def _sum(self, side: Side, measured: Measured) -> dict[str, _Series]:
        count = len(measured.runs)
        row_of = {kernel: self.row_of(ops[0]) for (of, kernel), ops in self._ops.items() if of == side}
        found: dict[str, _Series] = {}
        for run, executions in enumerate(measured.runs):
            for kernel, _, _, duration_us in executions:
                row = found.setdefault(row_of[kernel], _Series(np.zeros(count), np.zeros(count), is_computed=False))
                is_apart = kernel.is_conversion and side == "int8"
                (row.conversion if is_apart else row.itself)[run] += duration_us
                row.is_computed |= not is_apart
        return found

    def _find_types(self) -> dict[str, str]:
        """Of the kernels that compute, as the first model has them."""
        found: dict[str, str] = {}
        for is_conversion in (False, True):
            for (_, kernel), ops in self._ops.items():
                if kernel.is_conversion == is_conversion:
                    found.setdefault(self.row_of(ops[0]), kernel.type)
        return found

    def _find_spans(self, measured: Mapping[Side, Measured]) -> dict[str, list[Span]]:
        """Of the run of each model that takes most nearly as long as the median."""
        found: dict[str, list[Span]] = {name: [] for name in self.names}
        for side, m in measured.items():
            sums = np.array([sum(execution.duration_us for execution in run) for run in m.runs])
            typical = m.runs[int(np.argmin(np.abs(sums - np.median(sums))))] if m.runs else []
            start = min((execution.start_us for execution in typical), default=0.0)
            threads = {thread: i for i, thread in enumerate(dict.fromkeys(e.thread for e in typical))}
            for kernel, thread, start_us, duration_us in typical:
                span = Span(side, threads[thread], start_us - start, duration_us)
                found[self.row_of(self._ops[side, kernel][0])].append(span)
        return found


def _gap(series: Mapping[Side, Mapping[str, _Series]], name: str) -> Times | None:
    """By how much the int8 model takes longer, run by run."""
    first, second = (series.get(side, {}).get(name) for side in ("fp32", "int8"))
    if first is None or second is None:
        return None
    return second.itself + second.conversion - first.itself


def _fill(row: ProfileRow, side: Side, series: _Series) -> None:
    if series.is_computed:
        setattr(row, f"{side}_us", float(np.median(series.itself)))
        setattr(row, f"{side}_p95_us", float(np.percentile(series.itself, 95)))
        setattr(row, f"{side}_mean_us", float(np.mean(series.itself)))
    if series.conversion.any():
        row.convert_us = float(np.median(series.conversion))


def _compared(
    row: ProfileRow, gap: Times | None, measured: Mapping[Side, Measured], blocks: Sequence[int], tests: int
) -> ProfileRow:
    if gap is None:
        return row
    resolution = max((found.resolution_us for found in measured.values()), default=0.0)
    found = difference(np.split(gap, np.cumsum(blocks)[:-1]), tests=tests, resolution=resolution)
    if found is not None:
        row.difference_us, row.low_us, row.high_us = found
        row.differs = found.differs
    return row


def _rest(rows: Sequence[ProfileRow], total: ProfileRow) -> ProfileRow:
    """What no op accounts for: the runtime itself, copies, gaps."""

    def left(whole: float | None, parts: Sequence[float | None]) -> float | None:
        return None if whole is None else max(0.0, whole - sum(filter(None, parts)))

    int8 = [*(row.int8_us for row in rows), *(row.convert_us for row in rows)]
    return ProfileRow("", "", left(total.fp32_us, [row.fp32_us for row in rows]), left(total.int8_us, int8))
