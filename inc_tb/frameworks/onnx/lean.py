"""What a quantized model computes in every run, and need not: weights that never change, and equal tensors once more.

The values are the same bit for bit. A weight in real numbers is given to the session with the samples, not as a
constant, which ONNX Runtime would keep in a form of its own beside it, and multiply in another order.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper

from inc_tb.frameworks.onnx.model import DEQUANTIZE, QUANTIZE, Model, all_inputs
from inc_tb.frameworks.ops import Array

_LEAST_NUMBERS = 1 << 12
"""Of a weight that takes any time."""
_MOST_WEIGHTS = 128
"""ONNX Runtime's time to open a model grows with the square of its inputs."""
_EXACT = {TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16}


def weights_of(model: Model, most: int) -> dict[str, Array]:
    """The largest weights by the tensors that they are dequantized to, as long as they take at most so many bytes."""
    sizes = {node.output[0]: model.size(node.input[0]) for node in model.nodes if _is_weight(model, node)}
    found = {}
    for name in sorted(sizes, key=sizes.__getitem__, reverse=True)[:_MOST_WEIGHTS]:
        if _LEAST_NUMBERS <= sizes[name] <= most // 4:
            most -= 4 * sizes[name]
            found[name] = np.ascontiguousarray(model.constant(name))
    return found


def _is_weight(model: Model, node: onnx.NodeProto) -> bool:
    if node.op_type != DEQUANTIZE or not all(name in model.initializers for name in node.input if name):
        return False
    values, scale = (model.initializers[name] for name in node.input[:2])
    is_plain = values.data_type in _EXACT and scale.data_type == TensorProto.FLOAT
    return is_plain and not model.quantization(node).block


def make_lean(proto: onnx.ModelProto, weights: Mapping[str, Array]) -> dict[str, Array]:
    """Changes a model that was made of the one with these weights; returns those that it is to be given."""
    outputs = {output.name for output in proto.graph.output}
    given: dict[str, Array] = {}
    same: dict[str, str] = {}
    seen: dict[tuple[object, ...], str] = {}
    kept = []
    for node in proto.graph.node:
        node.input[:] = [same.get(name, name) for name in node.input]
        out = node.output[0] if node.output else ""
        if node.op_type == DEQUANTIZE and out in weights and out not in outputs:
            given[out] = weights[out]
            continue
        if node.op_type in (QUANTIZE, DEQUANTIZE):
            key = _computes(node)
            if key in seen:
                same[out] = seen[key]
            seen.setdefault(key, out)
        kept.append(node)
    inner = {name for node in kept for name in all_inputs(node) if name not in node.input}
    nodes = [node for node in kept if node.output[0] not in same or node.output[0] in outputs | inner]
    used = {name for node in nodes for name in all_inputs(node)} | outputs
    _replace(proto, nodes, used)
    for name, values in given.items():
        proto.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, values.shape))
    return given


def _computes(node: onnx.NodeProto) -> tuple[object, ...]:
    settings = sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute)
    return node.domain, node.op_type, *node.input, *settings


def _replace(proto: onnx.ModelProto, nodes: list[onnx.NodeProto], used: set[str]) -> None:
    """By these nodes, and the constants that they need."""
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del proto.graph.node[:]
    proto.graph.node.extend(copies)
    for i in reversed(range(len(proto.graph.initializer))):
        if proto.graph.initializer[i].name not in used:
            del proto.graph.initializer[i]
