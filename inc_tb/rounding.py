"""Values to whole numbers and back, as a quantization says."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from inc_tb.errors import ModelError
from inc_tb.records import Quantization

_Array = npt.NDArray[Any]


def quantize(values: _Array, quantization: Quantization) -> _Array:
    """To the nearest whole numbers, still as floats; what is outside goes to the ends."""
    scale, zero = _aligned(values.ndim, quantization, values.shape)
    whole = np.rint(np.asarray(values, np.float32) / scale) + zero.astype(np.float32)
    return np.asarray(np.clip(whole, np.float32(quantization.low), np.float32(quantization.high)))


def dequantize(values: _Array, quantization: Quantization) -> npt.NDArray[np.float32]:
    scale, zero = _aligned(values.ndim, quantization, values.shape)
    return np.asarray((values.astype(np.float32) - zero.astype(np.float32)) * scale, np.float32)


def rounded(values: _Array, quantization: Quantization) -> npt.NDArray[np.float32]:
    """What is left of the values after both."""
    return dequantize(quantize(values, quantization), quantization)


def _aligned(ndim: int, q: Quantization, shape: tuple[int, ...]) -> tuple[_Array, _Array]:
    """Scale and zero point with a shape that broadcasts against the tensor."""
    if q.scale is None or q.zero_point is None:
        raise ModelError("a quantization scale is computed while the model runs, where a constant was expected.")
    if q.block:
        axis = (q.axis or 0) % ndim
        cut = tuple(slice(0, n) for n in shape)
        return (
            np.repeat(q.scale, q.block, axis=axis)[cut],
            np.repeat(q.zero_point.reshape(q.scale.shape), q.block, axis=axis)[cut],
        )
    if q.axis is None:
        return q.scale.reshape(()), q.zero_point.reshape(())
    at = [1] * ndim
    at[q.axis % ndim] = -1
    return q.scale.reshape(at), q.zero_point.reshape(at)
