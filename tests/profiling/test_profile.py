"""Profiles of real models: what they hold, and what is left behind. Whether times are right: benchmarks/times.py."""

from __future__ import annotations

import gc
import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import inc_tb
from inc_tb import profile as profile_function
from inc_tb.frameworks.protocols import Execution, Kernel, Recorded, Timer
from inc_tb.profiling.profile import Profile
from tests.digits import DATA, digits
from tests.frameworks import onnx_zoo as zoo

SIZE = 64


def cnn() -> zoo.Net:
    net = zoo.Net(1)
    x = net.op("Relu", "relu1", net.conv("conv1", net.input("x", "n", 3, SIZE, SIZE), 3, 32))
    x = net.op("Relu", "relu2", net.conv("conv2", x, 32, 32))
    x = net.op("Relu", "relu3", net.conv("conv3", x, 32, 32))
    net.output(net.gemm("fc", net.op("Flatten", "flat", net.op("GlobalAveragePool", "gap", x)), 32, 10))
    return net


def transformer() -> zoo.Net:
    net = zoo.Net(2, 20)
    x = net.input("x", "n", 64, 128)
    for i in range(2):
        q, k, v = (net.linear(f"{i}/{name}", x, 128, 128) for name in "qkv")
        scores = net.op("MatMul", f"{i}/scores", q, net.op("Transpose", f"{i}/kt", k, perm=[0, 2, 1]))
        mixed = net.op("MatMul", f"{i}/context", net.op("Softmax", f"{i}/softmax", scores, axis=-1), v)
        x = net.op("Add", f"{i}/skip1", x, net.linear(f"{i}/proj", mixed, 128, 128))
        up = net.op("Relu", f"{i}/relu", net.linear(f"{i}/up", x, 128, 512))
        x = net.op("Add", f"{i}/skip2", x, net.linear(f"{i}/down", up, 512, 128))
    net.output(x)
    return net


def _profiled(net: zoo.Net, folder: Path, make: Callable[[Path, Any], Path], **more: Any) -> Profile:
    feeds = zoo.data(net, 4)
    path = net.save(folder)
    return inc_tb.profile(path, [feeds], quantized=make(path, feeds), threads=1, **more)


@pytest.mark.parametrize(
    ("net", "make"),
    [(cnn, lambda p, f: zoo.static(p, f, act="QUInt8")), (transformer, lambda p, f: zoo.dynamic(p))],
    ids=["CNN", "transformer"],
)
def test_what_ops_do_not_account_for_is_the_last_row(tmp_path: Path, net: Callable[[], zoo.Net], make: Any) -> None:
    found = _profiled(net(), tmp_path, make, runs=6)
    for side in ("fp32", "int8"):
        total, rest = getattr(found.total, f"{side}_us"), getattr(found.rows[-1], f"{side}_us")
        assert rest == pytest.approx(max(0.0, (1 - found.accounted[side]) * total), abs=1e-6)
    assert found.rows[-1].op == ""
    assert found.overhead.keys() == {"fp32", "int8"}
    assert any("profiler takes" in note for note in found.notes)
    assert {op for row in found.rows for op in (row.op, *row.ops)} == {"", *(node.name for node in net().nodes)}
    assert (found.framework, found.runs, found.threads, found.samples) == ("onnx", 6, 1, 4)


