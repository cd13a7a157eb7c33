"""The grid that dumped values are on, as far as they tell."""

from __future__ import annotations

import math

import numpy as np

from inc_tb.frameworks.ops import Array, Quantization
from inc_tb.sources.neural_compressor.dump import DOUBLED
from inc_tb.sources.neural_compressor.layout import grid_of

LEVELS = 256
_OFF_GRID = 0.02
"""Of a step: what float32 makes of whole numbers times a scale."""
_UNSIGNED = 255 / 127
"""Most unsigned values of TensorFlow are scaled by their range over 127, too, where 255 steps would be right."""


def step_of(values: Array) -> float | None:
    """The distance of neighbors where all values are whole multiples of it, with at most 256 in all."""
    levels = np.unique(values[np.isfinite(values)])
    if not 8 <= len(levels) <= LEVELS:
        return None
    step = float(np.diff(levels.astype(np.float64)).min())
    counts = levels / step
    if np.ptp(counts) > LEVELS:
        return None
    whole = np.abs(counts) >= 1
    step *= float(np.median(counts[whole] / np.round(counts[whole])))  # the smallest difference is rough
    off = np.abs(levels / step - np.round(levels / step)).max()
    return step if off < _OFF_GRID else None


def grid_in(values: Array, seen: tuple[float, float] | None) -> Quantization | None:
    """As far as the values tell: where there are negative ones, the calibration has to say where zero is."""
    step = step_of(values)
    if step is None:
        return None
    if values.min() >= 0:
        return grid_of("uint8", step, 0)
    return grid_of("uint8", step, round(-seen[0] / step)) if seen is not None and seen[0] < 0 else None


def too_large_by(reference: Array, quantized: Array, seen: tuple[float, float] | None) -> float:
    """By which its values are too large: told by the step that the calibration gives, or else by the fp32 values.

    Not all are: what is not on a grid was a float in the quantized model, too.
    """
    step = step_of(quantized)
    if step is None:
        return 1.0
    wrong = _UNSIGNED if quantized.min() >= 0 else DOUBLED
    if seen is not None and max(-seen[0], seen[1]) > 0:
        ratio = step / (seen[1] / 255 if seen[0] >= 0 else max(-seen[0], seen[1]) / 127)
    else:
        ratio = float((reference * quantized).sum()) / max(float((reference * reference).sum()), 1e-30)
    return wrong if ratio > math.sqrt(wrong) else 1.0
