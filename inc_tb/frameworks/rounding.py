"""Values to whole numbers and back, as a quantization says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from inc_tb.errors import ModelError
from inc_tb.frameworks.ops import Quantization

_Array = npt.NDArray[Any]
_BLOCK = 1 << 17


def quantize(values: _Array, quantization: Quantization, dtype: Any = np.float32) -> _Array:
    """To the nearest whole numbers, as floats unless told otherwise; what is outside goes to the ends."""
    scale, zero = _aligned(values.ndim, quantization, values.shape)
    made = np.empty(values.shape, dtype)
    for source, target, step, shift in _blocks(np.asarray(values, np.float32), made, scale, zero.astype(np.float32)):
        whole = np.divide(source, step)
        np.rint(whole, out=whole)
        whole += shift
        np.clip(whole, quantization.low, quantization.high, out=whole)
        target[...] = whole
    return made


def dequantize(values: _Array, quantization: Quantization) -> npt.NDArray[np.float32]:
    scale, zero = _aligned(values.ndim, quantization, values.shape)
    made = np.empty(values.shape, np.float32)
    for source, target, step, shift in _blocks(values, made, scale, zero.astype(np.float32)):
        np.subtract(source, shift, out=target, dtype=np.float32, casting="unsafe")
        target *= step
    return made


def _blocks(
    source: _Array, target: _Array, scale: _Array, zero: _Array
) -> Iterator[tuple[_Array, _Array, _Array, _Array]]:
    """Parts that stay in the caches; with a scale for each channel, all at once."""
    if scale.ndim or not (source.flags.c_contiguous and source.size > _BLOCK):
        yield source, target, scale, zero
        return
    flat, made = source.reshape(-1), target.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        yield flat[start : start + _BLOCK], made[start : start + _BLOCK], scale, zero


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