class _Made:
    """A timer with times made up: each convolution as told, and some noise."""

    is_quantized = False
    notes: tuple[str, ...] = ()
    resolution_us = 0.001

    def __init__(self, times_us: Mapping[str, float], seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._times_us = times_us
        self._runs: list[Recorded] = []
        self.traces: dict[str, bytes] = {}

    def prepare(self, batch: Any) -> Any:
        return batch

    def run(self, prepared: Any) -> float:
        return sum(self._drawn().values()) / 1e6

    def run_profiled(self, prepared: Any) -> float:
        at, executions = 0.0, []
        for op, took in self._drawn().items():
            executions.append(Execution(Kernel(op, "Conv", (op,)), "main", at, took))
            at += took
        self._runs.append(Recorded(executions, []))
        return at / 1e6

    def close(self) -> list[Recorded]:
        return self._runs

    def _drawn(self) -> dict[str, float]:
        return {op: us * self._random.uniform(0.98, 1.02) for op, us in self._times_us.items()}


def test_ops_that_take_longer_are_told_from_those_that_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through all of profile(), with times made up; real ones are in benchmarks/times.py."""
    times = {"clean": {"a": 50.0, "b": 100.0, "c": 20.0}, "hard": {"a": 50.0, "b": 400.0, "c": 20.0}}
    seeds = itertools.count()

    def opened(model: Any, batch: Any, threads: int | None = None, like: Any = None) -> Any:
        return _Made(times[Path(model).stem], next(seeds))

    module = sys.modules["inc_tb.profiling.run"]
    monkeypatch.setattr(module, "open_timer", opened)
    monkeypatch.setattr(module, "name_twins", lambda *_: {})
    found = inc_tb.profile(DATA / "clean.onnx", {"input": digits(1)}, quantized=DATA / "hard.onnx", runs=40)
    rows = {row.op: row for row in found.rows}
    assert {op: row.differs for op, row in rows.items() if op} == {"a": False, "b": True, "c": False}
    assert rows["b"].difference_us == pytest.approx(300, rel=0.05)
    assert found.total.differs
    assert [row.op for row, _, _ in found.by_time() if row.op] == ["b", "a", "c"]
    assert found.accounted == {"fp32": pytest.approx(1, abs=0.05), "int8": pytest.approx(1, abs=0.05)}


class _Spy:
    """Takes down what is asked of timers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[int | None] = []
        self.batches: list[int] = []
        self.was_collecting: list[bool] = []
        module = sys.modules["inc_tb.profiling.run"]
        real = module.open_timer

        def opened(model: Any, batch: Any, threads: int | None = None, like: Any = None) -> Timer:
            timer: Any = real(model, batch, threads, like)
            self.threads.append(threads)
            run = timer.run

            def noted(prepared: Any) -> Any:
                self.batches.append(len(prepared["input"]))
                self.was_collecting.append(gc.isenabled())
                return run(prepared)

            timer.run = noted
            return cast("Timer", timer)

        monkeypatch.setattr(module, "open_timer", opened)


def test_batches_take_turns_threads_are_honoured_and_nothing_is_cleaned_up_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spy = _Spy(monkeypatch)
    batches = [{"input": digits(size)} for size in (1, 2, 3)]
    found = inc_tb.profile(DATA / "hard.onnx", batches, runs=6, warmup=0, threads=2)
    assert spy.batches == [1, 2, 3, 1, 2, 3]
    assert set(spy.threads) == {2}
    assert not any(spy.was_collecting)
    assert gc.isenabled()
    assert found.samples is None  # they differ
    assert found.threads == 2


def test_the_first_batches_are_held_and_no_more_are_read() -> None:
    read = []

    def endless() -> Any:
        while True:
            read.append(1)
            yield {"input": digits(1)}

    assert inc_tb.profile(DATA / "hard.onnx", endless(), runs=1).runs == 1
    assert len(read) <= 9


def test_gc_stays_off_where_it_was_off() -> None:
    gc.disable()
    try:
        inc_tb.profile(DATA / "hard.onnx", {"input": digits(1)}, runs=1)
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.fixture
def nothing_frozen() -> Iterator[None]:
    """As outside of the tests, which keep Python from looking through all of them again and again."""
    gc.unfreeze()
    yield
    gc.freeze()


def test_python_looks_through_what_was_there_before_once_and_again_afterwards(nothing_frozen: None) -> None:
    counts = []

    def stopped(done: int, of: int) -> None:
        counts.append(gc.get_freeze_count())
        raise KeyboardInterrupt

    inc_tb.profile(DATA / "hard.onnx", {"input": digits(1)}, runs=1)
    assert gc.get_freeze_count() == 0
    with pytest.raises(KeyboardInterrupt):
        inc_tb.profile(DATA / "hard.onnx", {"input": digits(1)}, runs=1, progress=stopped)
    assert counts[0] > 0
    assert gc.get_freeze_count() == 0


def test_what_somebody_else_has_frozen_stays_so(nothing_frozen: None) -> None:
    gc.freeze()
    inc_tb.profile(DATA / "hard.onnx", {"input": digits(1)}, runs=1)
    assert gc.get_freeze_count() > 0


def test_progress_goes_up_to_the_runs_and_folders_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen: list[tuple[int, int]] = []
    inc_tb.profile(DATA / "hard.onnx", {"input": digits(1)}, runs=23, progress=lambda done, of: seen.append((done, of)))
    assert [of for _, of in seen] == [23] * len(seen)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1][0] == 23
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_no_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def interrupted(done: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        inc_tb.profile(DATA / "hard.onnx", {"input": digits(1)}, runs=20, progress=interrupted)
    gc.collect()
    assert gc.isenabled()
    assert list(tmp_path.iterdir()) == []


def test_one_run_is_enough_for_times_and_too_little_for_differences() -> None:
    found = inc_tb.profile(DATA / "hard.onnx", {"input": digits(1)}, quantized=DATA / "hard.onnx", runs=1, warmup=0)
    assert all(row.differs is None for row in found.rows)
    assert all(row.fp32_us is not None for row in found.rows)
    json.dumps(found.to_json(), allow_nan=False)


def test_traces_hold_the_last_runs_of_both_models(tmp_path: Path) -> None:
    found = inc_tb.profile(DATA / "hard.onnx", {"input": digits(1)}, quantized=DATA / "hard.onnx", runs=9, warmup=0)
    assert {s.model for s in found.slices} == {"fp32", "int8"}
    for side in ("fp32", "int8"):
        assert sum(s.name == "model_run" for s in found.slices if s.model == side) == 3
    assert {"/conv1/Conv"} <= {node.name for node in found.graph}


def test_profile_is_the_public_function() -> None:
    assert profile_function is inc_tb.profile
    assert callable(inc_tb.profile)
