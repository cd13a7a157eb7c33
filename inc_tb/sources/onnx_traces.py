"""Traces of ONNX Runtime: `SessionOptions.enable_profiling`, and onnxruntime_perf_test -p."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from inc_tb.frameworks.protocols import Kernel
from inc_tb.frameworks.traces import Trace, TraceEvent
from inc_tb.sources.traced import Traced, Window, in_windows, innermost, kept_slices

_PARTS = ("_kernel_time", "_fence_before", "_fence_after")
"""What an op's name ends with; ONNX Runtime before 1.14 also waits at fences."""
_RUN_MARKS = ("model_run", "SequentialExecutor::Execute", "ParallelExecutor::Execute")
_INTEGER = (
    "QLinear",
    "QGemm",
    "QAttention",
    "QEmbed",
    "ConvInteger",
    "MatMulInteger",
    "DynamicQuantize",
    "MatMulNBits",
)
_ROUNDING = ("QuantizeLinear", "DequantizeLinear")


def is_onnx(trace: Trace) -> bool:
    return any(_is_node(e) for e in trace.events)


def read_onnx(trace: Trace) -> Traced:
    nodes = [e for e in trace.events if _is_node(e)]
    windows, notes = _windows(trace.events, nodes)
    kernels = _kernels(nodes)
    if not trace.is_whole:
        notes.append("the file is not whole: what cannot be read of a run counts as time outside of all ops")
    inside = in_windows(trace.events, windows)
    executions = [innermost([e for e in events if _is_node(e)], lambda e, _: kernels[_key(e)]) for events in inside]
    if len(windows) > 1:
        notes.append(f"the first of {len(windows)} runs does not count: it is cold")
        windows, inside, executions = windows[1:], inside[1:], executions[1:]
    else:
        notes.append(
            "a single run, and a cold one, in which threads start and memory is touched for the first time: "
            "any op may take several times as long as it usually does. Profile some warm runs to compare ops"
        )
    notes.append("ONNX Runtime's profiler was on: the time that it takes is part of each op's")
    is_quantized = any(is_integer(kernel.type) for kernel in kernels.values())
    slices = kept_slices(inside, _label)
    return Traced("onnx", windows, executions, is_quantized, slices, _threads(nodes), notes)


def is_integer(kind: str) -> bool:
    """Whether an op of this type is there only in quantized models."""
    return kind in _ROUNDING or kind.startswith(_INTEGER)


def times_per_type(trace: Trace) -> dict[str, float]:
    """Of everything in the trace, as Neural Compressor adds it up."""
    found: dict[str, float] = defaultdict(float)
    for event in trace.events:
        if event.category == "Node":
            found[str(event.args.get("op_name", ""))] += event.duration_us
    return found


def _is_node(event: TraceEvent) -> bool:
    return event.category == "Node" and event.name.endswith(_PARTS)


def _windows(events: Sequence[TraceEvent], nodes: Sequence[TraceEvent]) -> tuple[list[Window], list[str]]:
    for mark in _RUN_MARKS:
        found = sorted(Window(e.start_us, e.duration_us, e.thread) for e in events if e.name == mark)
        if found:
            return found, []
    ordered = sorted(nodes, key=lambda e: e.start_us)
    firsts = [place for place, event in enumerate(ordered) if event.name == ordered[0].name]
    parts = [ordered[start:end] for start, end in zip(firsts, [*firsts[1:], len(ordered)], strict=True)]
    windows = [
        Window(part[0].start_us, max(e.start_us + e.duration_us for e in part) - part[0].start_us) for part in parts
    ]
    return windows, ["the trace does not say when a run begins (there is no model_run): at its first op, as taken here"]


def _label(event: TraceEvent) -> str:
    for part in _PARTS:
        if event.name.endswith(part):
            return (
                event.name.removesuffix(part) or f"{event.args.get('op_name', '')}_{event.args.get('node_index', '')}"
            )
    return event.name


def _key(event: TraceEvent) -> tuple[str, str]:
    return _label(event), str(event.args.get("node_index", ""))


def _kernels(nodes: Sequence[TraceEvent]) -> Mapping[tuple[str, str], Kernel]:
    """By name and number: a node of a subgraph may be called like another."""
    keys = dict.fromkeys(_key(e) for e in nodes)
    numbers: dict[str, list[str]] = defaultdict(list)
    for label, number in keys:
        if number:
            numbers[label].append(number)
    types = {_label(e): str(e.args["op_name"]) for e in nodes if "op_name" in e.args}

    def name(label: str, number: str) -> str:
        """That of the first one is left as it is, and fences, which have no number, are on its account."""
        return label if number in ("", *numbers[label][:1]) else f"{label} (node {number})"

    return {key: Kernel(name(*key), types.get(key[0], ""), ()) for key in keys}


def _threads(nodes: Sequence[TraceEvent]) -> int | None:
    """Of the pool within ops, the calling one among them, where the trace tells."""
    found = [e.args.get("thread_scheduling_stats") for e in nodes]
    pools = [stats.get("sub_threads") for stats in found if isinstance(stats, dict)]
    return max((1 + len(pool) for pool in pools if isinstance(pool, dict)), default=None)
