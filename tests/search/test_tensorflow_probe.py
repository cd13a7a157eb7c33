"""Probing TensorFlow models: the simulation is the model, for any subset, and the culprit is found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import inc_tb
from inc_tb import TensorFlowQuantizer
from inc_tb.errors import ModelError
from inc_tb.frameworks.models import open_results, open_switches
from inc_tb.frameworks.tensorflow.quiet import quiet
from inc_tb.search.simulation import Simulation
from inc_tb.search.smallest import HEALTHY
from tests.frameworks import tensorflow_nets as nets
from tests.frameworks import tensorflow_zoo as zoo
from tests.tensorflow_defects import (
    HARD,
    HARD_CULPRITS,
    HARD_PAD,
    KINDS,
    Array,
    forms,
    images,
    keras,
    layers,
    made,
    outputs,
)

LAST_DIGITS = 1e-6
AGREES = 0.05
"""How far a simulated error may be from the real one, where there is one to speak of."""
FEW_STEPS = 4
"""Of the output's grid: kernels of whole numbers round once more between their steps than the simulation does."""


# The simulation is the model


class Pair(NamedTuple):
    reference: Any
    quantized: Any
    samples: Array

    @property
    def simulation(self) -> Simulation:
        switches = open_switches(self.reference, self.quantized)
        return Simulation(switches, [{switches.inputs[0].name: self.samples}], samples=len(self.samples))


def all_on(simulation: Simulation) -> Array:
    return simulation.model.run(simulation.batches[0], simulation.sites_without(())).results[0]


def test_scores_are_found_behind_a_reshape() -> None:
    inputs = keras.Input((6,), name="x")
    chances = layers.Softmax(name="chances")(layers.Dense(5, name="fc")(inputs))
    model = keras.Model(inputs, layers.Reshape((5, 1), name="tall")(chances))
    samples = np.random.default_rng(0).normal(size=(32, 6)).astype(np.float32)
    simulation = Pair(model, zoo.lite(model, "int8", samples), samples).simulation
    found = simulation.model.run(simulation.batches[0], ())
    kernel, bias = (np.asarray(w) for w in model.get_layer("fc").weights)
    np.testing.assert_allclose(found.scores[0], samples @ kernel + bias, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.results[0], model(samples), rtol=1e-5)


def steps(simulated: Array, real: Array) -> float:
    """How far apart two results are at most, in 255th parts of their range."""
    return float(np.abs(simulated - real).max() / np.ptp(real) * 255)


@cache
def hard_lite(kind: str) -> bytes:
    return zoo.lite(zoo.hard(), kind, images())


def hard_fake_quantized() -> Any:
    """As by training with fake quantization: every result and all weights, each with one range."""
    graph = zoo.hard()
    results = [
        "input", "v0/cg/conv0/Relu", "v0/cg/conv1/Relu", "v0/dw/Relu", "v0/pw/BiasAdd", "v0/add_relu",
        "v0/cg/conv5/Relu", "v0/avgpool", "v0/fc1/Relu", "v0/fc2/BiasAdd",
    ]  # fmt: skip
    found = {name: zoo.fetch(graph, name, {"input": images()}) for name in results}
    rounded = {name: zoo.fake_quant(min(0, a.min()), max(0, a.max())) for name, a in found.items()}
    weights = [n.name for n in graph.node if n.op == "Const" and n.name.endswith(("kernel", "MatMul/b"))]
    largest = {name: np.abs(zoo.constant(graph, name)).max() for name in weights}
    rounded |= {name: zoo.fake_quant(-end, end, narrow=True) for name, end in largest.items()}
    return zoo.rewritten(graph, rounded)


def dense_net() -> Any:
    keras.utils.set_random_seed(0)
    x = given = keras.Input((6, 12), name="x")
    x = layers.Dense(32, activation="relu", name="a")(x)
    x = layers.Dense(8, use_bias=False, name="b")(x)
    return keras.Model(given, layers.Dense(5, name="c")(layers.Flatten()(x)), name="net")


def keras_int8() -> Pair:
    with quiet():
        own, quantized = dense_net(), dense_net()
        quantized.quantize("int8")
    return Pair(own, quantized, np.random.default_rng(0).normal(size=(64, 6, 12)).astype(np.float32))


