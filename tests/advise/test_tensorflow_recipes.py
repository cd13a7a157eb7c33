"""Every config for TensorFlow, pasted and run by its tool: the named ops stay in float, accuracy comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inc_tb
from inc_tb.advise.configs import fitted
from inc_tb.frameworks.formats import Settings
from inc_tb.frameworks.templates import write
from inc_tb.frameworks.tensorflow.quiet import quiet
from inc_tb.frameworks.tensorflow.source import open_source
from tests.frameworks import tensorflow_zoo as zoo
from tests.tensorflow_defects import (
    HARD_CULPRITS,
    Case,
    accuracy,
    images,
    labels,
    made,
    outputs,
    weights_by_op,
)

STATIC = Settings(per_channel=False, activation="int8", weight="int8")
HARD_OPS = [*HARD_CULPRITS, "v0/cg/conv1/pad"]
CONVERTERS: Mapping[str, Callable[[Any, Path], Any]] = {
    "from_keras_model": lambda model, _: zoo.tf.lite.TFLiteConverter.from_keras_model(model),
    "from_saved_model": lambda model, folder: zoo.tf.lite.TFLiteConverter.from_saved_model(
        str(zoo.export(model, folder / "saved_model"))
    ),
    "from_concrete_functions": lambda model, _: zoo.tf.lite.TFLiteConverter.from_concrete_functions(
        [zoo.tf.function(model).get_concrete_function(zoo.tf.TensorSpec(model.input.shape, zoo.tf.float32))]
    ),
}


def text_of(tool: str, keep: Sequence[str], settings: Settings = STATIC) -> str:
    recipe = next(f.recipe for f in fitted("tensorflow", settings) if f.recipe.tool == tool)
    return write(recipe, keep, {})


def run(tool: str, keep: Sequence[str], **names: Any) -> dict[str, Any]:
    with quiet():
        exec(text_of(tool, keep), names)
    return names


def hard_converter(kind: str = "tensor") -> dict[str, Any]:
    samples = images(128)
    return {
        "converter": zoo.converter(zoo.hard(), kind, samples),
        "representative_dataset": lambda: ([sample[None]] for sample in samples),
    }


def hard_accuracy(content: bytes, folder: Path) -> float:
    (folder / "made.tflite").write_bytes(content)
    return accuracy(str(folder / "made.tflite"))


def floats(content: bytes) -> set[str]:
    """Ops whose weights are float, by all names that they go by."""
    return {part for name, dtype in weights_by_op(content).items() if dtype == "float32" for part in name.split(";")}


# TFLite


def test_denylist_brings_the_accuracy_of_the_hard_model_back(tmp_path: Path) -> None:
    before = hard_accuracy(zoo.lite(zoo.hard(), "tensor", images(128)), tmp_path)
    content = run("tflite", HARD_OPS, **hard_converter())["content"]
    own = zoo.fetch(zoo.hard(), "logits", {"input": zoo.digits(797, 1000)})
    fp32 = float((own.argmax(1) == labels()[1000:]).mean())
    assert before < 0.3
    assert hard_accuracy(content, tmp_path) > fp32 - 0.005
    assert set(HARD_CULPRITS) <= floats(content)
    assert list(weights_by_op(content).values()).count("float32") == 2
    others = {"v0/pw/Conv2D", "v0/dw/depthwise", "v0/fc1/MatMul", "v0/fc2/MatMul"}
    assert not others & floats(content)


def test_an_op_that_is_no_culprit_changes_nothing(tmp_path: Path) -> None:
    content = run("tflite", ["v0/fc1/MatMul"], **hard_converter())["content"]
    assert floats(content) >= {"v0/fc1/MatMul"}
    assert hard_accuracy(content, tmp_path) < 0.3


@pytest.mark.parametrize("way", CONVERTERS)
@pytest.mark.parametrize("name", ["outlier channel and pad", "outlier channel and batch norm", "residual"])
def test_denylist_with_every_converter(name: str, way: str, tmp_path: Path) -> None:
    """With the ops that the probe suggests for the Keras model."""
    case = made(name)
    found = inc_tb.probe(case.model, zoo.lite(case.model, "tensor", case.images), case.data)
    assert found.explaining is not None
    names = converter_of(case, way, tmp_path)
    content = run("tflite", found.explaining.units, **names)["content"]
    own = np.asarray(case.model(case.images))
    lost = np.square(outputs(content, case.images) - own).sum() / np.square(own - own.mean(0)).sum()
    assert lost < 0.01
    weighted = {op for op in found.explaining.units if "convolution" in op}
    types = weights_by_op(content)
    assert list(types.values()).count("float32") == len(weighted)
    assert "int8" in types.values()


def converter_of(case: Case, way: str, folder: Path) -> dict[str, Any]:
    with quiet():
        converter = CONVERTERS[way](case.model, folder)
    samples = case.images

    def representative_dataset() -> Any:
        return ([sample[None]] for sample in samples)

    converter.optimizations = [zoo.tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = representative_dataset
    converter._experimental_disable_per_channel = True
    return {"converter": converter, "representative_dataset": representative_dataset}


def test_16_bits(tmp_path: Path) -> None:
    content = run("tflite-int16", [], **hard_converter("int8"))["content"]
    with quiet():
        details = zoo.tf.lite.Interpreter(model_content=content).get_tensor_details()
    assert {"int16", "int8"} <= {d["dtype"].__name__ for d in details}
    assert floats(content) == set()
    coarse = hard_accuracy(zoo.lite(zoo.hard(), "int8", images(128)), tmp_path)
    assert hard_accuracy(content, tmp_path) > coarse


def test_a_scale_a_channel(tmp_path: Path) -> None:
    names = hard_converter("tensor")
    content = run("tflite-per-channel", [], **names)["content"]
    assert content == zoo.lite(zoo.hard(), "int8", images(128))
    with quiet():
        details = zoo.tf.lite.Interpreter(model_content=content).get_tensor_details()
    assert max(len(d["quantization_parameters"]["scales"]) for d in details) > 1
    assert floats(content) == set()


# quantize_saved_model


@pytest.mark.slow
def test_units_of_a_saved_model(tmp_path: Path) -> None:
    model, samples = zoo.keras_net(), zoo.keras_images(32)
    saved = zoo.export(model, tmp_path / "fp32")
    types = {}
    for keep in (["net_1/gap_1/Mean"], ["net_1/pw_1/convolution"], ["net_1/conv0_1/convolution", "net_1/fc_1/MatMul"]):
        target = tmp_path / f"kept {len(types)}"
        names = {"saved_model": str(saved), "target": str(target), "representative_dataset": [{"img": samples}]}
        run("saved-model", keep, **names)
        source = open_source(target)
        constants = [zoo.constant(source.graph_def, n.name) for n in source.graph_def.node if n.op == "Const"]  # type: ignore[union-attr]
        shapes = {"conv0": (3, 3, 1, 8), "pw": (1, 1, 8, 8), "fc": (8, 10)}
        types[keep[0]] = {
            layer: {a.dtype.name for a in constants if a.shape == shape} for layer, shape in shapes.items()
        }
    whole, real = {"int8"}, {"float32"}
    assert types == {
        "net_1/gap_1/Mean": {"conv0": whole, "pw": whole, "fc": whole},
        "net_1/pw_1/convolution": {"conv0": whole, "pw": real, "fc": whole},
        "net_1/conv0_1/convolution": {"conv0": real, "pw": whole, "fc": real},
    }


# Which there are


def test_dynamic_models_get_no_config_that_cannot_work() -> None:
    tools = {f.recipe.tool for f in fitted("tensorflow", STATIC._replace(dynamic=True))}
    assert not {"tflite", "tflite-int16", "saved-model"} & tools
    assert "json" in tools
