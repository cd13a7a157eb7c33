"""A histogram whose bins need no range in advance.

A float's own bits are its bin: sign, exponent and the first five bits of the mantissa, 32 bins an
octave. The 16 octaves below the largest magnitude are kept and everything smaller is one bin
around zero, so an outlier never flattens the bulk the way it does with equal bins. What is kept
depends on the largest value alone, not on the order in which values came, so splitting and
merging give identical counts. All histograms lie on the same grid of edges.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import numpy as np
import numpy.typing as npt

from inc_tb.records.rows import BINS

KEY_SHIFT = 18
KEYS = 1 << (32 - KEY_SHIFT)
PER_OCTAVE = 32
SIDE = BINS // 2
OCTAVES = SIDE // PER_OCTAVE

Counts = npt.NDArray[np.int64]


def keys(values: npt.NDArray[np.float32]) -> npt.NDArray[np.intp]:
    return (values.view(np.uint32) >> np.uint32(KEY_SHIFT)).astype(np.intp)


@dataclass
class Histogram:
    """Counts from the most negative bin to the most positive; `top` is the highest biased exponent."""

    top: int = OCTAVES
    counts: Counts = field(default_factory=lambda: np.zeros(BINS, np.int64))

    def merge(self, other: Histogram) -> None:
        top = max(self.top, other.top)
        self.counts = self.raised(top)
        self.counts += other.raised(top)
        self.top = top

    def raised(self, top: int) -> Counts:
        """The counts as they would be had a value with exponent `top` been seen."""
        drop = min((top - self.top) * PER_OCTAVE, SIDE)
        if drop == 0:
            return self.counts
        counts = np.zeros(BINS, np.int64)
        counts[drop:SIDE] = self.counts[: SIDE - drop]
        counts[SIDE] = self.counts[SIDE - drop : SIDE + drop + 1].sum()
        counts[SIDE + 1 : BINS - drop] = self.counts[SIDE + 1 + drop :]
        return counts

    @property
    def edges(self) -> npt.NDArray[np.float64]:
        return edges(self.top)

    @property
    def total(self) -> int:
        return int(self.counts.sum())


def edges(top: int) -> npt.NDArray[np.float64]:
    """The BINS + 1 edges of a histogram with this top exponent."""
    key = np.arange(SIDE + 1) + (top - OCTAVES + 1) * PER_OCTAVE
    mantissa = 1 + (key % PER_OCTAVE) / PER_OCTAVE
    positive = np.ldexp(mantissa, key // PER_OCTAVE - 127)
    return cast("npt.NDArray[np.float64]", np.concatenate([-positive[::-1], positive]))


def from_keys(table: Counts) -> Histogram:
    """`table` counts the values of each key (see `keys`); non-finite ones are not in it."""
    both = table.reshape(2, KEYS // 2)
    used = np.flatnonzero(both.any(axis=0))
    if not used.size:
        return Histogram()
    top = max(OCTAVES, int(used[-1]) // PER_OCTAVE)
    low = (top - OCTAVES + 1) * PER_OCTAVE
    counts = np.empty(BINS, np.int64)
    counts[:SIDE] = both[1, low : low + SIDE][::-1]
    counts[SIDE] = both[:, :low].sum()
    counts[SIDE + 1 :] = both[0, low : low + SIDE]
    return Histogram(top, counts)
