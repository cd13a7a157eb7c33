"""Whether the noise of a tensor has changed from one run to another, or only seems to.

The noise of a sample is its error over its energy, in dB. Of samples that both runs have seen the difference is taken
sample by sample, which leaves out how much samples differ from each other; else the two means are compared.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from inc_tb.measure.by_sample import ID_BYTES, Numbers
from inc_tb.profiling.noise import quantile

LEVEL = 0.01
"""How often an equal model may seem to be worse by mistake, all tests of one kind taken together."""
RARE_LEVEL = 0.005
"""The same for faults that only few samples show."""
LEAST_SAMPLES = 8
_QUIET_DB, _LOUD_DB = -80.0, 100.0
"""Beyond these it makes no difference any more: below rounding to 16 bits, and what is not finite."""
_RARE_DB = 6.0
"""By how much a single sample has to change to be told from the others."""

Decibels = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]


class Noise(NamedTuple):
    """Of one tensor in one run; NaN for samples without a signal."""

    decibels: Decibels
    is_finite: npt.NDArray[np.bool_]


class Pairing(NamedTuple):
    """Where the samples are that both runs have seen; `is_paired` if they are enough to go by them alone."""

    base: Places
    new: Places
    is_paired: bool


class Change(NamedTuple):
    """How much more noise there is in the new run, in dB, with the interval that holds it; and the two levels."""

    base: float
    new: float
    middle: float
    low: float
    high: float
    samples: int
    rare: int = 0
    """How many samples are much worse, where those that are much better cannot be due to the same chance."""
    lost: int = 0
    """How many samples have no finite result any more."""

    def is_worse(self, least_db: float) -> bool:
        return (self.low > 0 and self.middle >= least_db) or self.rare > 0 or self.lost > 0

    def is_better(self, least_db: float) -> bool:
        return self.high < 0 and self.middle <= -least_db and not self.is_worse(least_db)


def noise(power: Numbers, error: Numbers) -> Noise:
    is_finite = np.isfinite(error)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        found = 10 * np.log10(error.astype(np.float64) / power.astype(np.float64))
    found = np.where((power > 0) & np.isfinite(power), np.clip(found, _QUIET_DB, _LOUD_DB), np.nan)
    return Noise(found, is_finite)


def pair(base: bytes, new: bytes) -> Pairing:
    """By the ids of both; a sample that is there several times is paired as often."""
    waiting: dict[bytes, list[int]] = defaultdict(list)
    for place, own in enumerate(_ids(base)):
        waiting[own].append(place)
    found = [(waiting[own].pop(0), place) for place, own in enumerate(_ids(new)) if waiting.get(own)]
    places = np.array(found, np.int64).reshape(-1, 2)
    fewer = min(len(base), len(new)) // ID_BYTES
    return Pairing(places[:, 0], places[:, 1], len(found) >= max(LEAST_SAMPLES, fewer / 4))


def change(base: Noise, new: Noise, pairing: Pairing, tests: int = 1) -> Change | None:
    """One of so many that are tested; None where there are too few samples to tell."""
    if pairing.is_paired:
        kept = (pairing.base < len(base.decibels)) & (pairing.new < len(new.decibels))
        before, after = (
            Noise(side.decibels[at[kept]], side.is_finite[at[kept]])
            for side, at in ((base, pairing.base), (new, pairing.new))
        )
        return _paired(before, after, tests)
    return _apart(base, new, tests)


def _paired(base: Noise, new: Noise, tests: int) -> Change | None:
    known = ~np.isnan(base.decibels) & ~np.isnan(new.decibels)
    before, after = base.decibels[known], new.decibels[known]
    if len(before) < LEAST_SAMPLES:
        return None
    found = after - before
    error = float(found.std(ddof=1)) / math.sqrt(len(found))
    half = quantile(1 - LEVEL / tests, len(found) - 1) * error
    middle, much = float(found.mean()), found[np.abs(found) >= _RARE_DB]
    rare = int((much > 0).sum())
    is_chance = _chance(rare, len(much)) > RARE_LEVEL / tests
    lost = int((base.is_finite & ~new.is_finite)[known].sum())
    levels = float(before.mean()), float(after.mean())
    return Change(*levels, middle, middle - half, middle + half, len(found), 0 if is_chance else rare, lost)


def _apart(base: Noise, new: Noise, tests: int) -> Change | None:
    """Welch's test: the two need not vary alike."""
    before, after = (side.decibels[~np.isnan(side.decibels)] for side in (base, new))
    fewest = min(len(before), len(after))
    if fewest < LEAST_SAMPLES:
        return None
    shares = [float(side.var(ddof=1)) / len(side) for side in (before, after)]
    degrees = [share * share / (len(side) - 1) for share, side in zip(shares, (before, after), strict=True)]
    freedom = int(sum(shares) ** 2 / sum(degrees)) if sum(degrees) else fewest - 1
    half = quantile(1 - LEVEL / tests, max(1, freedom)) * math.sqrt(sum(shares))
    levels = float(before.mean()), float(after.mean())
    middle = levels[1] - levels[0]
    lost = 0 if not base.is_finite.all() else int((~new.is_finite).sum())
    return Change(*levels, middle, middle - half, middle + half, fewest, lost=lost)


def _chance(heads: int, throws: int) -> float:
    """Of at least so many heads."""
    ways = sum(math.comb(throws, k) for k in range(heads, throws + 1))
    return ways / (1 << throws)


def _ids(stored: bytes) -> Sequence[bytes]:
    return [stored[i : i + ID_BYTES] for i in range(0, len(stored), ID_BYTES)]
