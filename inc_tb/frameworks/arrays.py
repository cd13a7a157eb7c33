"""Arrays: whatever people have as one, and how alike two are."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from inc_tb.frameworks.registry import frameworks


def as_array(value: Any) -> npt.NDArray[Any]:
    """Takes tensors of all frameworks: quantized ones, half types, on any device, with a history or without."""
    if not isinstance(value, np.ndarray):
        for framework in frameworks():
            found = framework.as_array(value)
            if found is not None:
                return found
    return np.asarray(value)


def alike(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    """Cosine of the angle between two arrays; 1 for equal, about 0 for unrelated ones."""
    if a.shape != b.shape:
        return -1.0
    x, y = a.ravel(), b.ravel()
    norms = float(np.sqrt(_product(x, x) * _product(y, y)))
    return _product(x, y) / norms if norms > 0 else float(np.array_equal(x, y))


def _product(x: npt.NDArray[Any], y: npt.NDArray[Any]) -> float:
    """In float64, block by block; no dot product: waking BLAS's threads takes longer than most weights."""
    return float(np.einsum("i,i->", x, y, dtype=np.float64, casting="same_kind"))


def distance(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    return float(np.square(a - b, dtype=np.float64).mean())
