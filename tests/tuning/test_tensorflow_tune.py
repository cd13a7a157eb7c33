"""Tuning TensorFlow models: what it finds, what it leaves, and that all of it can be used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inc_tb import TensorFlowQuantizer, Tuned, tune
from inc_tb.errors import ModelError, UsageError
from inc_tb.frameworks.tensorflow.quiet import quiet
from inc_tb.frameworks.tensorflow.source import open_source
from inc_tb.tuning.history import find_trial
from inc_tb.tuning.loop import rebuild
from tests.frameworks import tensorflow_zoo as zoo
from tests.tensorflow_defects import (
    HARD,
    HARD_CULPRITS,
    HARD_PAD,
    Array,
    accuracy,
    forms,
    images,
    keras,
    layers,
    made,
    outputs,
    weights_by_op,
)

CALIBRATION = 128
per_channel_or_tensor = pytest.mark.parametrize("per_channel", [False, True], ids=["per tensor", "per channel"])


def tune_hard(logdir: Path, *, per_channel: bool = True, **options: Any) -> Tuned:
    tool = TensorFlowQuantizer(per_channel=per_channel)
    return tune(HARD, images(CALIBRATION), accuracy, quantizer=tool, logdir=logdir, **options)


Once = Callable[[bool], tuple[Tuned, Path]]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """One tuning each, for all tests that only look at it."""

    @cache
    def once(per_channel: bool) -> tuple[Tuned, Path]:
        folder = tmp_path_factory.mktemp("tuned") / "log"
        return tune_hard(folder, per_channel=per_channel), folder

    return once


def representative(samples: Array) -> Callable[[], Iterator[list[Array]]]:
    return lambda: ([sample[None]] for sample in samples)


def run_recipe(text: str, **names: Any) -> dict[str, Any]:
    with quiet():
        exec(text, names)
    return names


# What is found


@per_channel_or_tensor
def test_the_hard_model_needs_its_two_convolutions_in_float(tuned: Once, per_channel: bool) -> None:
    found, _ = tuned(per_channel)
    assert found.met
    assert set(HARD_CULPRITS) <= set(found.best.fallback) <= {*HARD_CULPRITS, HARD_PAD}
    assert found.baseline > 0.98
    assert found.best.accuracy is not None
    assert found.best.accuracy >= found.target
    assert found.trials[0].accuracy is not None
    assert found.trials[0].accuracy < (0.95 if per_channel else 0.3)
    assert len(found.trials) <= 4


@per_channel_or_tensor
def test_the_simulation_was_the_real_thing(tuned: Once, per_channel: bool) -> None:
    found, _ = tuned(per_channel)
    assert found.comparison["simulated"].error == pytest.approx(found.comparison["real"].error, rel=0.05)


def test_a_scale_a_channel_is_tried_before_fp32(tuned: Once) -> None:
    found, _ = tuned(False)
    assert [t.config["per_channel"] for t in found.trials] == [False, True, True]
    assert found.trials[1].notes == ["instead of fp32: a scale for each channel of the weights"]


@per_channel_or_tensor
def test_the_best_model_is_a_file_with_the_accuracy_of_its_trial(tuned: Once, per_channel: bool) -> None:
    found, folder = tuned(per_channel)
    assert found.model == found.quantized == folder / "best_model.tflite"
    assert accuracy(str(found.model)) == found.best.accuracy
    types = weights_by_op(found.model.read_bytes())
    floats = {name for name, dtype in types.items() if dtype == "float32"}
    assert {part for name in floats for part in name.split(";")} >= set(HARD_CULPRITS)
    assert len(floats) == 2
    assert set(types.values()) == {"float32", "int8"}


@per_channel_or_tensor
def test_the_recipe_makes_the_very_same_file(tuned: Once, per_channel: bool) -> None:
    found, folder = tuned(per_channel)
    made_again = run_recipe(found.recipe, representative_dataset=representative(images(CALIBRATION)))
    assert made_again["model_input"] == str(folder / "prepared_model.pb")
    assert made_again["content"] == found.model.read_bytes()


def test_latency_and_size_are_recorded(tuned: Once) -> None:
    found, _ = tuned(True)
    for trial in found.trials:
        assert set(trial.objectives) == {"latency_ms", "size_kb"}
        assert trial.objectives["latency_ms"] > 0
    assert found.best.objectives["size_kb"] == found.model.stat().st_size / 1000


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["basic", "mse", "mse_v2"])
def test_strategies_without_simulation_get_there_too(strategy: str, tmp_path: Path) -> None:
    """At last by everything in float."""
    found = tune_hard(tmp_path, strategy=strategy, objectives=(), diagnosis_samples=0, max_trials=40)
    assert found.met
    assert set(HARD_CULPRITS) <= set(found.best.fallback)
    assert [t.name for t in found.trials if t.accuracy is None] == []


@pytest.mark.parametrize("name", ["outlier channel and pool", "outlier channel and batch norm", "residual"])
def test_the_search_gets_past_settings_that_help_a_little(name: str, tmp_path: Path) -> None:
    """16 bits for all activations would, and TFLite keeps no op in float beside them."""
    case = made(name)
    options: dict[str, Any] = {"tolerance": 0.01, "relative": False, "objectives": (), "logdir": tmp_path}
    found = tune(case.model, case.data, nearness(name), **options)
    assert found.met
    assert set(case.culprits) <= set(found.best.fallback)
    assert [t.name for t in found.trials if t.accuracy is None] == []


# What is left on disk


def test_a_resumed_tuning_evaluates_nothing_again(tmp_path: Path) -> None:
    first = tune_hard(tmp_path, max_trials=1, objectives=())
    assert not first.met
    second = tune_hard(tmp_path, objectives=(), resume=True)
    assert second.met
    assert second.trials[0] == first.trials[0]
    third = tune_hard(tmp_path, objectives=(), resume=True)
    assert third.evaluations == 0
    assert third.best == second.best
    assert third.recipe == second.recipe


def test_a_trial_is_rebuilt_from_its_record(tuned: Once, tmp_path: Path) -> None:
    found, folder = tuned(False)
    trial, _ = find_trial(folder, found.best.name)
    made_again = rebuild(HARD, images(CALIBRATION), trial, tmp_path / "again.tflite")
    assert made_again.read_bytes() == found.model.read_bytes()
    first = rebuild(HARD, images(CALIBRATION), found.trials[0], tmp_path / "first.tflite")
    assert accuracy(str(first)) == found.trials[0].accuracy


# Every form of a model


def nearness(case_name: str) -> Callable[[str], float]:
    """How near the outputs are to fp32's."""
    case = made(case_name)
    own = np.asarray(case.model(case.images))

    def evaluate(path: str) -> float:
        lost = np.square(outputs(Path(path).read_bytes(), case.images) - own).sum() / np.square(own - own.mean(0)).sum()
        return float(1 - min(lost, 1))

    return evaluate


