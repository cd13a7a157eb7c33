"""Traces of torch.profiler: `export_chrome_trace` and `tensorboard_trace_handler`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from inc_tb.frameworks.protocols import Kernel
from inc_tb.frameworks.traces import Trace, TraceEvent
from inc_tb.sources.traced import Traced, Window, in_windows, innermost, kept_slices

_OPS = ("cpu_op", "Operator")  # the second is what it was called before 1.12
_STEP = re.compile(r"ProfilerStep#(\d+)$")
_MODULE = "nn.Module: "
_INTEGER = re.compile(
    r"quantized(_decomposed)?::|onednn::q|aten::(de)?quantize|aten::_int_mm|aten::fake_quantize|fbgemm::"
)


def is_torch(trace: Trace) -> bool:
    return any(e.category in _OPS for e in trace.events)


def read_torch(trace: Trace) -> Traced:
    """A row for each kind of op, and in which module or annotated range it ran where the trace tells."""
    ops = [e for e in trace.events if _is_op(e)]
    around = [e for e in trace.events if _is_place(e)]
    windows, notes = _windows(trace.events, [*ops, *around])
    if not trace.is_whole:
        notes.append("the file is not whole: it was cut off, and so was what ran last")
    if any(e.category == "kernel" for e in trace.events):
        notes.append("the times are those of the CPU: what kernels on a GPU take is not counted")
    inside = in_windows([*ops, *around], windows)
    executions = [innermost(events, _kernel, _place) for events in inside]
    notes.append("the time of an op is its own, without the ops that it calls; the profiler's is part of it")
    is_quantized = any(_INTEGER.match(e.name) for e in ops)
    return Traced("torch", windows, executions, is_quantized, kept_slices(inside, lambda e: e.name), None, notes)


def _windows(events: Sequence[TraceEvent], parts: Sequence[TraceEvent]) -> tuple[list[Window], list[str]]:
    steps = {
        int(step[1]): Window(e.start_us, e.duration_us)
        for e in events
        if not e.category.startswith("gpu") and (step := _STEP.match(e.name))
    }
    if steps:
        is_cold = 0 in steps and len(steps) > 1
        kept = sorted(window for number, window in steps.items() if number or not is_cold)
        return kept, [f"the first of {len(steps)} steps does not count: it is cold"] if is_cold else []
    start = min(e.start_us for e in parts)
    whole = Window(start, max(e.start_us + e.duration_us for e in parts) - start)
    return [whole], [
        "the trace does not say where a run begins (there is no ProfilerStep): everything in it is taken for one; "
        "call step() of the profiler after each run to get times of single runs"
    ]


def _is_op(event: TraceEvent) -> bool:
    return event.category in _OPS and not _STEP.match(event.name)


def _is_place(event: TraceEvent) -> bool:
    is_module = event.category == "python_function" and event.name.startswith(_MODULE)
    return is_module or (event.category == "user_annotation" and not _STEP.match(event.name))


def _place(event: TraceEvent) -> str:
    return event.name.removeprefix(_MODULE) if _is_place(event) else ""


def _kernel(event: TraceEvent, place: str) -> Kernel | None:
    if not _is_op(event):
        return None
    return Kernel(f"{place}/{event.name}" if place else event.name, event.name, ())
