"""The cheapest model that meets the criterion: what an op costs, and what is tried before single ops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader

from inc_tb import OnnxRuntimeQuantizer, Tuned, tune
from inc_tb.frameworks.ops import Macs
from inc_tb.frameworks.registry import framework_of
from inc_tb.records import ProfileRow
from inc_tb.tuning.pricing import slower_in_int8
from tests.tuning.test_tune import PLENTY_S, node, results, same_class_as
from tests.tuning.test_tune import save as save_net

SHIFT = 3000.0


class Reader(CalibrationDataReader):  # type: ignore[misc]
    """As people write them."""

    def __init__(self, x: np.ndarray) -> None:
        self.batches = iter([{"x": x}])

    def get_next(self) -> Any:
        return next(self.batches, None)


@pytest.fixture
def shifted(tmp_path: Path) -> tuple[Path, np.ndarray]:
    """Far up and down again between two products: int8 has too few steps for that, and nothing else is wrong."""
    random = np.random.default_rng(0)
    weights = {
        "w1": random.normal(size=(8, 16)), "up": np.full(16, SHIFT), "down": np.full(16, -SHIFT),
        "w2": random.normal(size=(16, 6)),
    }  # fmt: skip
    nodes = [
        node("MatMul", "x", "w1", "a"), node("Add", "a", "up", "b"), node("Add", "b", "down", "c"),
        node("MatMul", "c", "w2", "y"),
    ]  # fmt: skip
    return save_net(tmp_path / "m.onnx", nodes, weights, [8]), random.normal(size=(200, 8)).astype(np.float32)


def tune_shifted(shifted: tuple[Path, np.ndarray], logdir: Path, **options: Any) -> Tuned:
    model, x = shifted
    return tune(
        model, x[:64], same_class_as(model, x[64:]), tolerance=0.05, objectives=("size",), minimize="size",
        quantizer=OnnxRuntimeQuantizer(reduce_range=True), logdir=logdir, **options,
    )  # fmt: skip


def test_only_products_in_int8_where_that_is_what_costs(shifted: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    found = tune_shifted(shifted, tmp_path / "log")
    assert found.met
    assert (found.best.fallback, found.best.config["op_types"], found.best.int8_macs) == ([], ["MatMul"], 1.0)
    assert len(found.trials) <= 3
    assert found.best.notes == ["no Add in int8; only ops that multiply in int8"]
    assert 'op_types_to_quantize=["MatMul"]' in found.recipe
    given = {"model_output": tmp_path / "again.onnx", "calibration_data_reader": Reader(shifted[1][:64])}
    exec(found.recipe, given)
    rows = shifted[1][64:]
    np.testing.assert_array_equal(results(tmp_path / "again.onnx", rows, "x"), results(found.model, rows, "x"))
    rounded = {n.input[0] for n in onnx.load(found.model).graph.node if n.op_type == "QuantizeLinear"}
    assert "b" not in rounded


def test_the_fewest_ops_are_named_where_ops_are_counted(shifted: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    model, x = shifted
    found = tune(
        model, x[:64], same_class_as(model, x[64:]), tolerance=0.05, objectives=(), logdir=tmp_path / "log",
        quantizer=OnnxRuntimeQuantizer(reduce_range=True),
    )  # fmt: skip
    assert found.met
    assert set(found.best.fallback) == {"/b/Add", "/c/Add"}
    assert (found.minimize, found.best.config["op_types"]) == ("ops", [])


def test_the_search_for_something_cheaper_goes_on_the_same_way(
    shifted: tuple[Path, np.ndarray], tmp_path: Path
) -> None:
    whole = tune_shifted(shifted, tmp_path / "whole", timeout=PLENTY_S)
    for upto in range(1, len(whole.trials) + 1):
        part = tune_shifted(shifted, tmp_path / "parts", timeout=PLENTY_S, max_trials=upto, resume=upto > 1)
        told = [(trial.fallback, trial.config) for trial in part.trials]
        assert told == [(trial.fallback, trial.config) for trial in whole.trials[:upto]]


def test_without_time_for_the_simulation_there_is_an_answer_all_the_same(
    shifted: tuple[Path, np.ndarray], tmp_path: Path
) -> None:
    assert tune_shifted(shifted, tmp_path / "log", probe_s=0).met


def test_ops_that_take_longer_in_int8_are_told_by_their_times_and_conversions() -> None:
    rows = [
        ProfileRow("fast", "Conv", fp32_us=10.0, int8_us=3.0, convert_us=2.0),
        ProfileRow("slow", "Conv", fp32_us=10.0, int8_us=11.0),
        ProfileRow("converted", "Conv", fp32_us=10.0, int8_us=7.0, convert_us=4.0),
        ProfileRow("part of another", "Relu", fp32_us=10.0),
    ]
    assert slower_in_int8(rows) == ["slow", "converted"]


# How many multiplications


def convolutions(path: Path) -> Path:
    random = np.random.default_rng(0)
    nodes = [
        node("Conv", "x", "w", "a"), node("Conv", "a", "dw", "b", group=8), node("ConvTranspose", "b", "up", "c"),
        node("GlobalAveragePool", "c", "p"), node("Flatten", "p", "f"), node("Gemm", "f", "g", "h", transB=1),
        node("MatMul", "h", "m", "y"),
    ]  # fmt: skip
    shapes = {"w": (8, 4, 3, 3), "dw": (8, 1, 3, 3), "up": (8, 2, 2, 2), "g": (5, 2), "m": (5, 3)}
    return save_net(path, nodes, {name: random.normal(size=shape) for name, shape in shapes.items()}, [4, 6, 6])


def test_multiplications_are_counted_for_one_sample(tmp_path: Path) -> None:
    """x is 4 x 6 x 6, a 8 x 4 x 4, b 8 x 2 x 2, c 2 x 3 x 3, h 5, y 3."""
    model = convolutions(tmp_path / "m.onnx")
    found = framework_of(model).count_macs(model, {"x": np.zeros((7, 4, 6, 6), np.float32)})
    assert {name: macs.number for name, macs in found.items()} == {
        "/a/Conv": 8 * 4 * 4 * 4 * 9, "/b/Conv": 8 * 2 * 2 * 9, "/c/ConvTranspose": 8 * 2 * 2 * 2 * 4,
        "/h/Gemm": 5 * 2, "/y/MatMul": 3 * 5,
    }  # fmt: skip
    assert not any(macs.is_integer for macs in found.values())


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_those_with_integers_are_told_from_the_others(tmp_path: Path, form: Any) -> None:
    model = convolutions(tmp_path / "m.onnx")
    x = np.random.default_rng(1).normal(size=(16, 4, 6, 6)).astype(np.float32)
    tool = OnnxRuntimeQuantizer(format=form)
    tool.quantize(tool.prepare(model, tmp_path), tmp_path / "int8.onnx", [{"x": x}], tool.settings, ["/y/MatMul"])
    found = framework_of(model).count_macs(tmp_path / "int8.onnx", {"x": x})
    integer = {name.removesuffix("_quant") for name, macs in found.items() if macs.is_integer}
    assert integer == {"/a/Conv", "/b/Conv", "/h/Gemm"}, "there is no such kernel for ConvTranspose"


def test_sixteen_bits_are_no_integers_of_the_kernels(tmp_path: Path) -> None:
    model = convolutions(tmp_path / "m.onnx")
    x = np.random.default_rng(1).normal(size=(16, 4, 6, 6)).astype(np.float32)
    tool = OnnxRuntimeQuantizer()
    settings = {**tool.settings, "int16_tensors": ["a"]}
    tool.quantize(tool.prepare(model, tmp_path), tmp_path / "int8.onnx", [{"x": x}], settings, [])
    found = framework_of(model).count_macs(tmp_path / "int8.onnx", {"x": x})
    assert not found["/a/Conv"].is_integer
    assert not found["/b/Conv"].is_integer
    assert found["/y/MatMul"].is_integer


def test_products_of_two_activations_are_counted(tmp_path: Path) -> None:
    """3 x 4 by 4 x 3: 9 numbers of 4 products each."""
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 4]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3, 3]),
    ]
    nodes = [helper.make_node("Transpose", ["x"], ["t"], "t", perm=[0, 2, 1])]
    nodes.append(helper.make_node("MatMul", ["x", "t"], ["y"], "product"))
    graph = helper.make_graph(nodes, "attention", ends[:1], ends[1:], [numpy_helper.from_array(np.zeros(1), "unused")])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    found = framework_of(path).count_macs(path, {"x": np.zeros((5, 3, 4), np.float32)})
    assert found == {"product": Macs(36, False)}
