"""Whether two ONNX models hold the same, whatever their files are called and wherever their weights lie."""

from __future__ import annotations

from typing import Any

import onnx

from inc_tb.frameworks.onnx.model import Model


def is_same(one: Any, other: Any) -> bool:
    """Told by what is computed, not by who wrote the file; what differs soonest is looked at first."""
    first, second = Model(one), Model(other)
    if len(first.nodes) != len(second.nodes) or list(first.initializers) != list(second.initializers):
        return False
    if _computed(first.proto) != _computed(second.proto):
        return False
    return all(_equal(first, second, name) for name in first.initializers)


def _equal(first: Model, second: Model, name: str) -> bool:
    one, other = first.initializers[name], second.initializers[name]
    if one.data_type != other.data_type or one.dims != other.dims:
        return False
    return first.constant(name).tobytes() == second.constant(name).tobytes()


def _computed(proto: onnx.ModelProto) -> bytes:
    """All but the weights, and what only people and tools read."""
    bare = onnx.ModelProto()
    bare.opset_import.extend(proto.opset_import)
    bare.functions.extend(proto.functions)
    bare.graph.node.extend(proto.graph.node)
    bare.graph.input.extend(proto.graph.input)
    bare.graph.output.extend(proto.graph.output)
    for message in (*bare.graph.node, *bare.graph.input, *bare.graph.output):
        message.ClearField("doc_string")
        del message.metadata_props[:]
    return bytes(bare.SerializeToString(deterministic=True))
