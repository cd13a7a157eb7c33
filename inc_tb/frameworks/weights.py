"""Weights that a quantizer has folded something into."""

from __future__ import annotations

import numpy as np

from inc_tb.frameworks.ops import Array


def unfolded(own: Array, folded: Array, quantized: Array) -> Array:
    """Quantized weights in the place of a model's own, where what was folded in, a batch norm, still is an op.

    `folded` are its own with that folded in, which is what was quantized.
    """
    if np.array_equal(own, folded):
        return np.asarray(quantized, own.dtype)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(folded != 0, own / folded, 0)
    return np.asarray(own + (quantized - folded) * factor, own.dtype)
