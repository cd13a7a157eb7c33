"""Tunings as they happen: losses that are no numbers, weights beside the file, single numbers as inputs, resumes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import inc_tb
from inc_tb.demo import load_digits
from inc_tb.tuning.attempt import Attempt
from inc_tb.tuning.strategies.named import STRATEGIES

HARD = Path("tests/data/hard.onnx").absolute()
IMAGES, LABELS, HELD_OUT = load_digits()
CALIBRATION = {"input": IMAGES[~HELD_OUT][:64]}


def accuracy(path: str) -> float:
    scores = onnxruntime.InferenceSession(path).run(None, {"input": IMAGES[HELD_OUT]})[0]
    return float((scores.argmax(axis=1) == LABELS[HELD_OUT]).mean())


def linear(folder: Path) -> Path:
    """Scores = x · w · s, with a single number s as an input and the weights in another file."""
    weights = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "product"),
        helper.make_node("Mul", ["m", "s"], ["y"], "scaled"),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 16])]
    inputs.append(helper.make_tensor_value_info("s", TensorProto.FLOAT, []))
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])]
    graph = helper.make_graph(nodes, "linear", inputs, outputs, [numpy_helper.from_array(weights, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "linear.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def test_a_loss_that_is_no_number_is_the_worst_of_all(tmp_path: Path) -> None:
    """Perplexities of ruined models are infinite; the search goes on."""

    def perplexity(path: str) -> float:
        right = accuracy(path)
        return 1 / right if right > 0.9 else math.inf

    found = inc_tb.tune(HARD, CALIBRATION, perplexity, higher_is_better=False, logdir=tmp_path, objectives=())
    assert found.met
    assert found.best is found.trials[-1]
    assert found.best.accuracy is not None
    assert found.trials[0].accuracy is None
    assert "evaluate returned inf" in found.trials[0].notes


def test_weights_beside_the_file_and_a_single_number_as_input(tmp_path: Path) -> None:
    model = linear(tmp_path)
    x = np.random.default_rng(1).normal(size=(32, 16)).astype(np.float32)
    feeds = {"x": x, "s": np.array(2.0, np.float32)}
    wanted = onnxruntime.InferenceSession(str(model)).run(None, feeds)[0]

    def closeness(path: str) -> float:
        difference = onnxruntime.InferenceSession(path).run(None, feeds)[0] - wanted
        return 1 - float(np.square(difference).mean() / np.square(wanted).mean())

    for preprocess in (True, False):
        logdir, quantizer = tmp_path / str(preprocess), inc_tb.OnnxRuntimeQuantizer(preprocess=preprocess)
        given = {"tolerance": 1e-7, "quantizer": quantizer, "logdir": logdir, "objectives": ()}
        found = inc_tb.tune(model, [feeds], closeness, **given)
        assert found.met
        assert found.best.fallback == ["product", "scaled"]
        assert not found.best.notes[1:]


def test_the_best_model_is_not_written_again_while_trials_are_repeated(tmp_path: Path) -> None:
    """A kill at that moment would leave the model of the first trial in its place."""
    first = inc_tb.tune(HARD, CALIBRATION, accuracy, logdir=tmp_path, objectives=())
    before = first.model.stat().st_mtime_ns
    again = inc_tb.tune(HARD, CALIBRATION, accuracy, logdir=tmp_path, objectives=(), resume=True)
    assert again.model.stat().st_mtime_ns == before
    assert again.evaluations == 0
    assert again.trials == first.trials
    again.model.unlink()
    inc_tb.tune(HARD, CALIBRATION, accuracy, logdir=tmp_path, objectives=(), resume=True)
    assert accuracy(str(again.model)) == first.best.accuracy


def test_a_resumed_tuning_that_goes_another_way_keeps_all_trials(tmp_path: Path, monkeypatch: object) -> None:
    def only(*kept: tuple[str, ...]) -> None:
        def strategy(tuner: object) -> object:
            for keep in kept:
                yield Attempt(inc_tb.OnnxRuntimeQuantizer().settings, keep)

        monkeypatch.setitem(STRATEGIES, "basic", strategy)  # type: ignore[attr-defined]

    only((), ("/conv1/Conv",))
    never = {"tolerance": 0, "strategy": "basic", "objectives": (), "logdir": tmp_path}
    first = inc_tb.tune(HARD, CALIBRATION, accuracy, **never)
    only((), ("/conv2/Conv",), ("/fc2/Gemm",))
    second = inc_tb.tune(HARD, CALIBRATION, accuracy, resume=True, **never)
    assert [trial.name for trial in first.trials] == ["trial-001", "trial-002"]
    assert [trial.name for trial in second.trials] == ["trial-001", "trial-003", "trial-004"]
    assert inc_tb.load(tmp_path / "trial-002").trial == first.trials[1]


def test_simulations_of_another_model_are_not_believed(tmp_path: Path) -> None:
    """The same names and data, other weights: everything but the history was left in the folder."""
    inc_tb.tune(HARD, CALIBRATION, accuracy, logdir=tmp_path / "a", objectives=())
    other = onnx.load(HARD)
    for tensor in other.graph.initializer:
        if tensor.name == "fc2.weight":
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(1.01), tensor.name))
    onnx.save(other, tmp_path / "other.onnx")
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / ".simulations").rename(tmp_path / "b" / ".simulations")
    found = inc_tb.tune(tmp_path / "other.onnx", CALIBRATION, accuracy, logdir=tmp_path / "b", objectives=())
    assert found.simulations > 5


def test_strategies_that_need_no_simulation_make_none(tmp_path: Path) -> None:
    """They are what is left for models that are too large to be simulated."""
    given = {"max_trials": 7, "objectives": (), "logdir": tmp_path}
    found = inc_tb.tune(HARD, CALIBRATION, accuracy, strategy="basic", **given)
    assert any(trial.fallback for trial in found.trials)
    assert found.simulations == 0
    assert not (tmp_path / ".simulations").exists()


def test_a_probe_that_ran_out_of_time_says_so(tmp_path: Path) -> None:
    quantizer, int8 = inc_tb.OnnxRuntimeQuantizer(), tmp_path / "int8.onnx"
    quantizer.quantize(HARD, int8, [CALIBRATION], quantizer.settings, [])
    found = inc_tb.probe(HARD, int8, CALIBRATION, budget_s=0)
    assert not found.complete
    assert any(note.startswith("0 of 10 units were probed in 0 s") for note in found.diagnosis.notes)