@pytest.mark.parametrize("form", ["object", ".keras", "SavedModel", "frozen graph"])
def test_every_form_of_a_model(form: str, tmp_path: Path) -> None:
    case = made("outlier channel")
    model = forms(case, tmp_path)[form]
    evaluate = nearness("outlier channel")
    options: dict[str, Any] = {"tolerance": 0.01, "relative": False, "objectives": ("size",)}
    found = tune(model, case.data, evaluate, logdir=tmp_path / "log", **options)
    assert found.baseline > 0.99999
    assert found.met
    assert {name.removeprefix("StatefulPartitionedCall/") for name in found.best.fallback} == set(case.culprits)
    assert evaluate(str(found.model)) == found.best.accuracy
    made_again = run_recipe(found.recipe, representative_dataset=representative(case.images))
    assert made_again["content"] == found.model.read_bytes()
    assert rebuild(model, case.data, found.best, tmp_path / "again.tflite").read_bytes() == found.model.read_bytes()


def test_several_inputs_and_results_keep_their_names_and_order(tmp_path: Path) -> None:
    with quiet():
        a, b = keras.Input((8,), name="zebra"), keras.Input((4,), name="apple")
        x = layers.Concatenate()([layers.Dense(8, name="p")(a), layers.Dense(8, name="q")(b)])
        first = layers.Dense(3, name="first")(x)
        model = keras.Model([a, b], [first, layers.Dense(5, name="second")(first)], name="net")
    rng = np.random.default_rng(0)
    data = {"zebra": rng.normal(size=(32, 8)).astype(np.float32), "apple": rng.normal(size=(32, 4)).astype(np.float32)}
    shapes = []

    def evaluate(path: str) -> float:
        with quiet():
            interpreter = zoo.tf.lite.Interpreter(path)
        interpreter.allocate_tensors()
        shapes.append(
            [int(d["shape"][-1]) for d in (*interpreter.get_input_details(), *interpreter.get_output_details())]
        )
        return 1.0

    found = tune(model, data, evaluate, logdir=tmp_path, objectives=())
    assert found.met
    assert shapes == [[8, 4, 3, 5]] * 2
    rows = [list(row) for row in zip(*(np.split(a, 32) for a in data.values()), strict=True)]
    made_again = run_recipe(found.recipe, representative_dataset=lambda: iter(rows))
    assert made_again["content"] == found.model.read_bytes()


# quantize_saved_model


