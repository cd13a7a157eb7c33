"""How many multiplications each node does for one sample, and whether it does them with integers."""

from __future__ import annotations

from math import prod
from typing import Any

from onnx import helper

from inc_tb.frameworks.feeds import fitted, split, whole_inputs
from inc_tb.frameworks.onnx.adapter import describe_input
from inc_tb.frameworks.onnx.model import DEQUANTIZE, QUANTIZE, Model, attribute
from inc_tb.frameworks.onnx.sessions import Session
from inc_tb.frameworks.onnx.sites import rounds_weights_again
from inc_tb.frameworks.ops import Batch, Macs

_AT = {
    "Conv": (0, 1), "ConvTranspose": (0, 1), "MatMul": (0, 1), "Gemm": (0, 1), "QLinearConv": (0, 3),
    "ConvInteger": (0, 1), "QLinearMatMul": (0, 3), "MatMulInteger": (0, 1), "MatMulIntegerToFloat": (0, 1),
    "DynamicQuantizeMatMul": (0, 1), "QGemm": (0, 3), "FusedConv": (0, 1), "FusedMatMul": (0, 1), "FusedGemm": (0, 1),
}  # fmt: skip
"""Positions of the two factors."""
_INTEGER = {
    "QLinearConv", "ConvInteger", "QLinearMatMul", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul",
    "QGemm",
}  # fmt: skip
_WITH_ROUNDED_WEIGHT = {"Gemm", "MatMul"}
"""What ONNX Runtime does with integers whatever becomes of its result."""
_WITH_ROUNDED_RESULT = {"Conv", "Gemm"}
"""What it does with integers if its result is rounded, perhaps by rounding a weight that the model has in fp32."""
_FUSED = {"Relu", "Clip"}
_BYTES = {"int8", "uint8"}


def count_macs(model: Any, batch: Batch) -> dict[str, Macs]:
    """Of each node with products, by its name; the shapes are those that a run of the first sample has."""
    source = Model(model)
    nodes = [node for node in source.nodes if node.op_type in _AT]
    wanted = list(dict.fromkeys(name for node in nodes for name in (*_factors(node), node.output[0])))
    shapes = _shapes(source, wanted, batch)
    return {node.name: Macs(_count(node, shapes), _is_integer(source, node)) for node in nodes}


def _factors(node: Any) -> list[str]:
    return [node.input[at] for at in _AT[node.op_type]]


def _shapes(model: Model, names: list[str], batch: Batch) -> dict[str, tuple[int, ...]]:
    inputs = [describe_input(i, model) for i in model.inputs]
    free = [i.name for i in model.inputs if not i.type.tensor_type.HasField("shape")]
    one = next(split(fitted(batch, inputs, free=free), None, 1, whole_inputs(inputs)))
    told = {name: tuple(model.initializers[name].dims) for name in names if name in model.initializers}
    asked = [name for name in names if name not in told]
    nodes = [helper.make_node("Shape", [name], [f"{name}/inc_tb_shape"]) for name in asked]
    if not nodes:
        return told
    proto = model.with_outputs([node.output[0] for node in nodes], nodes)
    found = Session(model, proto, arena=False).run(one)
    return told | {name: tuple(map(int, shape)) for name, shape in zip(asked, found, strict=True)}


def _count(node: Any, shapes: dict[str, tuple[int, ...]]) -> int:
    left, right = (shapes[name] for name in _factors(node))
    made = prod(shapes[node.output[0]])
    if node.op_type == "ConvTranspose":
        return prod(left) * prod(right[1:])
    if "Conv" in node.op_type:
        return made * prod(right[1:])
    is_flipped = attribute(node, "transA", 0)
    return made * (left[-2 if is_flipped else -1] if left else 1)


def _is_integer(model: Model, node: Any) -> bool:
    """As ONNX Runtime's kernels do it once they have joined the nodes around it."""
    if node.op_type in _INTEGER:
        return True
    data, weight = _factors(node)
    if not _is_rounded(model, data):
        return False
    has_weight = _is_rounded(model, weight)
    if node.op_type in _WITH_ROUNDED_WEIGHT and has_weight:
        return True
    if node.op_type not in _WITH_ROUNDED_RESULT or not _gives_rounded(model, node.output[0]):
        return False
    is_float = weight in model.constants and model.elem_type(weight) == "float"
    return has_weight or (is_float and rounds_weights_again())


def _is_rounded(model: Model, name: str) -> bool:
    maker = model.producer.get(name)
    if maker is None or maker.op_type != DEQUANTIZE:
        return False
    return model.quantization(maker).dtype in _BYTES


def _gives_rounded(model: Model, name: str) -> bool:
    readers = model.consumers[name]
    if len(readers) == 1 and readers[0].op_type in _FUSED:
        return _gives_rounded(model, readers[0].output[0])
    return bool(readers) and all(r.op_type == QUANTIZE and model.quantization(r).dtype in _BYTES for r in readers)
