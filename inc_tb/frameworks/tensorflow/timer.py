"""The time of every node of a graph, from TensorFlow's own tracer; and the same model as ops of another."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from inc_tb.frameworks.ops import Array, Batch
from inc_tb.frameworks.protocols import Execution, Kernel, Recorded
from inc_tb.frameworks.tensorflow.engines import open_graph
from inc_tb.frameworks.tensorflow.failures import cannot_run
from inc_tb.frameworks.tensorflow.frozen import FrozenGraph
from inc_tb.frameworks.tensorflow.kernels import find_kernels, noticed
from inc_tb.frameworks.tensorflow.library import tf
from inc_tb.frameworks.tensorflow.lite_timer import LiteTimer
from inc_tb.frameworks.tensorflow.match import Matching
from inc_tb.frameworks.tensorflow.model import fed
from inc_tb.frameworks.tensorflow.quiet import quiet
from inc_tb.frameworks.tensorflow.source import as_reference, open_source
from inc_tb.frameworks.traces import Slice
from inc_tb.locks import TemporaryFolder

_THREADS = "TF_NUM_INTRAOP_THREADS"
_STARTED_WITH = int(os.environ.get(_THREADS) or 0) or (os.cpu_count() or 1)
"""The first session of a process decides how many threads kernels have; the library opens it when it is loaded."""
_OVERLAP = 0.1
_TRACE = "tensorflow.xplane.pb"


def open_timer(model: Any, batch: Batch, threads: int | None = None, like: Any = None) -> GraphTimer | LiteTimer:
    """The file says what the ops are, whatever another is `like`."""
    graph = open_graph(model)
    return GraphTimer(graph, threads) if isinstance(graph, FrozenGraph) else LiteTimer(graph, threads)


class _Event(NamedTuple):
    """A node that was executed; times in µs."""

    name: str
    label: str
    start_us: float
    duration_us: float


class GraphTimer:
    """A session as it ships: grappler's rewrites, and as many threads as TensorFlow thinks fit, for kernels and for ops
    that do not wait for each other. With `threads` it is so many for both.
    """

    resolution_us = 0.001

    def __init__(self, graph: FrozenGraph, threads: int | None = None) -> None:
        self.is_quantized = graph.is_quantized
        self.notes: list[str] = []
        self._graph = graph
        with quiet():
            self._session = tf.compat.v1.Session(graph=graph.tf_graph, config=_config(threads))
            results, given = (
                [graph.tensor(t) for _, t in ends] for ends in (graph.source.outputs, graph.source.inputs)
            )
            self._call = self._session.make_callable(results, given, accept_options=True)
        self._kernels: dict[str, Kernel] = {}
        self._runs: list[list[_Event]] = []
        self._last: Any = None
        if threads is not None and threads != _STARTED_WITH:
            self.notes.append(
                f"TensorFlow has {_STARTED_WITH} threads for each op in this process, not {threads}: it decides that "
                f"once, when it is loaded. Start the process with {_THREADS}={threads}"
            )

    def prepare(self, batch: Batch) -> list[list[Array]]:
        return [[part[name] for name, _ in self._graph.source.inputs] for part in fed(batch, self._graph.inputs)]

    def run(self, prepared: Any) -> float:
        start = time.perf_counter()
        for given in prepared:
            self._run(given)
        return time.perf_counter() - start

    def run_profiled(self, prepared: Any) -> float:
        found: list[tuple[float, Any]] = []
        options = tf.compat.v1.RunOptions
        start = time.perf_counter()
        for given in prepared:
            traced = tf.compat.v1.RunMetadata()
            shift_us = 1e6 * time.perf_counter() - time.time_ns() / 1e3
            level = options(trace_level=options.SOFTWARE_TRACE, output_partition_graphs=not self._kernels and not found)
            self._run(given, options=level, run_metadata=traced)
            found.append((shift_us, traced))
        took = time.perf_counter() - start
        if not self._kernels:
            nodes = [node for part in found[0][1].partition_graphs for node in part.node]
            self._kernels = find_kernels(self._graph, nodes)
        self._runs.append([event for shift_us, traced in found for event in _events(traced, shift_us)])
        self._last = prepared
        return took

    def _run(self, given: Sequence[Array], **more: Any) -> None:
        try:
            self._call(*given, **more)
        except (tf.errors.OpError, ValueError, TypeError) as error:
            raise cannot_run(self._graph.name, "TensorFlow", error) from error

    def close(self) -> list[Recorded]:
        found = [_recorded(events, self._kernels) for events in self._runs]
        runs = [recorded.executions for recorded in found]
        if _overlap(runs) > _OVERLAP:
            self.notes.append(
                "TensorFlow runs ops of this model at the same time: their times add up to more than a run takes"
            )
        return noticed(found)

    @cached_property
    def traces(self) -> dict[str, bytes]:
        """What TensorFlow's profiler says about one more run; nothing where somebody else uses it."""
        if self._last is None:
            return {}
        with TemporaryFolder() as folder, quiet():
            try:
                tf.profiler.experimental.start(folder)
            except tf.errors.OpError:
                return {}
            try:
                self.run(self._last)
            finally:
                tf.profiler.experimental.stop()
            files = sorted(Path(folder).rglob("*.xplane.pb"))
            return {_TRACE: files[0].read_bytes()} if files else {}