HARD_FORMS: dict[str, Callable[[], Any]] = {
    "TFLite, one scale a tensor": lambda: hard_lite("tensor"),
    "TFLite, one scale a channel": lambda: hard_lite("int8"),
    "TFLite, whole numbers at both ends": lambda: hard_lite("full"),
    "TFLite, 16 bits": lambda: hard_lite("16x8"),
    "TFLite, dynamic": lambda: hard_lite("dynamic"),
    "fake quantization": hard_fake_quantized,
    "Neural Compressor": lambda: zoo.DATA / "inc26_hard_int8.pb",
}


@pytest.mark.parametrize("form", HARD_FORMS)
def test_all_off_is_fp32(form: str) -> None:
    simulation = Pair(HARD, HARD_FORMS[form](), images()).simulation
    own = zoo.fetch(zoo.hard(), "logits", {"input": images()})
    np.testing.assert_allclose(simulation.results[0][0], own, rtol=LAST_DIGITS, atol=LAST_DIGITS * np.abs(own).max())


@pytest.mark.parametrize("form", HARD_FORMS)
def test_all_on_is_as_wrong_as_the_real_model(form: str) -> None:
    """It loses up to all of its accuracy, so single results may differ by more than a few steps."""
    found = Pair(HARD, HARD_FORMS[form](), images()).simulation.compare()
    assert found["real"].error > 0.05
    assert found["simulated"].error == pytest.approx(found["real"].error, rel=AGREES)


def test_fake_quantization_and_dynamic_ranges_are_simulated_exactly() -> None:
    for pair in (keras_int8(), Pair(HARD, hard_lite("dynamic"), images())):
        simulation = pair.simulation
        assert simulation.model.units
        real = simulation.model.run_real(simulation.batches[0])[0]
        assert steps(all_on(simulation), real) < 1


@pytest.mark.parametrize("op_set", ["TF", "UNIFORM_QUANTIZED", "XLA"])
def test_quantize_saved_model(op_set: str, tmp_path: Path) -> None:
    model, samples = zoo.keras_net(), zoo.keras_images(64)
    saved = zoo.export(model, tmp_path / "fp32")
    quantized = zoo.quantize_saved(saved, tmp_path / "int8", op_set, [{"img": samples}])
    simulation = Pair(saved, quantized, samples).simulation
    assert {"net_1/conv0_1/convolution", "net_1/pw_1/convolution", "net_1/fc_1/MatMul"} <= {
        unit.name for unit in simulation.model.units
    }
    np.testing.assert_allclose(simulation.results[0][0], np.asarray(model(samples)), atol=LAST_DIGITS)
    assert steps(all_on(simulation), simulation.model.run_real(simulation.batches[0])[0]) < 2


@pytest.mark.parametrize("name", ["mobilenet_v2", "unet_upsampling", "separable", "mlp"])
def test_healthy_networks_are_a_few_steps_from_the_real_model(name: str) -> None:
    model = nets.built(name)
    shape = (16, *model.inputs[0].shape[1:])
    samples = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    content = nets.to_lite(model, "int8", {model.inputs[0].name: samples})
    simulation = Pair(model, content, samples).simulation
    grid = next(t for t in zoo_tensors(content) if t["name"].startswith("StatefulPartitionedCall"))
    step = float(grid["quantization"][0]) or float(np.ptp(simulation.results[0][0])) / 255
    np.testing.assert_allclose(simulation.results[0][0], np.asarray(model(samples)), atol=LAST_DIGITS)
    for plain in (False, True):
        real = outputs(content, samples, plain=plain)
        assert np.abs(all_on(simulation) - real).max() <= FEW_STEPS * step


def zoo_tensors(content: bytes) -> list[dict[str, Any]]:
    with quiet():
        return list(zoo.tf.lite.Interpreter(model_content=content).get_tensor_details())


# … for any subset


class Reconverted(NamedTuple):
    """A model that TFLite quantizes with any ops in float, and its simulation."""

    quantize: Callable[[Sequence[str]], bytes]
    simulation: Simulation
    samples: Array

    @property
    def units(self) -> list[str]:
        return [unit.name for unit in self.simulation.model.units]

    def simulated(self, keep: Sequence[str]) -> Array:
        sites = self.simulation.sites_without(keep)
        return self.simulation.model.run(self.simulation.batches[0], sites).results[0]

    def real(self, keep: Sequence[str]) -> Array:
        return outputs(self.quantize(keep), self.samples, plain=True)

    def error(self, result: Array) -> float:
        return self.simulation.compared([[result]]).error


