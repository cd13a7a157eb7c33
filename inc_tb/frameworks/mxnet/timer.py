"""The time of every node, from MXNet's own profiler."""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from inc_tb.errors import ModelError
from inc_tb.frameworks.kernels import on_account, twins
from inc_tb.frameworks.mxnet.graph import CONVERSIONS, QUANTIZE, Graph
from inc_tb.frameworks.mxnet.library import mx
from inc_tb.frameworks.mxnet.match import Matching
from inc_tb.frameworks.mxnet.model import fed
from inc_tb.frameworks.mxnet.runtime import Executor, fused, shapes_of
from inc_tb.frameworks.ops import Array, Batch
from inc_tb.frameworks.protocols import Execution, Kernel, Recorded
from inc_tb.frameworks.traces import Slice
from inc_tb.locks import TemporaryFolder

_THREADS = "OMP_NUM_THREADS"


class _Event(NamedTuple):
    name: str
    thread: str
    start_us: float
    duration_us: float


class MxnetTimer:
    """The network as Module runs it: joined by oneDNN, with several nodes handed to the engine at once.

    The profiler sees single nodes only where they are handed over one by one.
    """

    resolution_us = 1.0

    def __init__(self, model: Any, batch: Batch, threads: int | None = None, like: Any = None) -> None:
        """The network says what the ops are, whatever another is `like`."""
        self._given = Graph(model)
        self._network = fused(self._given.network)
        self.is_quantized = self._given.is_quantized
        self.notes: list[str] = []
        self.traces: dict[str, bytes] = {}
        has = _threads()
        if threads is not None and threads != has:
            self.notes.append(
                f"MXNet has {has} thread{'s' * (has != 1)} in this process, not {threads}: it decides that once, when "
                f"it is loaded. Start the process with {_THREADS}={threads}"
            )
        self._opened: dict[Any, tuple[Executor, Executor]] = {}
        self._open(self.prepare(batch))
        self._runs: list[list[_Event]] = []

    def prepare(self, batch: Batch) -> dict[str, Array]:
        return fed(self._given, batch)

    def _open(self, feeds: Batch) -> tuple[Executor, Executor]:
        """As it ships, and node by node; kernels make themselves ready at the first run."""
        key = shapes_of(feeds)
        if key not in self._opened:
            both = Executor(self._network, feeds), Executor(self._network, feeds, is_bulk=False)
            for executor in both:
                executor.run()
            self._opened[key] = both
        return self._opened[key]

    def run(self, prepared: Any) -> float:
        executor, _ = self._open(prepared)
        executor.feed(prepared)
        start = time.perf_counter()
        executor.run()
        return time.perf_counter() - start

    def run_profiled(self, prepared: Any) -> float:
        _, executor = self._open(prepared)
        executor.feed(prepared)
        log = _log()
        began_us = time.time_ns() / 1e3
        shift_us = 1e6 * time.perf_counter() - began_us
        mx.profiler.set_state("run")
        try:
            start = time.perf_counter()
            executor.run()
            took = time.perf_counter() - start
        finally:
            mx.profiler.set_state("stop")
            mx.profiler.dump(finished=False)
        self._runs.append([e for e in _events(log.read(), shift_us) if e.start_us >= began_us + shift_us])
        return took

    def close(self) -> list[Recorded]:
        graph = Graph(self._network)
        kernels = _kernels(graph, {step.name for step in self._given.steps})
        types = [step.type for step in graph.steps]
        return [_recorded(events, kernels, types) for events in self._runs]


def _threads() -> int:
    """As MXNet has told OpenMP, whatever the environment says; without OpenMP there is one."""
    asked = getattr(mx.base._LIB, "omp_get_max_threads", None)
    return int(asked()) if asked is not None else 1


class _Log:
    """What the profiler writes, which can be told where once in a process."""

    def __init__(self) -> None:
        self._folder = TemporaryFolder()
        self._place, self._read = Path(self._folder.name) / "mxnet.json", 0
        try:
            mx.profiler.set_config(profile_symbolic=True, aggregate_stats=False, filename=str(self._place))
        except mx.MXNetError as error:
            raise ModelError(
                "MXNet's profiler was used in this process and cannot be used again; expected it to be free. Start "
                "another."
            ) from error

    def read(self) -> str:
        """What is new since the last time."""
        with self._place.open("rb") as file:
            file.seek(self._read)
            text = file.read().decode()
            self._read = file.tell()
        return text


_log = cache(_Log)


def _events(text: str, shift_us: float) -> Iterator[_Event]:
    """What began and ended on a thread. The parts of a file that is written to again are no JSON."""
    began: dict[tuple[int, str], float] = {}
    for event in map(json.loads, re.findall(r"\{[^{}]*\}", text)):
        key = event.get("tid", 0), event.get("name", "")
        if event.get("ph") == "B":
            began[key] = float(event["ts"])
        elif event.get("ph") == "E" and key in began:
            start = began.pop(key)
            yield _Event(event["name"], str(event["tid"]), start + shift_us, float(event["ts"]) - start)


def _kernels(graph: Graph, known: set[str]) -> list[Kernel]:
    """One for each step, in their order; `known` are the ops of the network as it was given."""
    place = {step.index: at for at, step in enumerate(graph.steps)}
    found, before, for_reader = [], [], set()
    for at, step in enumerate(graph.steps):
        parts = sorted(step.parts, key=lambda part: part is not step.weighted)
        names = (step.name,) if step.name in known else tuple(p.name for p in parts if p.name in known)
        is_conversion = step.type in CONVERSIONS
        found.append(Kernel(step.name, step.type, () if is_conversion else names, is_conversion))
        before.append([place[e.node] for e in step.inputs if e.node in place])
        if step.type in QUANTIZE:
            for_reader.add(at)
    return list(on_account(found, before, for_reader))


def _recorded(events: Sequence[_Event], kernels: Sequence[Kernel], types: Sequence[str]) -> Recorded:
    """The profiler says which op it was, not which node: those of one op run in the order of the network."""
    waiting: dict[str, list[Kernel]] = defaultdict(list)
    for kernel, kind in reversed(list(zip(kernels, types, strict=True))):
        waiting[kind].append(kernel)
    executions, slices = [], []
    for event in sorted(events, key=lambda e: e.start_us):
        name = event.name
        if waiting[event.name]:
            executed = waiting[event.name].pop()
            executions.append(Execution(executed, event.thread, event.start_us, event.duration_us))
            name = executed.name
        slices.append(Slice("", event.thread, name, event.start_us, event.duration_us, {"type": event.name}))
    return Recorded(executions, slices)


def name_twins(reference: Any, quantized: Any, batch: Batch) -> dict[str, list[str]]:
    matching = Matching(Graph(reference), Graph(quantized))
    graph = matching.quantized
    names = {step.index: step.name for step in graph.steps}
    return twins(
        ((m.node.name, [m.main.name, *(s.name for s in m.steps if s is not m.main)]) for m in matching.matches),
        {s.name: [names[e.node] for e in s.inputs if e.node in names] for s in graph.steps},
    )
