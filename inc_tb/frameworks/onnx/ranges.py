"""Ranges to which tensors could be rounded: from numbers that the fp32 model has there, and where they end.

All are found in one pass. What is kept of a tensor is a sample of its numbers, drawn evenly, and its ends: of those few
that lie far out an even sample says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from inc_tb.frameworks.feeds import count_rows, whole_inputs
from inc_tb.frameworks.memory import default_budget
from inc_tb.frameworks.onnx.adapter import describe_input
from inc_tb.frameworks.onnx.graph import Graph
from inc_tb.frameworks.onnx.model import RANGES
from inc_tb.frameworks.onnx.plan import Planner
from inc_tb.frameworks.onnx.sessions import Session
from inc_tb.frameworks.onnx.sites import RoundedTo
from inc_tb.frameworks.ops import Array, Batch, Range

_Numbers = npt.NDArray[np.float64]
_DRAWN = 1 << 16
"""Numbers of a tensor, over all samples."""
_TAIL, _MIDDLE = 1000, 3000
"""Of those in their order: at each end all, between them so many."""
_SHRUNK = np.array([1.0, 0.97, 0.93, 0.88, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.12, 0.07, 0.04, 0.02, 0.01])
_LEVELS, _BINS, _EVERY = 128, 1024, 32
"""Of the entropy: numbers that are told apart in int8, and in fp32; which thresholds are tried."""
_PARTS = (4, 16, 64)
"""For what lies far out and means nothing: a softmax or sigmoid behind it takes it as it takes smaller numbers."""
_TINY = 1e-12


class Seen:
    """Numbers of one tensor."""

    def __init__(self) -> None:
        self.low, self.high = np.inf, -np.inf
        self._drawn: list[Array] = []
        self._number = 0

    def add(self, values: Array, most: int, draw: np.random.Generator) -> None:
        flat = np.asarray(values).reshape(-1)
        if not flat.size:
            return
        self.low, self.high = min(self.low, float(flat.min())), max(self.high, float(flat.max()))
        self._number += flat.size
        self._drawn.append(flat if flat.size <= most else flat[draw.integers(flat.size, size=most)])

    @property
    def is_finite(self) -> bool:
        return bool(self._drawn) and bool(np.isfinite([self.low, self.high]).all())

    def weighted(self) -> tuple[_Numbers, _Numbers]:
        """Numbers in their order, and how many of all each stands for."""
        drawn = np.sort(np.concatenate(self._drawn).astype(np.float64))
        at = np.arange(len(drawn))
        if len(drawn) > 2 * _TAIL + _MIDDLE:
            between = np.linspace(_TAIL, len(drawn) - _TAIL - 1, _MIDDLE).astype(int)
            at = np.concatenate([at[:_TAIL], between, at[-_TAIL:]])
        each = np.diff(at, append=len(drawn)) * (self._number / len(drawn))
        return np.concatenate([[self.low], drawn[at], [self.high]]), np.concatenate([[1.0], each, [1.0]])


def find_ranges(
    reference: Graph, quantized: Graph, grids: Mapping[str, RoundedTo], batches: Sequence[Batch]
) -> dict[str, dict[str, Range]]:
    """For each tensor, by how it was found; not of those whose numbers have no end."""
    seen = _read(reference, quantized, list(grids), batches)
    return {tensor: _offered(seen[tensor], grid) for tensor, grid in grids.items() if seen[tensor].is_finite}


def _read(reference: Graph, quantized: Graph, tensors: Sequence[str], batches: Sequence[Batch]) -> dict[str, Seen]:
    model, draw = reference.model, np.random.default_rng(0)
    whole = whole_inputs([describe_input(i, model) for i in model.inputs])
    seen = {tensor: Seen() for tensor in tensors}
    each = max(1, _DRAWN // max(1, sum(count_rows(batch, whole) for batch in batches)))
    made = [tensor for tensor in tensors if tensor in model.producer]
    planner = Planner(reference, quantized, whole, default_budget(), lambda _: None)
    for batch in batches:
        for tensor in set(tensors) - set(made):
            seen[tensor].add(batch[tensor], each * count_rows(batch, whole), draw)
        for part in planner.plan(batch, made, None):
            session = Session(model, model.with_outputs(part), arena=False)
            for feeds in planner.cut(batch, planner.rows):
                for tensor, values in zip(part, session.run(feeds), strict=True):
                    seen[tensor].add(values, each * count_rows(feeds, whole), draw)
    return seen


def _offered(seen: Seen, grid: RoundedTo) -> dict[str, Range]:
    values, weights = seen.weighted()
    low, high = min(grid.range[0], seen.low, 0.0), max(grid.range[1], seen.high, 0.0)
    first, last = RANGES[grid.dtype]
    found = {
        "minimum and maximum": (seen.low, seen.high),
        "percentile 99.99": _percentile(values, weights, 1e-4),
        "percentile 99.9": _percentile(values, weights, 1e-3),
        "entropy": _entropy(values, weights),
        "least squared error": _least_error(values, weights, low, high, last - first),
        **{f"1/{part} of the largest": _up_to(seen, max(-seen.low, seen.high) / part) for part in _PARTS},
    }
    return {how: (float(f"{min(a, 0.0):.6g}"), float(f"{max(b, 0.0):.6g}")) for how, (a, b) in found.items()}


def _up_to(seen: Seen, largest: float) -> Range:
    return max(seen.low, -largest), min(seen.high, largest)


def _percentile(values: _Numbers, weights: _Numbers, outside: float) -> Range:
    """Half of what is outside on each side."""
    below = np.cumsum(weights) / weights.sum()
    last = len(values) - 1
    low, high = np.searchsorted(below, [outside / 2, 1 - outside / 2])
    return float(values[min(low, last)]), float(values[min(high, last)])


def _least_error(values: _Numbers, weights: _Numbers, low: float, high: float, steps: int) -> Range:
    """One end after the other is brought closer, as long as what is cut off is less than what the rest gains."""

    def error(lows: _Numbers, highs: _Numbers) -> _Numbers:
        scale = np.maximum((highs - lows) / steps, _TINY)[:, None]
        zero = np.rint(-lows[:, None] / scale)
        rounded = (np.clip(np.rint(values / scale) + zero, 0, steps) - zero) * scale
        return np.asarray(np.square(rounded - values) @ weights)

    for _ in range(2):
        highs = high * _SHRUNK
        high = float(highs[np.argmin(error(np.full(len(highs), low), highs))])
        lows = low * _SHRUNK
        low = float(lows[np.argmin(error(lows, np.full(len(lows), high)))])
    return low, high


def _entropy(values: _Numbers, weights: _Numbers) -> Range:
    """The threshold at which 128 levels tell most of what sizes there are."""
    low, high = float(values[0]), float(values[-1])
    largest = max(-low, high)
    if largest <= 0:
        return low, high
    counts = np.histogram(np.abs(values), _BINS, (0, largest), weights=weights)[0]
    tried = range(_LEVELS, _BINS + 1, _EVERY)
    best = tried[int(np.argmin([_divergence(counts, bins) for bins in tried]))]
    threshold = largest * best / _BINS
    return max(low, -threshold), min(high, threshold)


def _divergence(counts: _Numbers, bins: int) -> float:
    """Of what is left with so many of the bins, from what there is."""
    kept = counts[:bins].copy()
    level = np.arange(bins) * _LEVELS // bins
    sums = np.bincount(level, kept, _LEVELS)
    filled = np.bincount(level, kept > 0, _LEVELS)
    spread = np.where(kept > 0, (sums / np.maximum(filled, 1))[level], 0.0)
    kept[-1] += counts[bins:].sum()
    p, q = kept / kept.sum(), spread / max(spread.sum(), _TINY)
    is_one = p > 0
    return float((p[is_one] * np.log(p[is_one] / np.maximum(q[is_one], _TINY))).sum())