def _config(threads: int | None) -> Any:
    if threads is None:
        return None
    return tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads, use_per_session_threads=True
    )


def _events(traced: Any, shift_us: float) -> list[_Event]:
    """In the order in which they start."""
    found = [
        _Event(
            node.node_name, node.timeline_label, node.all_start_nanos / 1e3 + node.op_start_rel_nanos / 1e3 + shift_us,
            (node.op_end_rel_nanos - node.op_start_rel_nanos) / 1e3,
        )
        for device in traced.step_stats.dev_stats for node in device.node_stats
    ]  # fmt: skip
    return sorted(found, key=lambda event: event.start_us)


def _recorded(events: Sequence[_Event], kernels: dict[str, Kernel]) -> Recorded:
    """TensorFlow does not say which thread it was: one is made up for every op that runs beside others."""
    executions: list[Execution] = []
    slices: list[Slice] = []
    free_at: list[float] = []
    for event in events:
        lane = next((at for at, end in enumerate(free_at) if end <= event.start_us), len(free_at))
        free_at[lane : lane + 1] = [event.start_us + event.duration_us]
        thread = f"ops {lane + 1}"
        slices.append(Slice("", thread, event.name, event.start_us, event.duration_us, _details(event)))
        if event.name in kernels:
            executions.append(Execution(kernels[event.name], thread, event.start_us, event.duration_us))
    return Recorded(executions, slices)


def _details(event: _Event) -> dict[str, str | float]:
    """Of labels as in `[mklcpu 0.3MB] name = Type(inputs)`."""
    kind, _, inputs = event.label.partition(f"{event.name} = ")[2].partition("(")
    return {"type": kind, "inputs": inputs.removesuffix(")")} if kind else {}


def _overlap(runs: Sequence[Sequence[Execution]]) -> float:
    """The share of the time of all kernels that lies beside another."""
    both = whole = 0.0
    for run in runs:
        end = 0.0
        for execution in run:
            stop = execution.start_us + execution.duration_us
            both += max(0.0, min(end, stop) - execution.start_us)
            whole += execution.duration_us
            end = max(end, stop)
    return both / whole if whole else 0.0


def name_twins(reference: Any, quantized: Any, batch: Batch) -> dict[str, list[str]]:
    """Also of ops that another has taken in: a bias, an activation, zeros around."""
    source = open_source(quantized)
    mine = open_graph(as_reference(source) if reference is None else reference)
    return Matching(mine, open_graph(source)).twins()
