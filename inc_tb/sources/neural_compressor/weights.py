"""Dumped weights of both models, and what has to be put right about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from inc_tb.frameworks.ops import Array, Pair
from inc_tb.records import listed
from inc_tb.sources.neural_compressor.dump import DOUBLED, INT8, SIDES, Dump, Sides, channels, floats, is_tensor
from inc_tb.sources.neural_compressor.layout import Layout, base_name, weight_axis
from inc_tb.sources.neural_compressor.trials import number_of

DOUBLED_WEIGHTS = (
    "TensorFlow: the weights that Neural Compressor kept of the optimized model are 2 times too large, and so are its "
    "statistics of them; they are halved here"
)


def pair_weights(sides: Sides, layout: Layout, framework: str, patterns: Mapping[str, str], dump: Dump) -> list[Pair]:
    """One tensor an op, the largest: biases are dumped beside weights."""
    fp32, quan = (found if isinstance(found := sides[side].get("weight"), dict) else {} for side in SIDES)
    pairs, doubled, depthwise, only_ranges = [], [], [], []
    for op in fp32:
        ours = {str(n): v for n, v in fp32[op].items()} if isinstance(fp32[op], dict) else {}
        given = quan[op] if isinstance(quan.get(op), dict) else {}
        theirs = {_plain_name(n): v for n, v in given.items()}
        seen = next((ends for name, v in ours.items() if name in theirs and (ends := _range(v)) is not None), None)
        if seen is not None:
            only_ranges.append(op)
            dump.weight_ranges[str(op)] = seen
        name = _largest(ours, theirs)
        if name is None:
            continue
        reference, quantized = floats(ours[name], theirs[name])
        kind = _kind(op, layout, framework, patterns)
        if framework == "tensorflow" and f"{name}{INT8}" in given:  # not of an op that stayed in fp32
            quantized = quantized / np.float32(DOUBLED)
            doubled.append(op)
            if "Depthwise" in kind and reference.ndim == 4 and reference.shape[2] > 1:
                depthwise.append(op)
                quantized = _rescaled(reference, quantized)
        axis = channels(reference, weight_axis(kind, framework))
        pairs.append(Pair(str(op), name, "weight", reference, quantized, axis))
    dump.notes += _notes_on_weights(doubled, depthwise, only_ranges)
    return pairs


def _largest(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str | None:
    """Of the tensors that both models have in the same shape."""
    both = [
        name
        for name, v in ours.items()
        if is_tensor(v) and is_tensor(theirs.get(name)) and v.shape == theirs[name].shape
    ]
    return max(both, key=lambda name: ours[name].size, default=None)


def _kind(op: str, layout: Layout, framework: str, patterns: Mapping[str, str]) -> str:
    if framework == "tensorflow" and "depthwise" in str(op).lower():
        return "DepthwiseConv2dNative"
    node = layout.node(op)
    return patterns.get(op, "").partition(",")[0] or (node.type if node else "")


def _rescaled(reference: Array, quantized: Array) -> Array:
    """Depthwise weights of which all channels were scaled as the first: each by its own largest value instead."""
    largest = np.abs(reference).max(axis=(0, 1, 3), keepdims=True)
    return np.asarray(quantized * (largest / largest[:, :, :1])) if largest[0, 0, 0, 0] > 0 else quantized


def _notes_on_weights(doubled: list[str], depthwise: list[str], only_ranges: list[str]) -> list[str]:
    notes = []
    if doubled:
        notes.append(DOUBLED_WEIGHTS)
    if depthwise:
        notes.append(
            f"TensorFlow: all channels of the depthwise weights ({listed(depthwise)}) were scaled as channel 0; here "
            "each has the scale of its own largest value"
        )
    if only_ranges:
        notes.append(
            "Neural Compressor 2.5 and later keep only the smallest and largest value of ONNX weights, and of int8 "
            "ones without their scale, so their error is not known"
        )
    return notes


def _range(value: Any) -> tuple[float, float] | None:
    """Of [smallest, largest]."""
    numbers = [number_of(end) for end in value] if isinstance(value, list) and len(value) == 2 else []
    return (numbers[0], numbers[1]) if numbers and None not in numbers else None  # type: ignore[return-value]


def _plain_name(tensor: Any) -> str:
    return base_name(str(tensor).removesuffix(INT8))
