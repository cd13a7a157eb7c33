"""The patterns of what repeats in every layer, given to the real Neural Compressor as they are printed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import inc_tb
from inc_tb.advise.configs import configs
from inc_tb.measure.diagnosis import Diagnosis

LAYERS, WIDTH, OUTLIER = 4, 16, 3
KEPT = [f"/enc/layer.{i}/output/{op}" for i in range(LAYERS) for op in ("dense/MatMul", "dense/Add", "Add")]
random = np.random.default_rng(5)
TOKENS = random.normal(size=(48, 6, WIDTH)).astype(np.float32)


def write_encoder(path: Path) -> Path:
    """Layers as an exporter names them; in each one channel between the MatMul and the norm is 300 times the others."""
    nodes, weights = [], []

    def weight(name: str, values: Any) -> str:
        weights.append(numpy_helper.from_array(np.asarray(values, np.float32), name))
        return name

    def node(kind: str, name: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [f"{name}_output_0"], name, **attributes))
        return f"{name}_output_0"

    x = "tokens"
    for i in range(LAYERS):
        at = f"/enc/layer.{i}"
        wide = weight(f"w{i}", random.normal(size=(WIDTH, 2 * WIDTH)) / 4)
        inner = node("Relu", f"{at}/act/Relu", node("MatMul", f"{at}/intermediate/MatMul", x, wide))
        narrow, scale = random.normal(size=(2 * WIDTH, WIDTH)) / 6, np.full(WIDTH, 100.0)
        narrow[:, OUTLIER], scale[OUTLIER] = 30, 0.1
        dense = node("MatMul", f"{at}/output/dense/MatMul", inner, weight(f"v{i}", narrow))
        dense = node("Add", f"{at}/output/dense/Add", dense, weight(f"b{i}", random.normal(size=WIDTH) / 9))
        total = node("Add", f"{at}/output/Add", dense, x)
        bias = weight(f"n{i}", random.normal(size=WIDTH))
        norm = f"{at}/output/LayerNorm/LayerNormalization"
        x = node("LayerNormalization", norm, total, weight(f"g{i}", scale), bias, axis=-1)
    last = node("MatMul", "/head/MatMul", x, weight("head", random.normal(size=(WIDTH, 5))))
    shape = ["n", 6, WIDTH]
    graph = helper.make_graph(
        nodes, "encoder", [helper.make_tensor_value_info("tokens", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, [*shape[:2], 5])], weights,
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


class Loader:
    batch_size = 12

    def __iter__(self) -> Iterator[Any]:
        return iter([(rows, np.zeros(len(rows))) for rows in np.split(TOKENS, 4)])


def quantized(model: Path, target: Path, conf: Any) -> Path:
    from neural_compressor import quantization

    quantization.fit(str(model), conf, calib_dataloader=Loader()).save(str(target))
    return target


def scores(model: Path) -> Any:
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"tokens": TOKENS})[0]


def in_int8(model: Path) -> set[str]:
    return {node.name.removesuffix("_quant") for node in onnx.load(model).graph.node if "QLinear" in node.op_type}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Diagnosis]:
    from neural_compressor.config import PostTrainingQuantConfig

    folder = tmp_path_factory.mktemp("encoder")
    fp32 = write_encoder(folder / "fp32.onnx")
    int8 = quantized(fp32, folder / "int8.onnx", PostTrainingQuantConfig(quant_format="QOperator"))
    return fp32, int8, inc_tb.diagnose(fp32, int8, {"tokens": TOKENS})


def names_of(text: str) -> list[str]:
    told: dict[str, Any] = {}
    exec(text, told)
    return list(told["names"])


def cured_with(text: str, fp32: Path, target: Path) -> Path:
    told: dict[str, Any] = {}
    exec(text.replace("PostTrainingQuantConfig(op", 'PostTrainingQuantConfig(quant_format="QOperator", op'), told)
    return quantized(fp32, target, told["conf"])


def test_a_chain_that_repeats_in_every_layer_is_one_set_of_patterns(
    found: tuple[Path, Path, Diagnosis], tmp_path: Path
) -> None:
    fp32, int8, diagnosis = found
    first = diagnosis.suggestions[0]
    assert first.rule == "outlier_channels"
    assert set(KEPT) <= set(first.ops)
    assert not [s for s in diagnosis.suggestions[1:] if set(s.ops) & set(KEPT)]
    patterns = [rf"/enc/layer\.\d+/output/{op}" for op in ("dense/MatMul", "dense/Add", "Add")]
    assert names_of(first.recipes["inc"])[:3] == first.pattern.split("|")[:3] == patterns
    assert '"/enc/layer.3/output/dense/MatMul",' in first.recipes["onnxruntime"]  # which knows no patterns
    assert set(KEPT) <= in_int8(int8)
    cured = cured_with(first.recipes["inc"], fp32, tmp_path / "cured.onnx")
    assert in_int8(cured) == in_int8(int8) - set(first.ops)
    expected = scores(fp32)
    lost, left = (np.square(scores(model) - expected).sum() for model in (int8, cured))
    assert left < lost / 4


def test_a_probe_measures_the_whole_set(found: tuple[Path, Path, Diagnosis]) -> None:
    fp32, int8, diagnosis = found
    probed = inc_tb.probe(fp32, int8, {"tokens": TOKENS}, diagnosis=diagnosis, samples=16).diagnosis
    first = probed.suggestions[0]
    assert "in fp32 together removes" in first.because
    assert len(names_of(first.recipes["inc"])) < len(first.ops)
    assert first.pattern


def test_layers_that_are_not_all_are_listed(found: tuple[Path, Path, Diagnosis], tmp_path: Path) -> None:
    fp32, int8, diagnosis = found
    some = [op for op in KEPT if "layer.2" not in op]
    text = configs("onnx", diagnosis.ops, diagnosis.graph, some)["inc"]
    assert names_of(text)[0] == r"/enc/layer\.(0|1|3)/output/dense/MatMul"
    assert in_int8(cured_with(text, fp32, tmp_path / "some.onnx")) == in_int8(int8) - set(some)