def reconverted(model: Any, samples: Array, folder: Path, *, per_channel: bool) -> Reconverted:
    tool = TensorFlowQuantizer(per_channel=per_channel)
    ready = tool.prepare(model, folder)
    batch = {open_switches_inputs(ready): samples}
    target = folder / "quantized.tflite"

    def quantize(keep: Sequence[str]) -> bytes:
        tool.quantize(ready, target, [batch], tool.settings, keep)
        return target.read_bytes()

    simulation = Simulation(open_switches(ready, quantize(())), [batch], samples=len(samples))
    return Reconverted(quantize, simulation, samples)


def open_switches_inputs(model: Any) -> str:
    from inc_tb.frameworks.models import read_inputs

    (only,) = read_inputs(model)
    return only.name


def subsets(units: Sequence[str], seed: int = 3) -> list[list[str]]:
    """Nothing, each alone, some pairs and larger sets, everything."""
    rng = np.random.default_rng(seed)
    sizes = (2, 2, 2, 3, 3, len(units) // 2, len(units) // 2)
    some = [rng.choice(units, size, replace=False).tolist() for size in sizes]
    return [[], *([unit] for unit in units), *some, list(units)]


@pytest.mark.parametrize("per_channel", [False, True], ids=["per tensor", "per channel"])
def test_any_ops_of_the_hard_model_in_float(per_channel: bool, tmp_path: Path) -> None:
    found = reconverted(HARD, images(), tmp_path, per_channel=per_channel)
    assert len(found.units) == 11
    opened = set()
    for keep in subsets(found.units):
        simulated, real = found.simulated(keep), found.real(keep)
        error = found.error(real)
        if error > HEALTHY:
            assert found.error(simulated) == pytest.approx(error, rel=AGREES), keep
        else:
            assert steps(simulated, real) <= FEW_STEPS, keep
        opened.add(id(found.simulation.model._session))  # type: ignore[attr-defined]
    assert len(opened) == 1


@pytest.mark.parametrize("name", ["outlier channel and pool", "outlier channel and batch norm", "residual"])
def test_any_ops_of_spoilt_networks_in_float(name: str, tmp_path: Path) -> None:
    found = reconverted(made(name).model, made(name).images, tmp_path, per_channel=False)
    worst = 0.0
    for keep in subsets(found.units):
        simulated, real = found.simulated(keep), found.real(keep)
        error = found.error(real)
        if error > 10 * HEALTHY:
            assert found.error(simulated) == pytest.approx(error, rel=0.1), keep
        else:
            worst = max(worst, steps(simulated, real))
    assert worst <= FEW_STEPS


@pytest.mark.slow
def test_any_ops_of_a_saved_model_in_float(tmp_path: Path) -> None:
    case = made("wide input and elu")
    tool = TensorFlowQuantizer(approach="saved-model")
    ready = tool.prepare(case.model, tmp_path)
    units = [f"net_1/{name}" for name in ("first_1/convolution", "second_1/convolution", "last_1/MatMul")]

    def quantized(*keep: str) -> Path:
        target = tmp_path / f"int8 but {[units.index(op) for op in keep]}"
        tool.quantize(ready, target, [case.data], tool.settings, keep)
        return target

    simulation = Simulation(open_switches(ready, quantized()), [case.data], samples=len(case.images))
    assert [unit.name for unit in simulation.model.units] == units
    for keep in ([], units[:1], units[1:2], units[:2], units[1:]):
        real = simulation.compared([open_results(quantized(*keep))(simulation.batches[0])]).error
        assert simulation.error_keeping(keep) == pytest.approx(real, rel=0.1), keep


def test_everything_in_float_is_fp32(tmp_path: Path) -> None:
    found = reconverted(HARD, images(), tmp_path, per_channel=True)
    own = found.simulation.results[0][0]
    np.testing.assert_allclose(found.real(found.units), own, atol=1e-4)
    assert np.array_equal(found.simulated(found.units), own)


# The culprit is found


@pytest.mark.parametrize("kind", ["tensor", "int8", "full"])
def test_both_convolutions_of_the_hard_model_explain_its_error(kind: str) -> None:
    found = inc_tb.probe(HARD, hard_lite(kind), images())
    assert found.explaining is not None
    assert set(HARD_CULPRITS) <= set(found.explaining.units) <= {*HARD_CULPRITS, HARD_PAD}
    assert found.explaining.recovered > 0.99
    assert {effect.name for effect in found.units[:2]} <= {*HARD_CULPRITS, HARD_PAD}
    assert set(HARD_CULPRITS) <= set(found.diagnosis.suggestions[0].ops)


@pytest.mark.parametrize("kind", ["16x8", "dynamic"])
def test_where_activations_are_fine_the_second_convolution_is_the_culprit(kind: str) -> None:
    found = inc_tb.probe(HARD, hard_lite(kind), images())
    assert found.explaining is not None
    assert found.explaining.units == [HARD_CULPRITS[1]]
    assert found.explaining.recovered > 0.99


def test_neural_compressors_model() -> None:
    found = inc_tb.probe(HARD, zoo.DATA / "inc26_hard_int8.pb", images())
    assert found.explaining is not None
    assert set(found.explaining.units) == set(HARD_CULPRITS)
    assert found.explaining.recovered > 0.99


CULPRITS = [*((name, "tensor") for name in KINDS), ("outlier channel and pool", "int8"), ("residual", "int8")]


@pytest.mark.parametrize(("name", "kind"), CULPRITS)
def test_the_culprit_is_ranked_first(name: str, kind: str) -> None:
    case = made(name)
    found = inc_tb.probe(case.model, zoo.lite(case.model, kind, case.images), case.data)
    real = found.comparison["real"].error
    assert real > 10 * HEALTHY
    assert found.comparison["simulated"].error == pytest.approx(real, rel=AGREES)
    assert found.explaining is not None
    assert set(case.culprits) <= set(found.explaining.units)
    assert found.explaining.recovered > 0.99
    ranked = [effect.name for effect in found.units]
    followers = {op for op in ranked if "pad_1" in op or "pool_1" in op}
    assert ranked[0] in case.culprits
    assert set(ranked[: len(case.culprits)]) <= {*case.culprits, *followers}


@pytest.mark.parametrize("form", ["object", ".keras", "SavedModel", "frozen graph"])
def test_every_form_of_the_reference(form: str, tmp_path: Path) -> None:
    case = made("outlier channel")
    model = forms(case, tmp_path)[form]
    found = inc_tb.probe(model, zoo.lite(case.model, "tensor", case.images), case.data)
    assert found.explaining is not None
    ends = [name.removeprefix("StatefulPartitionedCall/") for name in found.explaining.units]
    assert set(ends) == set(case.culprits)
    assert found.explaining.recovered > 0.99


def test_a_resumed_probe_simulates_nothing_again(tmp_path: Path) -> None:
    first = inc_tb.probe(HARD, hard_lite("tensor"), images(), logdir=tmp_path)
    again = inc_tb.probe(HARD, hard_lite("tensor"), images(), logdir=tmp_path)
    assert first.evaluations > 10
    assert again.evaluations == 0
    assert again.explaining == first.explaining


def test_a_tflite_file_is_no_reference() -> None:
    with pytest.raises(ModelError, match="TFLite file, whose kernels cannot be simulated") as raised:
        inc_tb.probe(hard_lite("float"), hard_lite("tensor"), images())
    assert "\n" not in str(raised.value)


def test_results_come_in_the_order_of_the_reference() -> None:
    with quiet():
        given = keras.Input((8,), name="x")
        x = layers.Dense(8, activation="relu", name="a")(given)
        model = keras.Model(given, {"z": layers.Dense(3, name="c")(x), "b": layers.Dense(5, name="d")(x)}, name="net")
    samples = np.random.default_rng(0).normal(size=(32, 8)).astype(np.float32)
    switches = open_switches(model, zoo.lite(model, "int8", samples))
    batch = {switches.inputs[0].name: samples}
    simulated, real = switches.run(batch, [s.name for s in switches.sites]).results, switches.run_real(batch)
    assert [a.shape for a in simulated] == [a.shape for a in real] == [a.shape for a in open_results(model)(batch)]
    for mine, theirs in zip(simulated, real, strict=True):
        assert steps(mine, theirs) <= FEW_STEPS
