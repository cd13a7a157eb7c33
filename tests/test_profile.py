"""Profiles of models that take some milliseconds: what is accounted for, what is noise, and what is left behind."""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import inc_tb
from inc_tb import profile as profile_function
from inc_tb.capture import Timer
from inc_tb.timing import Profile
from tests.adapters import onnx_zoo as zoo
from tests.digits import DATA, digits

SIZE = 64


def cnn(wide: int = 32, seed: int = 1) -> zoo.Net:
    """Three convolutions of the same size; `wide` channels in the middle of the second and the third."""
    net = zoo.Net(seed)
    x = net.op("Relu", "relu1", net.conv("conv1", net.input("x", "n", 3, SIZE, SIZE), 3, 32))
    x = net.op("Relu", "relu2", net.conv("conv2", x, 32, wide))
    x = net.op("Relu", "relu3", net.conv("conv3", x, wide, 32))
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
def test_ops_account_for_the_whole_run(tmp_path: Path, net: Callable[[], zoo.Net], make: Any) -> None:
    for _ in range(3):  # other work on the machine may come between the runs with and without the profiler
        found = _profiled(net(), tmp_path, make, runs=30)
        if all(0.85 <= share <= 1.15 for share in found.accounted.values()):
            break
    for side in ("fp32", "int8"):
        assert 0.85 <= found.accounted[side] <= 1.15
        total, rest = getattr(found.total, f"{side}_us"), getattr(found.rows[-1], f"{side}_us")
        assert rest == pytest.approx(max(0.0, (1 - found.accounted[side]) * total), abs=1e-6)
    assert found.rows[-1].op == ""
    assert found.total.differs is not None
    assert found.overhead.keys() == {"fp32", "int8"}
    assert any("profiler takes" in note for note in found.notes)
    assert {op for row in found.rows for op in (row.op, *row.ops)} == {"", *(node.name for node in net().nodes)}
    assert (found.framework, found.runs, found.threads, found.samples) == ("onnx", 30, 1, 4)


def test_the_slowest_op_is_the_one_with_the_most_work(tmp_path: Path) -> None:
    found = inc_tb.profile(cnn(64).save(tmp_path), [zoo.data(cnn(), 1)], runs=10, threads=1)
    by_time = [row.op for row, _, _ in found.by_time() if row.op]
    assert set(by_time[:2]) == {"conv2", "conv3"}
    assert (found.fp32 != "", found.int8) == (True, "")
    assert found.total.int8_us is None


@pytest.mark.slow
def test_the_same_model_twice_has_no_op_that_differs(tmp_path: Path) -> None:
    """The ten repetitions that are asked for are in benchmarks/times.py."""
    path, copy = cnn().save(tmp_path), cnn().save(tmp_path, "copy.onnx")
    feeds = zoo.data(cnn(), 1)
    told_apart = 0
    for _ in range(3):
        found = inc_tb.profile(path, [feeds], quantized=copy, threads=1)
        told_apart += any(row.differs for row in found.rows)
    assert told_apart <= 1


def test_a_convolution_that_is_four_times_as_wide_is_found(tmp_path: Path) -> None:
    """Planted in the quantized model; the rest of it is the same, and so are the first and the last layer."""
    net = cnn(32)
    path, wider = net.save(tmp_path), tmp_path / "wider.onnx"
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if tensor.name in ("conv2.w", "conv2.b"):
            values = np.concatenate([values] * 4)
        if tensor.name == "conv3.w":
            values = np.concatenate([values / 4] * 4, axis=1)
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values), tensor.name))
    onnx.save(model, wider)
    found = inc_tb.profile(path, [zoo.data(net, 2)], quantized=wider, threads=1, runs=40)
    rows = {row.op: row for row in found.rows}
    for row in (rows["conv2"], rows["conv3"]):
        assert row.differs
        assert (row.difference_us or 0.0) > 0
        assert (row.int8_us or 0.0) > 2 * (row.fp32_us or 0.0) > 0
    assert found.total.differs


class _Spy:
    """Takes down what is asked of timers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[int | None] = []
        self.batches: list[int] = []
        self.was_collecting: list[bool] = []
        module = sys.modules["inc_tb.profile"]
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
