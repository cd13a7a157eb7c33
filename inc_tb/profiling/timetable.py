"""From what profilers saw to a table: the time of each op, in one model or in two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from inc_tb.frameworks.protocols import Execution, Kernel, Timer
from inc_tb.frameworks.traces import Slice
from inc_tb.profiling.noise import Times, difference
from inc_tb.records import ProfileRow, Span

Side = Literal["fp32", "int8"]
Twins = Mapping[str, Sequence[str]]
_SIDES: tuple[Side, ...] = ("fp32", "int8")
KEPT_RUNS = 3
"""Whose traces are kept."""


@dataclass
class Timed:
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

    def add(self, timer: Timer, runs: int, *, is_last: bool) -> None:
        """Closes the timer and takes what it saw of its last `runs`."""
        recorded = timer.close()[-runs:]
        self.runs += [found.executions for found in recorded]
        self.resolution_us, self.is_quantized = timer.resolution_us, timer.is_quantized
        if is_last:
            self.slices = [s for found in recorded[-KEPT_RUNS:] for s in found.slices]
            self.traces, self.notes = timer.traces, timer.notes

    @property
    def accounted_us(self) -> float:
        """What all ops of a run take together: noise hits other ops in each run, so their medians add up to less."""
        return float(np.median([sum(execution.duration_us for execution in run) for run in self.runs]))

    @property
    def overhead(self) -> float:
        """By which share the profiler slows it down."""
        return float(np.median(self.profiled) / np.median(self.plain)) - 1


def tabulate(timed: Mapping[Side, Timed], twins: Twins, blocks: Sequence[int]) -> tuple[list[ProfileRow], ProfileRow]:
    """A row for each op, or for several that one of the models has fused; and one for whole runs.

    `twins` has the ops of the fp32 model for those of the int8 model, `blocks` the number of runs of each opening.
    """
    table = _Table(timed, twins)
    compared = sum(all(name in found for found in table.series.values()) for name in table.names)
    rows = []
    for name in table.names:
        row = ProfileRow(name, table.types[name], ops=table.members[name], spans=table.spans[name])
        for side, found in table.series.items():
            if name in found:
                _fill(row, side, found[name])
        both = [found[name] for found in table.series.values() if name in found]
        rows.append(_compared(row, both, timed, blocks, compared))
    total = ProfileRow("")
    whole = {side: _Series(np.array(of_side.plain), np.zeros(len(of_side.plain))) for side, of_side in timed.items()}
    for side, series in whole.items():
        _fill(total, side, series)
    return [*rows, _rest(timed, total)], _compared(total, list(whole.values()), {}, blocks, 1)


@dataclass
class _Series:
    """The time of one row in each run of one model."""

    itself: Times
    conversion: Times
    is_computed: bool = True
    """Otherwise only conversions are there."""


class _Table:
    """Rows by name: kernels that share an op of the fp32 model are one row, whichever model has fused them."""

    def __init__(self, timed: Mapping[Side, Timed], twins: Twins) -> None:
        self._twins = twins if len(timed) > 1 else {}
        self._root: dict[str, str] = {}
        self._ops: dict[tuple[Side, Kernel], list[str]] = {}
        for side, found in timed.items():
            self._join(side, found)
        self.series: dict[Side, dict[str, _Series]] = {side: self._sum(side, m) for side, m in timed.items()}
        present = {name for found in self.series.values() for name in found}
        self.names = [name for name in dict.fromkeys(map(self.row_of, self._root)) if name in present]
        self.members: dict[str, list[str]] = {name: [] for name in self.names}
        for op in self._root:
            if self.row_of(op) in self.members and op != self.row_of(op):
                self.members[self.row_of(op)].append(op)
        self.types = self._find_types()
        self.spans = self._find_spans(timed)

    def _join(self, side: Side, timed: Timed) -> None:
        for kernel in dict.fromkeys(execution.kernel for run in timed.runs for execution in run):
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

    def _sum(self, side: Side, timed: Timed) -> dict[str, _Series]:
        count = len(timed.runs)
        row_of = {kernel: self.row_of(ops[0]) for (of, kernel), ops in self._ops.items() if of == side}
        found: dict[str, _Series] = {}
        for run, executions in enumerate(timed.runs):
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

    def _find_spans(self, timed: Mapping[Side, Timed]) -> dict[str, list[Span]]:
        """Of the run of each model that takes most nearly as long as the median."""
        found: dict[str, list[Span]] = {name: [] for name in self.names}
        for side, m in timed.items():
            sums = np.array([sum(execution.duration_us for execution in run) for run in m.runs])
            typical = m.runs[int(np.argmin(np.abs(sums - np.median(sums))))] if m.runs else []
            start = min((execution.start_us for execution in typical), default=0.0)
            threads = {thread: i for i, thread in enumerate(dict.fromkeys(e.thread for e in typical))}
            for kernel, thread, start_us, duration_us in typical:
                span = Span(side, threads[thread], start_us - start, duration_us)
                found[self.row_of(self._ops[side, kernel][0])].append(span)
        return found


def _fill(row: ProfileRow, side: Side, series: _Series) -> None:
    if series.is_computed:
        setattr(row, f"{side}_us", float(np.median(series.itself)))
        setattr(row, f"{side}_p95_us", float(np.percentile(series.itself, 95)))
        setattr(row, f"{side}_mean_us", float(np.mean(series.itself)))
    if series.conversion.any():
        row.convert_us = float(np.median(series.conversion))


def _compared(
    row: ProfileRow, both: Sequence[_Series], timed: Mapping[Side, Timed], blocks: Sequence[int], tests: int
) -> ProfileRow:
    if len(both) < len(_SIDES):
        return row
    first, second = (np.split(series.itself + series.conversion, np.cumsum(blocks)[:-1]) for series in both)
    resolution = max((found.resolution_us for found in timed.values()), default=0.0)
    found = difference(first, second, tests=tests, resolution=resolution)
    if found is not None:
        row.difference_us, row.low_us, row.high_us = found
        row.differs = found.differs
    return row


def _rest(timed: Mapping[Side, Timed], total: ProfileRow) -> ProfileRow:
    """What no op accounts for: the runtime itself, copies, gaps."""
    rest = ProfileRow("")
    for side, found in timed.items():
        setattr(rest, f"{side}_us", max(0.0, getattr(total, f"{side}_us") - found.accounted_us))
    return rest
