"""torch.profiler: the time of every module and function that is an op, and of what runs inside of them."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.profiler import ProfilerActivity, profile

from inc_tb.errors import UsageError
from inc_tb.frameworks.ops import Batch
from inc_tb.frameworks.protocols import Execution, Kernel, Recorded
from inc_tb.frameworks.torch.adapter import TorchAdapter
from inc_tb.frameworks.torch.arguments import arranged, feeds, said
from inc_tb.frameworks.torch.eager import EagerRunner
from inc_tb.frameworks.torch.graph_runner import GraphRunner
from inc_tb.frameworks.torch.grids import is_fake_quantizer, quantization_of
from inc_tb.frameworks.torch.opening import opened
from inc_tb.frameworks.torch.runners import open_runner
from inc_tb.frameworks.torch.state import undisturbed
from inc_tb.frameworks.torch.steps import Call
from inc_tb.frameworks.torch.timed_graph import TimedGraph
from inc_tb.frameworks.torch.values import tensors_in
from inc_tb.frameworks.torch.weights import weight_of
from inc_tb.frameworks.traces import Slice
from inc_tb.locks import TemporaryFolder

_MARK = "inc_tb "
_record: Any = torch._C._profiler._RecordFunctionFast  # torch.profiler.record_function takes longer than small ops
_IDLE_CALLS = 50
_IDLE_RUNS = 20
_TRACE = "pt.trace.json"
_FUSED = nn.MultiheadAttention, nn.TransformerEncoderLayer
_Caller = Literal["module", "function", "node"]


class _Prepared(NamedTuple):
    inputs: dict[str, Tensor]
    positional: list[Tensor]
    named: dict[str, Tensor]


class TorchTimer:
    resolution_us = 0.001

    def __init__(self, model: Any, batch: Batch, threads: int | None = None, like: Any = None) -> None:
        if torch.autograd._profiler_enabled():
            raise UsageError("a profiler of torch is running, and there can be only one. Stop it before profiling.")
        self.traces: dict[str, bytes] = {}
        self.notes: list[str] = []
        if hasattr(model, "_orig_mod"):
            self.notes.append("timed without torch.compile, which leaves no modules to be told apart")
        self._module = opened(model)
        self._costs = _profiler_costs()
        self._recorded: list[Recorded] = []
        self._last: tuple[Any, list[Kernel]] | None = None
        with ExitStack() as stack:
            if threads is not None:
                stack.callback(torch.set_num_threads, torch.get_num_threads())
                torch.set_num_threads(threads)
            if torch.backends.mha.get_fastpath_enabled() and any(isinstance(m, _FUSED) for m in self._module.modules()):
                self.notes.append("timed without the fast path of attention, which leaves no modules to be told apart")
                stack.callback(torch.backends.mha.set_fastpath_enabled, True)
                torch.backends.mha.set_fastpath_enabled(False)
            stack.enter_context(undisturbed(self._module))
            stack.enter_context(torch.no_grad())
            leaves = open_runner(opened(like)).leaves if like is not None and like is not model else None
            runner = open_runner(self._module, leaves)
            steps = said("the model", self._module, batch, lambda: runner.trace(feeds(self._module, batch))).steps
            weights = [weight_of(step) for step in steps]
            self.is_quantized = any(s.quantization or s.is_dynamic for s in steps) or any(
                weight is not None and weight.quantization is not None for weight in weights
            )
            self._run: _TimedRun = _GraphRun(runner) if isinstance(runner, GraphRunner) else _EagerRun(runner)
            self._stack = stack.pop_all()

    def prepare(self, batch: Batch) -> _Prepared:
        inputs = feeds(self._module, batch)
        return _Prepared(inputs, *arranged(self._module, inputs))

    def run(self, prepared: Any) -> float:
        inputs, positional, named = prepared
        start = time.perf_counter()
        said("the model", self._module, inputs, lambda: self._module(*positional, **named))
        return time.perf_counter() - start

    def run_profiled(self, prepared: Any) -> float:
        clock = _Clock()
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            self.run(prepared)  # starting a profiler has emptied the caches
            start = time.perf_counter()
            said("the model", self._module, prepared.inputs, lambda: self._run.run(prepared.inputs, clock))
            took = time.perf_counter() - start
        kernels = self._run.kernels(clock)
        costs = [self._costs[caller] for caller in clock.callers]
        self._recorded.append(_recorded(profiler, kernels, costs, 1e6 * start))
        self._last = profiler, kernels
        return took

    def close(self) -> list[Recorded]:
        self._stack.close()
        if self._last is not None:
            self.traces = {_TRACE: _exported(*self._last)}
            self._last = None
        return self._recorded


class _Clock:
    """Marks calls in the profiler's trace, one after the other."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.callers: list[_Caller] = []
        self._open: Any = None

    def begin(self) -> None:
        self._open = _record(f"{_MARK}{len(self.told)}")
        self._open.__enter__()

    def end(self, told: Any, caller: _Caller = "node") -> None:
        self._open.__exit__(None, None, None)
        self.told.append(told)
        self.callers.append(caller)

    def visit(self, made: Call) -> Any:
        """The call itself is not held: what it returned would keep its memory, and the next call need more."""
        kind = f"{made.kind}_relu" if made.with_relu else made.kind
        self.end(Kernel(made.name, kind, (made.name,)), "function" if made.module is None else "module")
        return made.value

    def passed(self, module: nn.Module | None, arguments: Sequence[Any], value: Any) -> None:
        self.end(None, "function" if module is None else "module")
        was, is_now = (any(quantization_of(t) is not None for t in tensors_in(v)) for v in (list(arguments), value))
        fakes = module, getattr(module, "activation_post_process", None)  # which a QuantStub has in training
        if was != is_now or any(is_fake_quantizer(fake) for fake in fakes):
            self.told[-1] = _Conversion(type(module).__name__ if module is not None else "", not is_now)


