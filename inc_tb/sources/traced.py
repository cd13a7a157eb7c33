"""From the events of a trace to the runs of a model in it, and to the time of each op."""

from __future__ import annotations

import bisect
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from inc_tb.frameworks.protocols import Execution, Kernel
from inc_tb.frameworks.traces import Slice, TraceEvent
from inc_tb.profiling.profile import Profile
from inc_tb.profiling.timetable import KEPT_RUNS, Side, Timed, tabulate
from inc_tb.records import ProfileRow

_LONGEST_DETAIL = 200


class Window(NamedTuple):
    """One run of a model."""

    start_us: float
    duration_us: float
    thread: str = ""
    """"" where every thread may work for it."""


@dataclass
class Traced:
    """What a trace says about one model."""

    framework: str
    windows: list[Window]
    executions: list[list[Execution]]
    """Of each window."""
    is_quantized: bool
    slices: list[Slice] = field(default_factory=list)
    threads: int | None = None
    notes: list[str] = field(default_factory=list)

    def to_profile(self, name: str) -> Profile:
        side: Side = "int8" if self.is_quantized else "fp32"
        whole = [window.duration_us for window in self.windows]
        rows, total = tabulate({side: Timed(plain=whole, runs=self.executions)}, {}, [len(whole)])
        found = Profile(rows, total, framework=self.framework, runs=len(whole), threads=self.threads, notes=self.notes)
        setattr(found, side, name)
        found.slices = [s._replace(model=side) for s in self.slices]
        return found


def profile_of_sums(sums: Mapping[str, float], name: str, side: Side, notes: list[str]) -> Profile:
    """Type -> µs, as somebody else has added it up: there is no whole run, and nothing to tell how the times vary."""
    rows = [_row(kind, us, side) for kind, us in sums.items()]
    found = Profile(rows, ProfileRow(""), notes=notes)
    setattr(found, side, name)
    return found


def _row(kind: str, us: float, side: Side) -> ProfileRow:
    return ProfileRow(kind, kind, fp32_us=us) if side == "fp32" else ProfileRow(kind, kind, int8_us=us)


def in_windows(events: Sequence[TraceEvent], windows: Sequence[Window]) -> list[list[TraceEvent]]:
    """The events that start in each window, in that of their own thread if it has any; windows are in order."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, window in enumerate(windows):
        places[window.thread].append(place)
        if window.thread:
            places[""].append(place)
    starts = {thread: [windows[place].start_us for place in found] for thread, found in places.items()}
    inside: list[list[TraceEvent]] = [[] for _ in windows]
    for event in sorted(events, key=lambda e: (e.start_us, -e.duration_us)):
        thread = event.thread if event.thread in places else ""
        last = bisect.bisect_right(starts[thread], event.start_us) - 1 if thread in starts else -1
        if last >= 0:
            place = places[thread][last]
            if event.start_us <= windows[place].start_us + windows[place].duration_us:
                inside[place].append(event)
    return inside


def innermost(
    events: Sequence[TraceEvent],
    kernel_of: Callable[[TraceEvent, str], Kernel | None],
    place_of: Callable[[TraceEvent], str] = lambda _: "",
) -> list[Execution]:
    """Each moment of a thread counts for the innermost of the events around it.

    `place_of` tells the name of an event that is a place in the model; `kernel_of` gets an event and the innermost
    place around it, and what it gives no kernel for takes no time from others.
    """
    by_thread: dict[str, list[TraceEvent]] = defaultdict(list)
    for event in events:
        by_thread[event.thread].append(event)
    found = [execution for on_thread in by_thread.values() for execution in _of_thread(on_thread, kernel_of, place_of)]
    return sorted(found, key=lambda execution: execution.start_us)


@dataclass
class _Open:
    event: TraceEvent
    kernel: Kernel | None
    counted_until: float
    place: str
    """It, or the innermost around it that is one."""
    holder: _Open | None = None
    """The innermost around it that has a kernel."""

    @property
    def end_us(self) -> float:
        return self.event.start_us + self.event.duration_us

    def count(self, until: float) -> Execution:
        assert self.kernel is not None
        start, self.counted_until = self.counted_until, max(self.counted_until, until)
        return Execution(self.kernel, self.event.thread, start, self.counted_until - start)


def _of_thread(
    events: Sequence[TraceEvent],
    kernel_of: Callable[[TraceEvent, str], Kernel | None],
    place_of: Callable[[TraceEvent], str],
) -> Iterator[Execution]:
    around: list[_Open] = []
    for event in sorted(events, key=lambda e: (e.start_us, -e.duration_us)):
        # Clocks are rounded: what only touches the end of another is not part of it, what only just exceeds it is.
        middle = event.start_us + event.duration_us / 2
        while around and around[-1].end_us <= middle:
            yield from _closed(around.pop())
        outer = around[-1] if around else None
        place = outer.place if outer is not None else ""
        parent = outer.holder if outer is not None and outer.kernel is None else outer
        opened = _Open(event, kernel_of(event, place), event.start_us, place_of(event) or place, parent)
        if opened.kernel is not None and parent is not None:
            if event.start_us > parent.counted_until:
                yield parent.count(event.start_us)
            parent.counted_until = max(parent.counted_until, min(opened.end_us, parent.end_us))
        around.append(opened)
    while around:
        yield from _closed(around.pop())


def _closed(opened: _Open) -> Iterator[Execution]:
    """Also where nothing is left, so that an op is known even if it took less than the clock's tick."""
    if opened.kernel is not None:
        yield opened.count(opened.end_us)


def kept_slices(inside: Sequence[Sequence[TraceEvent]], name_of: Callable[[TraceEvent], str]) -> list[Slice]:
    """Of the last few windows."""
    return [
        Slice("", event.thread, name_of(event), event.start_us, event.duration_us, _details(event.args))
        for events in inside[-KEPT_RUNS:]
        for event in events
    ]


def _details(args: Mapping[str, object]) -> dict[str, str | float]:
    found: dict[str, str | float] = {}
    for name, value in args.items():
        if isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 53):
            found[name] = float(value)
        elif value not in ("", None, [], {}):
            told = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            found[name] = told[:_LONGEST_DETAIL]
    return found