@pytest.fixture(scope="module")
def saved_tuning(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tuned, Path, list[Any]]:
    case = made("wide input and elu")
    own = np.asarray(case.model(case.images))
    seen = []

    def evaluate(loaded: Any) -> float:
        seen.append(loaded)
        (result,) = loaded.signatures["serving_default"](img=zoo.tf.constant(case.images)).values()
        lost = np.square(result.numpy() - own).sum() / np.square(own - own.mean(0)).sum()
        return float(1 - min(lost, 1))

    folder = tmp_path_factory.mktemp("saved") / "log"
    tool = TensorFlowQuantizer(approach="saved-model")
    options: dict[str, Any] = {"tolerance": 0.02, "relative": False, "max_trials": 6}
    return tune(case.model, case.data, evaluate, logdir=folder, quantizer=tool, **options), folder, seen


def float_weights(model: Path) -> dict[tuple[int, ...], str]:
    """Shape -> type, of everything that has more numbers than a bias."""
    source = open_source(model)
    graph_def = source.graph_def  # type: ignore[union-attr]
    arrays = [zoo.constant(graph_def, n.name) for n in graph_def.node if n.op == "Const"]
    return {a.shape: a.dtype.name for a in arrays if a.ndim > 1 and a.size > 100}


@pytest.mark.slow
def test_quantize_saved_model_keeps_the_named_op(saved_tuning: tuple[Tuned, Path, list[Any]]) -> None:
    found, folder, seen = saved_tuning
    assert found.met
    assert found.best.fallback == ["net_1/first_1/convolution"]
    assert found.trials[0].accuracy is not None
    assert found.trials[0].accuracy < 0.9
    assert all("serving_default" in model.signatures for model in seen)
    assert found.model == folder / "best_model"
    assert float_weights(found.model) == {
        (3, 3, 2, 8): "float32", (3, 3, 8, 8): "int8", (72, 10): "int8",
    }  # fmt: skip
    assert found.best.objectives["size_kb"] > 1
    assert found.best.objectives["latency_ms"] > 0


@pytest.mark.slow
def test_a_saved_model_is_rebuilt_and_its_recipe_runs(
    saved_tuning: tuple[Tuned, Path, list[Any]], tmp_path: Path
) -> None:
    found, _, _ = saved_tuning
    case = made("wide input and elu")
    again = rebuild(case.model, case.data, found.best, tmp_path / "again")
    assert float_weights(again) == float_weights(found.model)
    saved = zoo.export(case.model, tmp_path / "fp32")
    run_recipe(
        found.recipe, saved_model=str(saved), target=str(tmp_path / "pasted"), representative_dataset=[case.data]
    )
    assert float_weights(tmp_path / "pasted") == float_weights(found.model)


# Bad settings


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"approach": "onnx"}, "approach='onnx' was given; expected one of"),
        ({"activation_type": "int4"}, "activation_type='int4' was given; expected one of"),
        ({"per_channel": "yes"}, "per_channel='yes' was given; expected one of"),
        ({"approach": "saved-model", "activation_type": "int16"}, "needs approach='tflite'"),
    ],
)
def test_bad_settings_are_one_clear_line(settings: Mapping[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as raised:
        TensorFlowQuantizer(**settings)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_quantized_model_is_not_quantized_again(tmp_path: Path) -> None:
    lite = tmp_path / "model.tflite"
    lite.write_bytes(zoo.lite(zoo.hard(), "int8", images()))
    for model, words in (
        (lite, "cannot be quantized again"),
        (zoo.DATA / "inc26_hard_int8.pb", "is quantized already"),
    ):
        with pytest.raises(ModelError, match=words) as raised:
            tune(model, images(), accuracy, logdir=tmp_path / "log")
        assert "\n" not in str(raised.value)


def test_16_bits_keep_no_op(tmp_path: Path) -> None:
    tool = TensorFlowQuantizer(activation_type="int16")
    ready = tool.prepare(HARD, tmp_path)
    batch = [{"input": images(16)}]
    tool.quantize(ready, tmp_path / "a.tflite", batch, tool.settings, [])
    assert (tmp_path / "a.tflite").stat().st_size > 1000
    given = {"model_input": str(ready), "representative_dataset": representative(images(16))}
    assert run_recipe(tool.recipe(tool.settings, []), **given)["content"] == (tmp_path / "a.tflite").read_bytes()
    with pytest.raises(ModelError, match="keeps no op in fp32 where activations have 16 bits"):
        tool.quantize(ready, tmp_path / "b.tflite", batch, tool.settings, [HARD_CULPRITS[0]])
    assert all(settings["activation_type"] == "int8" for settings in tool.variants())


def test_a_failing_function_is_told_what_it_gets(tmp_path: Path) -> None:
    def broken(path: str) -> float:
        raise KeyError(Path(path).suffix)

    with pytest.raises(UsageError, match=r"'\.tflite'.*the path of a \.tflite file") as raised:
        tune(HARD, images(), broken, logdir=tmp_path)
    assert "\n" not in str(raised.value)
