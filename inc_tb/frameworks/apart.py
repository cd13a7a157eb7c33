"""Whether a sample gives the same alone and beside another: only then may a batch be cut."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from inc_tb.frameworks.feeds import split
from inc_tb.frameworks.ops import Batch

_SAME = 1e-3
"""Of the largest result: sums come in another order where there are other samples beside one."""


def are_apart(run: Callable[[Batch], Sequence[Any]], feeds: Batch, whole: Collection[str] = ()) -> bool:
    """`run` gives results for the first two samples of a batch, and for the second of them alone."""
    two = next(split(feeds, None, 2, whole))
    _, second = split(two, None, 1, whole)
    return all(_is_last_row(a, b) for a, b in zip(run(two), run(second), strict=True))


def _is_last_row(together: Any, alone: Any) -> bool:
    if not isinstance(together, np.ndarray) or not isinstance(alone, np.ndarray):
        return True  # a sequence or a map, which nothing here reads
    if not together.ndim or together.shape == alone.shape:
        return _is_close(together, alone)  # not of the samples
    if together.shape[1:] != alone.shape[1:] or len(together) != 2 * len(alone):
        return True  # what was found in a sample, say, which is as many as there are
    return _is_close(together[len(alone) :], alone)


def _is_close(a: Any, b: Any) -> bool:
    if a.dtype.kind != "f" or not a.size:
        return True  # the place of the largest value, say: two may be as large
    limit = _SAME * float(np.abs(np.nan_to_num(b)).max()) + np.finfo(np.float32).tiny
    return bool(np.allclose(a, b, rtol=0, atol=limit, equal_nan=True))
