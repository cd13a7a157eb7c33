"""What trials cost in time, memory and throughput, beside what they lose."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save
from onnxruntime.quantization import quantize_dynamic

import inc_tb
from inc_tb.cli import main
from inc_tb.errors import UsageError
from inc_tb.tuning.objectives import measure_memory, ratio
from tests.tuning.test_tune import CLEAN, HARD, accuracy, calibration, tune_hard
from tests.waiting import Clock


def test_every_trial_is_timed_and_its_suggestions_are_priced(tmp_path: Path) -> None:
    found = tune_hard(tmp_path, profile_runs=10)
    for trial in found.trials:
        run = inc_tb.load(tmp_path / trial.name)
        assert run.profile is not None
        assert (run.profile.runs, run.profile.samples) == (10, 1)
        assert not np.isnan(run.ops["time_fp32_us"][list(run.ops["name"]).index("/conv1/Conv")])
    first = inc_tb.load(tmp_path / found.trials[0].name).suggestions[0]
    assert sum(effect.unit == "µs" for effect in first.effects) == 1, "also of what the search has proved since"


def test_without_asking_nothing_is_timed(tmp_path: Path) -> None:
    found = tune_hard(tmp_path, max_trials=1)
    assert inc_tb.load(tmp_path / found.trials[0].name).profile is None


def test_latency_throughput_size_and_memory_are_objectives(tmp_path: Path) -> None:
    kinds = ("latency", "throughput", "size", "memory")
    found = inc_tb.tune(CLEAN, calibration(), accuracy, objectives=kinds, diagnosis_samples=0, logdir=tmp_path)
    measured = found.trials[0].objectives
    assert set(measured) == {"latency_ms", "samples_per_s", "size_kb", "memory_mb"}
    assert all(value >= 0 for value in measured.values())


def test_two_models_are_timed_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """What slows down one run slows down its neighbor: 3 times as long, however fast the machine is at the moment."""
    clock, pace, order = Clock(), iter(range(1, 1000)), []
    monkeypatch.setattr("inc_tb.tuning.objectives.time.perf_counter", lambda: clock.now)

    def slow() -> None:
        order.append("slow")
        clock.tick(3 * next(pace))

    def fast() -> None:
        order.append("fast")
        clock.tick(next(pace) - 1)

    assert ratio(slow, fast) == pytest.approx(3)
    assert order[:4] == ["slow", "fast", "slow", "fast"]


def test_memory_is_what_the_weights_take(tmp_path: Path) -> None:
    """32 MB in fp32; the runtime holds its own copy beside what it reads."""
    width, layers = 1024, 8
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.normal(size=(width, width)).astype("f"), f"w{i}") for i in range(layers)]
    nodes = [helper.make_node("MatMul", [f"t{i}", f"w{i}"], [f"t{i + 1}"], f"m{i}") for i in range(layers)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, width]) for name in ("t0", f"t{layers}")]
    graph = helper.make_graph(nodes, "wide", ends[:1], ends[1:], weights)
    fp32, int8 = tmp_path / "fp32.onnx", tmp_path / "int8.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), fp32)
    quantize_dynamic(fp32, int8)
    batch = {"t0": np.ones((1, width), np.float32)}
    large, small = measure_memory(fp32, batch), measure_memory(int8, batch)
    assert large > 32
    assert small < large / 1.5


def test_memory_elsewhere_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("inc_tb.tuning.objectives._CLEAR_REFS", tmp_path / "none")
    with pytest.raises(UsageError, match="on Linux only"):
        measure_memory(CLEAN, {"input": np.zeros((1, 1, 8, 8), np.float32)})


def test_diagnose_and_profile_in_one_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "data.npz", input=calibration()[:8])
    quantize_dynamic(HARD, tmp_path / "int8.onnx")
    arguments = [str(HARD), str(tmp_path / "int8.onnx"), "--data", str(tmp_path / "data.npz"), "--profile", "15"]
    with pytest.raises(SystemExit) as ended:
        main(["diagnose", *arguments, "--logdir", str(tmp_path / "log"), "--json"])
    assert ended.value.code in (0, None)
    told = json.loads(capsys.readouterr().out)
    by_name = {op["name"]: op for op in told["ops"]}
    assert by_name["/conv2/Conv"]["time_int8_us"] > 0
    assert by_name["/Relu"]["time_fp32_us"] is None
    assert told["profile"]["runs"] == 15
    run = inc_tb.load(tmp_path / "log" / "int8")
    assert run.profile is not None
    assert run.ops["convert_us"][list(run.ops["name"]).index("/conv2/Conv")] >= 0
