"""Whether two series of times differ, or only seem to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]
LEVEL = 0.05
"""How often two equal models may be told apart by mistake, all ops of a model taken together."""
LEAST_BLOCKS = 3
_LARGEST_T = 1e6


class Interval(NamedTuple):
    middle: float
    low: float
    high: float

    @property
    def differs(self) -> bool:
        return self.low > 0 or self.high < 0


def difference(
    first: Sequence[Times], second: Sequence[Times], *, tests: int = 1, resolution: float = 0.0
) -> Interval | None:
    """By how much the second series is larger, from blocks of runs that were made in turn; one of `tests` comparisons.

    Runs of one block share whatever the opening of the models has decided (where buffers lie, which core a thread is
    on), so that not the runs but the blocks are independent of each other. Other work on the machine only makes runs
    longer, so the faster quarter of each block is compared. None where there are too few blocks.
    """
    if len(first) < LEAST_BLOCKS:
        return None
    found = np.array([_fast(b) - _fast(a) for a, b in zip(first, second, strict=True)])
    middle = float(found.mean())
    error = float(found.std(ddof=1)) / math.sqrt(len(found))
    half = quantile(1 - LEVEL / (2 * tests), len(found) - 1) * error + resolution / 2
    return Interval(middle, middle - half, middle + half)


def _fast(times: Times) -> float:
    return float(np.percentile(times, 25))


def quantile(share: float, freedom: int) -> float:
    """Of Student's distribution with so many degrees of freedom, for shares from a half on."""
    low, high = 0.0, _LARGEST_T
    while high - low > 1e-9 * max(1.0, high):
        middle = (low + high) / 2
        low, high = (middle, high) if _cumulated(middle, freedom) < share else (low, middle)
    return high


def _cumulated(t: float, freedom: int) -> float:
    """The series for whole degrees of freedom."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = cosine if odd else 1.0, 0.0
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= cosine**2 * k / (k + 1)
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return (1 + inside) / 2
