"""Weights as the quantized network uses them. Those of a convolution are rounded by its kernel when it first runs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from inc_tb.frameworks.mxnet.graph import Graph, Node, Part
from inc_tb.frameworks.mxnet.grids import STEPS, divisible, grid, grid_by_channel
from inc_tb.frameworks.mxnet.match import Match
from inc_tb.frameworks.ops import Array, Quantization
from inc_tb.frameworks.rounding import dequantize, rounded
from inc_tb.frameworks.weights import unfolded

_LARGEST_BIAS = (2**31 - 1) / 2
_EPSILON = "0.001"


class Weights(NamedTuple):
    name: str
    """Of the reference's parameter."""
    own: Array
    """As the reference has them."""
    factor: Array | None
    """What a batch norm that is part of the op multiplies them by, for each channel."""
    quantized: Array
    """As the quantized network has them, multiplied by the factor."""
    quantization: Quantization

    @property
    def reference(self) -> Array:
        return self.own if self.factor is None else self.own * self.factor

    @property
    def unfolded(self) -> Array:
        """The quantized ones in the place of the reference's, before the batch norm."""
        return unfolded(self.own, self.reference, self.quantized)


class Bias(NamedTuple):
    name: str
    quantized: Array


def read_weights(match: Match, reference: Graph, quantized: Graph, data: Quantization | None) -> Weights | None:
    """Nothing where it has none, or they are not rounded; `data` is how what it reads is rounded."""
    name, theirs = parameter(reference, match.main.weighted, 1), parameter(quantized, match.node.weighted, 1)
    if not match.node.is_quantized or not name or not theirs:
        return None
    own, factor = reference.array(name), _factor(reference, match.steps)
    stored = quantized.array(theirs)
    if stored.dtype == np.int8:
        form = grid(np.int8, *(quantized.array(f"{theirs}_{end}") for end in ("min", "max")))
        return Weights(name, own, factor, dequantize(stored, form), form)
    norm = _factor(quantized, [match.node])
    whole = stored if norm is None else stored * norm
    form = _own_grid(whole, match.node, _bias(quantized, match.node), data)
    return Weights(name, own, factor, rounded(whole, divisible(form)), form)


def read_bias(match: Match, reference: Graph, quantized: Graph) -> Bias | None:
    """Of a fully connected layer, which has eight bits only; that of a convolution has 32."""
    name, theirs = parameter(reference, match.main.weighted, 2), parameter(quantized, match.node.weighted, 2)
    if not name or not theirs or quantized.array(theirs).dtype != np.int8:
        return None
    form = grid(np.int8, *(quantized.array(f"{theirs}_{end}") for end in ("min", "max")))
    return Bias(name, dequantize(quantized.array(theirs), form))


def parameter(graph: Graph, part: Part | None, at: int) -> str:
    """The name of the parameter that is read there; "" where there is none."""
    entry = part.inputs[at] if part is not None and at < len(part.inputs) else None
    name = graph.nodes[entry.node].name if entry is not None else ""
    return name if graph.is_parameter(name) else ""


def _own_grid(weights: Array, node: Node, bias: Array | None, data: Quantization | None) -> Quantization:
    """A scale for each channel where the result's range is known; without, one for all."""
    is_by_channel = "min_calib_range" in node.attrs or node.attrs.get("channel_wise_quantize", "").lower() == "true"
    if not is_by_channel:
        return grid(np.int8, weights.min(), weights.max())
    widest = np.abs(weights).reshape(len(weights), -1).max(axis=1)
    if bias is not None and data is not None and data.scale is not None and data.scale.max() > 0:
        # A bias has the step of data times weights, in which it must fit.
        widest = np.maximum(widest, STEPS["int8"] * np.abs(bias) / data.scale.max() / _LARGEST_BIAS)
    return grid_by_channel(widest)


def _bias(graph: Graph, node: Node) -> Array | None:
    """What is added to each channel, with the batch norm."""
    name = parameter(graph, node.weighted, 2)
    bias = graph.array(name) if name else np.float32(0)
    norm = next((p for p in node.parts if p.type == "BatchNorm"), None)
    if norm is None:
        return graph.array(name) if name else None
    beta, mean = (graph.array(parameter(graph, norm, at)) for at in (2, 3))
    factor = _factor(graph, [node])
    assert factor is not None
    return np.asarray(beta + factor.reshape(-1) * (bias - mean))


def _factor(graph: Graph, nodes: list[Node]) -> Array | None:
    norm = next((p for node in nodes for p in node.parts if p.type == "BatchNorm"), None)
    weighted = next((node.weighted for node in nodes if node.weighted is not None), None)
    if norm is None or weighted is None:
        return None
    gamma, variance = (graph.array(parameter(graph, norm, at)) for at in (1, 4))
    if norm.attrs.get("fix_gamma", "True").lower() in ("true", "1"):
        gamma = np.ones_like(gamma)
    factor = gamma / np.sqrt(variance + np.float32(norm.attrs.get("eps", _EPSILON)))
    rank = graph.array(parameter(graph, weighted, 1)).ndim
    return np.asarray(factor.reshape(-1, *[1] * (rank - 1)), np.float32)
