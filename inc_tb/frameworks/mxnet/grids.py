"""Whole numbers and the range that they stand for: zero is zero, the larger end of the range is half a step beyond the
last number. So says MXNet (kInt8Range, kUint8Range), and cuts off what is rounded to more than the last number.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from inc_tb.frameworks.ops import Array, Quantization

STEPS = {"int8": 127.5, "uint8": 255.5, "int32": 2.0**31}
"""From zero to the larger end."""
_LAST = {"int8": 127, "uint8": 255, "int32": 2**31 - 1}
_FIRST = {"int8": -128, "uint8": 0, "int32": -(2**31)}
_TINY = np.finfo(np.float32).tiny


def grid(dtype: Any, low: Array, high: Array) -> Quantization:
    """Of whole numbers of this type that stand for this range; one of 0 leaves nothing of the values."""
    name = np.dtype(dtype).name
    widest = np.maximum(np.abs(np.float32(low)), np.abs(np.float32(high))).reshape(-1)[:1]
    scale = np.asarray(widest / np.float32(STEPS[name]), np.float32)
    return Quantization(name, scale, np.zeros(1, np.int64), _FIRST[name], _LAST[name])


def divisible(found: Quantization) -> Quantization:
    """With a scale to divide by."""
    assert found.scale is not None
    return replace(found, scale=np.maximum(found.scale, _TINY))


def grid_by_channel(widest: Array) -> Quantization:
    """Of weights, from the largest magnitude of each channel."""
    scale = np.maximum(np.float32(widest) / np.float32(STEPS["int8"]), _TINY).astype(np.float32)
    return Quantization("int8", scale, np.zeros(scale.shape, np.int64), -128, 127, axis=0)


def unknown_grid(dtype: Any) -> Quantization:
    """Found while the model runs."""
    name = np.dtype(dtype).name
    return Quantization(name, None, None, _FIRST[name], _LAST[name])


def is_whole(dtype: Any) -> bool:
    return np.dtype(dtype).name in _LAST
