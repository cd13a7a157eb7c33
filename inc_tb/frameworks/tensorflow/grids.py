"""The quantization that a node of a graph says, in the words of its kind of op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from inc_tb.errors import ModelError
from inc_tb.frameworks.ops import Array, Quantization
from inc_tb.frameworks.tensorflow.library import tf

Constant = Callable[[str], Array | None]
"""The value of a tensor, or None where it depends on the data."""
_NOTHING = tf.compat.v1.AttrValue()
_MOST_BITS = 16
FAKE = {"FakeQuantWithMinMaxArgs", "FakeQuantWithMinMaxVars", "FakeQuantWithMinMaxVarsPerChannel"}
ROUND_TRIPS = {"QuantizeAndDequantize", "QuantizeAndDequantizeV2", "QuantizeAndDequantizeV3", "QuantizeAndDequantizeV4"}


def attribute(node: Any, name: str) -> Any:
    """Empty where the node has none of that name; asking the node itself would add one."""
    return node.attr.get(name, _NOTHING)


def grid(dtype: str, scale: Any, zero_point: Any = 0, axis: int | None = None) -> Quantization:
    """With the whole range of the type; an axis only where there are several scales."""
    info = np.iinfo(dtype)
    scales = np.asarray(scale, np.float32).ravel()
    zeros = np.broadcast_to(np.asarray(zero_point, np.int64).ravel(), scales.shape)
    return Quantization(dtype, scales, zeros, int(info.min), int(info.max), axis if scales.size > 1 else None)


def unknown_grid(dtype: str) -> Quantization:
    """Found while the model runs."""
    info = np.iinfo(dtype)
    return Quantization(dtype, None, None, int(info.min), int(info.max))


def of_fake_quantization(node: Any, inputs: list[str], constant: Constant) -> Quantization:
    """FakeQuant moves its range so that zero is one of the steps."""
    bits = attribute(node, "num_bits").i or 8
    if not 2 <= bits <= _MOST_BITS:
        raise ModelError(
            f"{node.name}: {node.op} with num_bits={bits}; expected 2 to {_MOST_BITS}. Export the model again."
        )
    first, last = int(attribute(node, "narrow_range").b), 2**bits - 1
    name = f"uint{8 if bits <= 8 else 16}"
    if node.op == "FakeQuantWithMinMaxArgs":
        has_range = "min" in node.attr
        low, high = (
            (np.array([attribute(node, k).f]) for k in ("min", "max")) if has_range else np.array([[-6.0], [6.0]])
        )
    else:
        ends = constant(inputs[1]), constant(inputs[2])
        if ends[0] is None or ends[1] is None:
            return Quantization(name, None, None, first, last)
        low, high = (np.asarray(end).ravel() for end in ends)
    # In float32, as the op itself: zero lies between two steps wherever the range is symmetric.
    low, high = np.asarray(low, np.float32), np.asarray(high, np.float32)
    scale = (high - low) / np.float32(last - first)
    scale = np.where(scale > 0, scale, np.float32(1))
    middle = np.float32(first) - low / scale
    zero = np.clip(np.trunc(middle + np.copysign(0.5, middle)), first, last).astype(np.int64)
    is_per_channel = node.op.endswith("PerChannel")
    return Quantization(name, scale.astype(np.float32), zero, first, last, -1 if is_per_channel else None)


def of_round_trip(node: Any, inputs: list[str], constant: Constant) -> Quantization:
    bits = int(attribute(node, "num_bits").i or 8)
    if node.op.endswith("V3") and len(inputs) > 3 and (told := constant(inputs[3])) is not None:
        bits = int(told)
    is_signed = attribute(node, "signed_input").b if "signed_input" in node.attr else True
    name = f"{'' if is_signed else 'u'}int{8 if bits <= 8 else 16}"
    high = 2 ** (bits - 1) - 1 if is_signed else 2**bits - 1
    low = -high - (not attribute(node, "narrow_range").b) if is_signed else 0
    ends = [constant(i) for i in inputs[1:3]] if attribute(node, "range_given").b else [None, None]
    if ends[0] is None or ends[1] is None:
        return Quantization(name, None, None, low, high)
    below, above = (np.asarray(end, np.float64).ravel() for end in ends)
    step = np.maximum(above / high, below / low) if is_signed else above / high
    scale = np.where(step > 0, step, 1.0).astype(np.float32)
    axis = int(attribute(node, "axis").i) if "axis" in node.attr and attribute(node, "axis").i >= 0 else None
    return Quantization(name, scale, np.zeros(scale.shape, np.int64), low, high, axis)


def of_range(
    dtype: str, low: Array | None, high: Array | None, mode: str = "SCALED", axis: int = -1, *, is_kernel: bool = True
) -> Quantization:
    """Of whole numbers that go with the range that they stand for.

    The quantized kernels take -128 for one step below the range, Dequantize takes it for the lower end.
    """
    if low is None or high is None:
        return unknown_grid(dtype)
    low, high = np.asarray(low, np.float64).ravel(), np.asarray(high, np.float64).ravel()
    info = np.iinfo(dtype)
    if mode == "SCALED":
        below = np.abs(low) / info.max if is_kernel or not info.min else low / info.min
        step = np.maximum(below, np.abs(high) / info.max)
        return grid(dtype, np.where(step > 0, step, 1.0), 0, axis)
    width = np.where(high > low, (high - low) / (int(info.max) - int(info.min)), 1.0)
    return grid(dtype, width, np.rint(info.min - low / width), axis)
