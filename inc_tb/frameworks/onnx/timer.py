"""ONNX Runtime's own profiler: the time of every node of the optimized graph, run by run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from inc_tb.frameworks.feeds import fitted
from inc_tb.frameworks.kernels import outermost
from inc_tb.frameworks.onnx.adapter import read_inputs
from inc_tb.frameworks.onnx.failures import cannot_run
from inc_tb.frameworks.onnx.graph import Graph
from inc_tb.frameworks.onnx.kernels import find_kernels
from inc_tb.frameworks.onnx.match import Matching
from inc_tb.frameworks.onnx.model import OPTIMIZED, Model, name_nodes
from inc_tb.frameworks.ops import Batch
from inc_tb.frameworks.protocols import Execution, Kernel, Recorded
from inc_tb.frameworks.traces import Slice, TraceEvent, read_chrome
from inc_tb.locks import TemporaryFolder

_KERNEL = "_kernel_time"
_RUN = "model_run"


_IDLE_NODES = 100
_IDLE_RUNS = 20


class OnnxTimer:
    resolution_us = 1.0

    def __init__(self, source: Any, batch: Batch, threads: int | None = None, like: Any = None) -> None:
        """The file says what the ops are, whatever another is `like`."""
        self.traces: dict[str, bytes] = {}
        self._cost_us = _profiler_cost(threads or 0)
        self.notes = [
            f"ONNX Runtime's profiler takes {self._cost_us:.1f} µs for each node itself, as nodes that do nothing "
            "show; this is taken off the times per op"
        ]
        self._model = Model(source)
        self._inputs = read_inputs(source)
        self._graph = Graph(self._model)
        self.is_quantized = self._graph.is_quantized
        self._named = name_nodes(self._model.proto)
        self._plain = self._model.session(self._model.proto, threads or 0, optimized=True)
        self._folder = TemporaryFolder()
        try:
            self._profiled = self._model.session(
                self._model.proto, threads or 0, optimized=True, profile=Path(self._folder.name)
            )
        except BaseException:
            self._folder.cleanup()
            raise
        self._starts: list[float] = []

    def prepare(self, batch: Batch) -> dict[str, Any]:
        return fitted(batch, self._inputs)

    def run(self, prepared: Any) -> float:
        start = time.perf_counter()
        try:
            self._plain.run(None, prepared)
        except Exception as error:  # onnxruntime raises many unrelated classes
            raise cannot_run(self._model.name, error) from error
        return time.perf_counter() - start

    def run_profiled(self, prepared: Any) -> float:
        start = time.perf_counter()
        self._profiled.run(None, prepared)
        self._starts.append(1e6 * start)
        return time.perf_counter() - start

    def close(self) -> list[Recorded]:
        with self._folder:
            events = read_chrome(Path(self._profiled.end_profiling())).events
            optimized = onnx.load(Path(self._folder.name) / OPTIMIZED, load_external_data=False).graph
        kernels = find_kernels(self._graph, self._named, optimized)
        return [
            _recorded(run, events, kernels, start, self._cost_us)
            for run, start in zip(_runs(events), self._starts, strict=False)  # one of them may have been interrupted
        ]


def _runs(events: Sequence[TraceEvent]) -> list[TraceEvent]:
    return sorted((e for e in events if e.name == _RUN), key=lambda e: e.start_us)


def _recorded(
    run: TraceEvent, events: Sequence[TraceEvent], kernels: dict[str, Kernel], start_us: float, cost_us: float
) -> Recorded:
    moved = start_us - run.start_us
    inside = [e for e in events if run.start_us <= e.start_us <= run.start_us + run.duration_us]
    slices = [
        Slice("", e.thread, e.name.removesuffix(_KERNEL), e.start_us + moved, e.duration_us, _details(e))
        for e in inside
    ]
    timed = outermost([e for e in inside if e.name.endswith(_KERNEL)])
    return Recorded([_executed(e, kernels, moved, cost_us * (1 + inner)) for e, inner in timed], slices)


def _executed(event: TraceEvent, kernels: dict[str, Kernel], moved: float, cost_us: float) -> Execution:
    name = event.name.removesuffix(_KERNEL)
    kernel = kernels.get(name) or Kernel(name, str(event.args.get("op_name", "")), ())
    return Execution(kernel, event.thread, event.start_us + moved, max(0.0, event.duration_us - cost_us))


def _details(event: TraceEvent) -> dict[str, str | float]:
    wanted = {"op_name": "type", "provider": "provider", "input_type_shape": "inputs", "output_type_shape": "outputs"}
    return {label: str(event.args[name]) for name, label in wanted.items() if name in event.args}


@cache
def _profiler_cost(threads: int) -> float:
    """How much longer the profiler says that a node takes than it does, in µs."""
    tensors = [f"t{i}" for i in range(_IDLE_NODES + 1)]
    nodes = [
        helper.make_node(("Sin", "Cos")[i % 2], [tensors[i]], [tensors[i + 1]], name=f"n{i}")
        for i in range(_IDLE_NODES)
    ]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in (tensors[0], tensors[-1])]
    graph = helper.make_graph(nodes, "idle", ends[:1], ends[1:])
    model = Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8))
    feeds = {tensors[0]: np.ones(1, np.float32)}
    whole: list[float] = []
    with TemporaryFolder() as folder:
        plain = model.session(model.proto, threads, optimized=True)
        profiled = model.session(model.proto, threads, optimized=True, profile=Path(folder))
        for _ in range(_IDLE_RUNS):
            start = time.perf_counter()
            plain.run(None, feeds)
            whole.append(1e6 * (time.perf_counter() - start))
            profiled.run(None, feeds)
        events = [e for e in read_chrome(Path(profiled.end_profiling())).events if e.name.endswith(_KERNEL)]
    told = [np.mean([e.duration_us for e in events[i : i + _IDLE_NODES]]) for i in range(0, len(events), _IDLE_NODES)]
    # Other work on the machine only makes runs longer, so the shorter ones are nearer to the truth.
    return max(0.0, float(np.percentile(told, 25) - np.percentile(whole, 25) / _IDLE_NODES))


def name_twins(reference: Any, quantized: Any, batch: Batch) -> dict[str, list[str]]:
    return Matching(Graph(Model(reference)), Graph(Model(quantized))).twins()
