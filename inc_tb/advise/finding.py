"""What a rule answers, and how its numbers are told."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from inc_tb.advise.scene import OUTLIER_RATIO

MOST_LISTED = 32
"""Channels in the evidence."""


class Finding(NamedTuple):
    """What is wrong around an op: the ops to change together, why, and the numbers that say so."""

    ops: list[str]
    because: str
    evidence: Mapping[str, Any] = {}


def outliers_among(ranges: npt.NDArray[np.float64]) -> list[int]:
    """The channels that are much larger than the median one."""
    alive = ranges[ranges > 0]
    found: list[int] = np.flatnonzero(ranges > OUTLIER_RATIO * np.median(alive)).tolist() if alive.size else []
    return found


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
