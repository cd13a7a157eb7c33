"""Nodes of a frozen graph: what they read, in which order they come, what their attributes say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from inc_tb.frameworks.ops import Array, Quantization
from inc_tb.frameworks.tensorflow.forms import source_of
from inc_tb.frameworks.tensorflow.grids import (
    attribute,
)
from inc_tb.frameworks.tensorflow.library import tf


def data_inputs(node: Any) -> list[str]:
    return [name_of(i) for i in node.input if not i.startswith("^")]


def adds_to(node: Any) -> bool:
    """Whether a kernel adds its result to one of its inputs, in the memory of that."""
    return "Quantize" in node.op and ("Sum" in node.op or b"Sum" in attribute(node, "fused_ops").list.s)


def name_of(tensor: str) -> str:
    """One name for each tensor: the first result of a node is called like the node."""
    return tensor.removesuffix(":0")


def session_config() -> Any:
    """Nothing is rewritten: every tensor exists and has the value that the graph says."""
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = -1
    return config


def is_depthwise(node: Any, composite: str = "") -> bool:
    if "epthwise" in node.op or "depthwise" in composite:
        return True
    groups = attribute(node, "feature_group_count").i if node.op.startswith("Uniform") else 1
    return bool(groups > 1)


def is_transposed(node: Any, is_second: bool) -> bool:
    names = ("transpose_b", "adj_y") if is_second else ("transpose_a", "adj_x")
    return any(attribute(node, name).b for name in names if name in node.attr)


def on_fitting_axis(quantization: Quantization, shape: tuple[int, ...]) -> Quantization:
    """Depthwise weights have their channels on the last axis but one, or on the last, as their kernel likes."""
    size = 0 if quantization.scale is None else quantization.scale.size
    axis = quantization.axis if quantization.axis is not None else -1
    if shape[axis] == size:
        return quantization
    fitting = next((i for i in range(len(shape) - 1, -1, -1) if shape[i] == size), axis)
    return replace(quantization, axis=fitting)


def plain(array: Any) -> Array:
    """TensorFlow's quantized types come as records of one field."""
    array = np.asarray(array)
    return np.asarray(array.view(array.dtype[0]) if array.dtype.names else array)


def settings(node: Any, is_constant_first: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"constant_first": is_constant_first}
    if b"FusedBatchNorm" in attribute(node, "fused_ops").list.s:
        found["has_norm"] = True
    if "epsilon" in node.attr:
        found["epsilon"] = attribute(node, "epsilon").f
    if "ksize" in node.attr:
        channels_first = attribute(node, "data_format").s.startswith(b"NC")
        ends = slice(2, 4) if channels_first else slice(1, 3)
        found["window"] = tuple(n for k in ("ksize", "strides") for n in list(attribute(node, k).list.i)[ends])
    return found


def in_order(nodes: Sequence[Any]) -> Iterator[Any]:
    """Every node behind those that it reads from, otherwise as in the file."""
    by_name = {node.name: node for node in nodes}
    done: set[str] = set()
    for start in nodes:
        stack = [start.name]
        while stack:
            name = stack[-1]
            waiting = [
                s for s, _ in map(source_of, by_name[name].input) if s not in done and s != name and s in by_name
            ]
            waiting = [s for s in waiting if s not in stack]  # loops of control flow
            if name in done or not waiting:
                stack.pop()
                if name not in done:
                    done.add(name)
                    yield by_name[name]
            else:
                stack += waiting