class _Conversion(NamedTuple):
    module: str
    is_back: bool
    """To real numbers."""


class _TimedRun(Protocol):
    def run(self, inputs: Mapping[str, Tensor], clock: _Clock) -> None: ...

    def kernels(self, clock: _Clock) -> list[Kernel]:
        """One for each thing that the clock was told."""
        ...


class _GraphRun:
    def __init__(self, runner: GraphRunner) -> None:
        self._graph = TimedGraph(runner)

    def run(self, inputs: Mapping[str, Tensor], clock: _Clock) -> None:
        self._graph.run(inputs, clock)

    def kernels(self, clock: _Clock) -> list[Kernel]:
        return [self._graph.kernels[index] for index in clock.told]


class _EagerRun:
    def __init__(self, runner: EagerRunner) -> None:
        self._runner = runner

    def run(self, inputs: Mapping[str, Tensor], clock: _Clock) -> None:
        self._runner.run_timed(inputs, clock)

    def kernels(self, clock: _Clock) -> list[Kernel]:
        """What only moves values on belongs to the op before it; what quantizes them, to the op behind it."""
        ops = [told if isinstance(told, Kernel) else None for told in clock.told]
        found: list[Kernel] = []
        for i, told in enumerate(clock.told):
            before = next((op for op in reversed(ops[: i + 1]) if op is not None), None)
            behind = next((op for op in ops[i:] if op is not None), None)
            if not isinstance(told, _Conversion):
                found.append(before or behind or Kernel("moves", "moves", ()))
                continue
            near = (before or behind) if told.is_back else (behind or before)
            label = told.module or ("dequantize" if told.is_back else "quantize")
            name = f"{near.name} {label}" if near is not None else label
            found.append(Kernel(name, label, near.ops if near is not None else (), is_conversion=True))
        return found


def _recorded(profiler: Any, kernels: Sequence[Kernel], costs_us: Sequence[float], start_us: float) -> Recorded:
    events = list(profiler.events())
    marks = {event.name: event for event in events if event.name.startswith(_MARK)}
    first = min((event.time_range.start for event in marks.values()), default=0.0)  # before it the caches were filled
    moved = start_us - first
    executions, slices = [], []
    for i, (kernel, cost_us) in enumerate(zip(kernels, costs_us, strict=True)):
        event = marks[f"{_MARK}{i}"]
        begin, took = event.time_range.start + moved, event.time_range.elapsed_us()
        executions.append(Execution(kernel, str(event.thread), begin, max(0.0, took - cost_us)))
        slices.append(Slice("", str(event.thread), kernel.name, begin, took, {"type": kernel.type}))
    slices += [
        Slice("", str(event.thread), event.name, event.time_range.start + moved, event.time_range.elapsed_us())
        for event in events
        if event.name not in marks and event.time_range.start >= first
    ]
    return Recorded(executions, slices)


def _exported(profiler: Any, kernels: Sequence[Kernel]) -> bytes:
    """The profiler's own file, with the names of ops at the marks."""
    with TemporaryFolder() as folder:
        path = Path(folder, _TRACE)
        profiler.export_chrome_trace(str(path))
        written = path.read_bytes()
    return re.sub(rf'"{_MARK}(\d+)"'.encode(), lambda m: json.dumps(kernels[int(m[1])].name).encode(), written)


@cache
def _profiler_costs() -> dict[_Caller, float]:
    """How much longer the profiler says that a call takes than it does, in µs."""
    modules, functions = nn.Sequential(*(nn.ReLU() for _ in range(_IDLE_CALLS))).eval(), _Functions()
    graph = GraphRunner(fx.symbolic_trace(functions))
    with _silenced(), torch.no_grad():
        return {
            "module": _cost(modules, _EagerRun(EagerRunner(modules))),
            "function": _cost(functions, _EagerRun(EagerRunner(functions))),
            "node": _cost(graph.model, _GraphRun(graph)),
        }


def _cost(model: nn.Module, run: _TimedRun) -> float:
    whole, told, value = [], [], torch.zeros(1)
    for _ in range(_IDLE_RUNS):
        start = time.perf_counter()
        model(value)
        whole.append(1e6 * (time.perf_counter() - start) / _IDLE_CALLS)
        clock = _Clock()
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            run.run({"input": value}, clock)
        found = _recorded(profiler, run.kernels(clock), [0.0] * len(clock.told), 0.0).executions
        told.append(np.mean([execution.duration_us for execution in found]))
    # Other work on the machine only makes runs longer, so the shorter ones are nearer to the truth.
    return max(0.0, float(np.percentile(told, 25) - np.percentile(whole, 25)))


class _Functions(nn.Module):  # type: ignore[misc]
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        for _ in range(_IDLE_CALLS):
            input = torch.relu(input)  # noqa: A001
        return input


@contextmanager
def _silenced() -> Iterator[None]:
    """Unless told so when it is first used, torch's profiler writes to standard error whenever it starts or stops."""
    is_set = "KINETO_LOG_LEVEL" in os.environ
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    try:
        yield
    finally:
        if not is_set:
            del os.environ["KINETO_LOG_LEVEL"]


def name_twins(reference: Any, quantized: Any, batch: Batch) -> dict[str, list[str]]:
    adapter = TorchAdapter(reference, quantized)
    adapter.trace(batch)
    return adapter.twins()
