"""What a format leaves of numbers by nature, whatever the model: few bits make noise without anything being wrong.

Rounded are numbers of a bell shape, as healthy weights are, in groups that share a scale which just reaches the largest
of the group.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from inc_tb.frameworks.ops import Quantization
from inc_tb.measure.stats import PairStats

WATCH_DB = 25.0
"""Worse than healthy int8; a problem only where the model's output is lost."""
NATURAL_SLACK_DB = 3.0
"""Weights with twice the noise that their format gives a bell shape are worse than it must be."""
_BELL = NormalDist()
_SPAN = 7.0
"""Standard deviations beyond which there is nothing."""
_POINTS = 20_001
_MOST_LEVELS = 1 << 12
"""With more the step is so fine that its noise is that of even errors."""


class Natural(NamedTuple):
    sqnr_db: float
    flushed: float
    """Share that becomes zero."""
    reach: float
    """The largest magnitude of a group, in standard deviations."""


def natural(q: Quantization, stats: PairStats) -> Natural:
    """Of numbers like these in this format."""
    mantissa = _mantissa(q.dtype)
    total = max(1.0, stats.total("count"))
    if mantissa is not None:
        return Natural(10 * math.log10(28 * 4.0**mantissa), 0.0, reach(total))
    if q.block:
        group = float(q.block)
    elif q.axis is not None:
        group = total / max(1, q.scale.size if q.scale is not None else stats.channels)
    else:
        group = total
    return _rounded(max(1, q.high - q.low), max(1, round(group)))


def usual(formats: Iterable[tuple[Quantization, PairStats]]) -> Natural | None:
    """Of the format that most of the numbers have."""
    counts: Counter[tuple[str, str, int]] = Counter()
    found: dict[tuple[str, str, int], Natural] = {}
    for q, stats in formats:
        key = q.dtype, q.granularity, q.block
        counts[key] += int(stats.total("count"))
        found.setdefault(key, natural(q, stats))
    return found[counts.most_common(1)[0][0]] if found else None


def _mantissa(dtype: str) -> int | None:
    """Bits behind the point of a floating type; its errors are even between two powers of two."""
    known = {"float16": 10, "bfloat16": 7, "float32": 23}
    found = re.search(r"e\d+m(\d+)", dtype)
    return int(found[1]) if found else known.get(dtype)


def reach(count: float) -> float:
    """The median of the largest magnitude among so many numbers."""
    return _BELL.inv_cdf(min(1 - 1e-12, (1 + 0.5 ** (1 / max(1.0, count))) / 2))


@lru_cache(maxsize=256)
def _rounded(levels: int, group: int) -> Natural:
    """With so many steps from the lowest to the highest number, zero among them."""
    farthest = reach(group)
    step = 2 * farthest / levels
    if levels > _MOST_LEVELS:
        return Natural(10 * math.log10(12 / step**2), step / 2 * 2 * _BELL.pdf(0), farthest)
    x = np.linspace(-_SPAN, _SPAN, _POINTS)
    weight = np.exp(-(x**2) / 2)
    weight /= weight.sum()
    low = -(levels + 1) // 2
    y = np.clip(np.round(x / step), low, low + levels) * step
    inside = np.abs(x) <= farthest  # a group's scale follows what lies further out
    weight = np.where(inside, weight, 0.0)
    noise = float((weight * (x - y) ** 2).sum() / (weight * x**2).sum())
    return Natural(-10 * math.log10(noise), float(weight[y == 0].sum() / weight.sum()), farthest)
