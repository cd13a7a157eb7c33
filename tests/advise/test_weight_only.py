"""Models of which only the weights are rounded: few bits are no finding, a layer that was spoilt is the first one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import inc_tb
from inc_tb.measure.diagnosis import Diagnosis
from tests.torch_defects import MARKS, one_thread

pytestmark = MARKS
SPOILT = "model.layers.1.mlp.up_proj"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def llama(seed: int, width: int = 64) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    shape = LlamaConfig(
        vocab_size=99, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    return LlamaForCausalLM(shape).eval()


def weight_only(dtype: torch.dtype, group: int) -> Callable[[nn.Module], nn.Module]:
    from torchao.quantization import IntxWeightOnlyConfig, quantize_
    from torchao.quantization.granularity import PerAxis, PerGroup

    def made(model: nn.Module) -> nn.Module:
        found = copy.deepcopy(model)
        quantize_(found, IntxWeightOnlyConfig(dtype, granularity=PerGroup(group) if group else PerAxis(0)))
        return found

    return made


def diagnosed(model: nn.Module, quantized: nn.Module, seed: int = 0) -> Diagnosis:
    return inc_tb.diagnose(model, quantized, {"input_ids": np.random.default_rng(seed).integers(0, 99, (4, 16))})


FORMATS = [(torch.int8, 0), (torch.int8, 32), (torch.int4, 32), (torch.int4, 128), (torch.int4, 0), (torch.int3, 32)]


@pytest.mark.parametrize(("dtype", "group"), FORMATS, ids=str)
@pytest.mark.parametrize(("seed", "width"), [(0, 128), (1, 256)])
def test_a_healthy_model_gets_no_suggestion(dtype: torch.dtype, group: int, seed: int, width: int) -> None:
    model = llama(seed, width)
    found = diagnosed(model, weight_only(dtype, group)(model), seed)
    assert found.suggestions == []
    assert set(found.ops["verdict"]) == {"ok"}


@pytest.mark.parametrize(("dtype", "group"), [(torch.int8, 0), (torch.int4, 32), (torch.int4, 0)], ids=str)
@pytest.mark.parametrize("fault", ["scale", "zero point"])
def test_a_layer_with_a_wrong_grid_is_the_first_suggestion(dtype: torch.dtype, group: int, fault: str) -> None:
    model = llama(2)
    made = weight_only(dtype, group)(model)
    weight: Any = made.get_submodule(SPOILT).weight
    if fault == "scale":
        weight.scale = weight.scale * 1.5
    else:
        weight.zero_point = weight.zero_point + (3 if dtype is torch.int4 else 40)
    found = diagnosed(model, made).suggestions
    assert [(s.rule, s.ops) for s in found] == [("misfit_weights", [SPOILT])]
    assert f"Their {fault} does not fit them" in found[0].because
    if fault == "scale":
        assert found[0].evidence["factor"] == pytest.approx(1.5, abs=0.1)  # fitted


@pytest.mark.parametrize("group", [32, 0])
def test_a_layer_with_outliers_among_its_weights_is_the_first_suggestion(group: int) -> None:
    """The same function in fp32: what one column of the weights has more, the norm before it has less."""
    model: Any = llama(3)
    with torch.no_grad():
        for layer in (model.model.layers[1].mlp.up_proj, model.model.layers[1].mlp.gate_proj):
            layer.weight[:, 5] *= 60
        model.model.layers[1].post_attention_layernorm.weight[5] /= 60
    found = diagnosed(model, weight_only(torch.int4, group)(model)).suggestions
    assert {op for s in found[:2] for op in s.ops} == {SPOILT, SPOILT.replace("up", "gate")}
    assert all("scale that all share" not in s.because for s in found)


def classifier(seed: int) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(seed)
    shape = BertConfig(
        vocab_size=99, hidden_size=128, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=32,
    )  # fmt: skip
    return BertForSequenceClassification(shape).eval()


def test_two_outputs_that_are_small_by_chance_are_no_finding() -> None:
    """What an untrained model makes of all samples is alike; its two outputs may be near 0, and their noise is not."""
    for seed in range(6):
        model = classifier(seed)
        made = weight_only(torch.int4, 0)(model)
        found = diagnosed(model, made)
        assert found.suggestions == []
        assert set(found.ops["verdict"]) == {"ok"}
    weight: Any = made.get_submodule("classifier").weight
    weight.scale = weight.scale * 1.5
    assert [(s.rule, s.ops) for s in diagnosed(model, made).suggestions] == [("misfit_weights", ["classifier"])]


def write_net(path: Path, seed: int) -> Path:
    random = np.random.default_rng(seed)
    weights = [random.normal(size=(128, 128)).astype(np.float32) / 11 for _ in range(3)]
    nodes = []
    for i in range(3):
        read = "x" if i == 0 else f"r{i - 1}"
        nodes += [helper.make_node("MatMul", [read, f"w{i}"], [f"y{i}"], name=f"mm{i}"),
                  helper.make_node("Tanh", [f"y{i}"], [f"r{i}"], name=f"tanh{i}")]  # fmt: skip
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 128])],
        [helper.make_tensor_value_info("r2", TensorProto.FLOAT, ["n", 128])],
        [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize(("bits", "block"), [(4, 32), (4, 128), (8, 32)])
@pytest.mark.parametrize("seed", range(2))
def test_blocks_of_onnx(bits: int, block: int, seed: int, tmp_path: Path) -> None:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    path, made = write_net(tmp_path / "fp32.onnx", seed), tmp_path / "int4.onnx"
    tool = MatMulNBitsQuantizer(onnx.load(path), bits=bits, block_size=block, is_symmetric=True)
    tool.process()
    tool.model.save_model_to_file(str(made))
    data = {"x": np.random.default_rng(seed).normal(size=(64, 128)).astype(np.float32)}
    assert inc_tb.diagnose(path, made, data).suggestions == []
    model = onnx.load(made)
    node = next(n for n in model.graph.node if n.op_type == "MatMulNBits" and "mm1" in n.name)
    scales = next(t for t in model.graph.initializer if t.name == node.input[2])
    scales.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scales) * np.float32(1.5), scales.name))
    onnx.save(model, made)
    found = inc_tb.diagnose(path, made, data).suggestions
    assert (found[0].rule, found[0].ops) == ("misfit_weights", ["mm1"])
    given = {"model_input": onnx.load(path), "model_output": str(made), "block_size": block}
    exec(found[0].recipes["onnxruntime-nbits"], given)
    assert next(iter(found[0].recipes)) == "onnxruntime-nbits"
    assert [n.op_type for n in onnx.load(made).graph.node][::2] == ["MatMulNBits", "MatMul", "MatMulNBits"]
