"""Every measure of a pair of arrays: one function each of its sums, with its unit, normal range and explanation.

To add one: write a function that returns a number, or a sentence that says why there is none, and put it with its
column into the table below that it belongs to. The op table has it then, for weights and outputs, and so has the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from inc_tb.frameworks.ops import Quantization
from inc_tb.measure.stats import PairStats
from inc_tb.records import Cell, Column

PairCompute = Callable[[PairStats, Quantization | None], Cell]

NO_ERROR = "no error at all: both are equal"
ALL_ZERO = "the reference is zero everywhere"
_EMPTY = "no finite value was seen"


def mean(total: float, stats: PairStats) -> Cell:
    return total / stats.total("count") if stats.total("count") else _EMPTY


def variance(stats: PairStats, which: str) -> Cell:
    low, high = minimum(stats, which), maximum(stats, which)
    if isinstance(low, str) or isinstance(high, str):
        return _EMPTY
    if low == high:
        return 0.0
    n = stats.total("count")
    average = stats.total(which) / n
    return max(0.0, stats.total(f"{which}2") / n - average * average)


def deviation(stats: PairStats, which: str) -> Cell:
    found = variance(stats, which)
    return found if isinstance(found, str) else math.sqrt(found)


def minimum(stats: PairStats, which: str) -> Cell:
    found = -stats.extreme(f"neg_{which}_min")
    return found if math.isfinite(found) else _EMPTY


def maximum(stats: PairStats, which: str) -> Cell:
    found = stats.extreme(f"{which}_max")
    return found if math.isfinite(found) else _EMPTY


def value_range(stats: PairStats, which: str) -> Cell:
    low, high = minimum(stats, which), maximum(stats, which)
    return low if isinstance(low, str) else high if isinstance(high, str) else high - low


def mse(stats: PairStats, _: Quantization | None = None) -> Cell:
    return mean(stats.total("e2"), stats)


def nmse(stats: PairStats, _: Quantization | None = None) -> Cell:
    power = stats.total("x2")
    if power > 0:
        return stats.total("e2") / power
    return ALL_ZERO if stats.total("count") else _EMPTY


def sqnr_db(stats: PairStats, _: Quantization | None = None) -> Cell:
    ratio = nmse(stats)
    if isinstance(ratio, str):
        return ratio
    if not math.isfinite(ratio):
        return "the values are too large to be squared"
    return -10 * math.log10(ratio) if ratio > 0 else NO_ERROR


def cosine(stats: PairStats, _: Quantization | None = None) -> Cell:
    norms = math.sqrt(stats.total("x2")) * math.sqrt(stats.total("y2"))
    if norms > 0:
        return max(-1.0, min(1.0, stats.total("xy") / norms))
    return "one of the two is zero everywhere" if stats.total("count") else _EMPTY


def max_abs(stats: PairStats, _: Quantization | None = None) -> Cell:
    found = stats.extreme("e_abs")
    return found if math.isfinite(found) else _EMPTY


def rmse_lsb(stats: PairStats, quantization: Quantization | None) -> Cell:
    if quantization is None:
        return "this tensor is not quantized"
    if quantization.scale is None:
        return "the step is chosen anew for each batch"
    if quantization.dtype.startswith("float"):
        return f"{quantization.dtype} has no fixed step"
    if not stats.total("count"):
        return _EMPTY
    scale = quantization.scale.astype(np.float64).ravel()
    if not np.all(scale != 0):
        return "the scale is 0"
    if scale.size == 1:
        return math.sqrt(stats.total("e2") / stats.total("count")) / abs(float(scale[0]))
    if scale.size != stats.channels:
        return "the steps lie along another axis than the channels"
    in_steps = stats.channel_sums("e2") / scale**2
    return math.sqrt(float(in_steps.sum()) / stats.total("count"))


def inc_mse(stats: PairStats, _: Quantization | None = None) -> Cell:
    """Each side scaled to 0…1 by its own range first, as Neural Compressor does; worked out from the sums."""
    x_low, x_high, y_low, y_high = (f(stats, w) for w in "xy" for f in (minimum, maximum))
    if isinstance(x_low, str) or isinstance(x_high, str) or isinstance(y_low, str) or isinstance(y_high, str):
        return _EMPTY
    if x_high == x_low or y_high == y_low:
        return "one of the two is constant, so it has no range"
    a, b = 1 / (x_high - x_low), 1 / (y_high - y_low)
    c = y_low * b - x_low * a
    s = {name: stats.total(name) for name in ("count", "x", "x2", "y", "y2", "xy")}
    total = a * a * s["x2"] + b * b * s["y2"] + c * c * s["count"]
    total += -2 * a * b * s["xy"] + 2 * a * c * s["x"] - 2 * b * c * s["y"]
    return max(0.0, total) / s["count"]


def clipped(stats: PairStats, quantization: Quantization | None) -> Cell:
    if quantization is None or quantization.limits is None:
        return "this tensor has no fixed range"
    return mean(stats.total("clipped"), stats)


def range_used(stats: PairStats, quantization: Quantization | None) -> Cell:
    if quantization is None or quantization.limits is None:
        return "this tensor has no fixed range"
    low, high = (np.asarray(limit, np.float64).ravel() for limit in quantization.limits)
    if low.size > 1 or high.size > 1:
        return "each channel has a range of its own"
    least, most = minimum(stats, "x"), maximum(stats, "x")
    if isinstance(least, str) or isinstance(most, str):
        return _EMPTY
    if high[0] <= low[0]:
        return "its range is empty"
    reached = min(most, float(high[0])) - max(least, float(low[0]))
    return max(0.0, reached) / float(high[0] - low[0])


def flushed(stats: PairStats, quantization: Quantization | None) -> Cell:
    if quantization is None:
        return "this tensor is not quantized"
    nonzero = stats.total("nonzero")
    return stats.total("flushed") / nonzero if nonzero else ALL_ZERO


def kurtosis(stats: PairStats, _: Quantization | None = None) -> Cell:
    spread = variance(stats, "x")
    if isinstance(spread, str):
        return spread
    if spread == 0:
        return "the tensor is constant"
    n = stats.total("count")
    if spread < 1e-7 * stats.total("x2") / n:
        return "the values vary too little around a large mean"
    m1, m2, m3, m4 = (stats.total(name) / n for name in ("x", "x2", "x3", "x4"))
    fourth = m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4
    return fourth / spread**2


def channel_ranges(stats: PairStats) -> npt.NDArray[np.float64]:
    """The larger of |min| and |max| of each channel's reference; NaN where nothing was seen."""
    found = np.maximum(stats.channel_extremes("neg_x_min"), stats.channel_extremes("x_max"))
    return np.where(np.isfinite(found), found, np.nan)


def channel_ratio(stats: PairStats, _: Quantization | None = None) -> Cell:
    if stats.channels < 2:
        return "there is only one channel"
    ranges = channel_ranges(stats)
    alive = ranges[ranges > 0]
    if not alive.size:
        return ALL_ZERO if stats.total("count") else _EMPTY
    return float(alive.max() / np.median(alive))


def channel_sqnr_db(stats: PairStats) -> npt.NDArray[np.float64]:
    """SQNR of each channel; NaN where it has no signal, infinite where it has no error."""
    signal, noise = stats.channel_sums("x2"), stats.channel_sums("e2")
    with np.errstate(divide="ignore", invalid="ignore"):
        found: npt.NDArray[np.float64] = 10 * np.log10(signal / noise)
    return np.where(signal > 0, found, np.nan)


def worst_channel(stats: PairStats, _: Quantization | None = None) -> Cell:
    if stats.channels < 2:
        return "there is only one channel"
    found = channel_sqnr_db(stats)
    if np.isnan(found).all():
        return ALL_ZERO if stats.total("count") else _EMPTY
    return float(np.nanargmin(found)) if np.isfinite(found).any() else NO_ERROR


def worst_channel_sqnr_db(stats: PairStats, _: Quantization | None = None) -> Cell:
    at = worst_channel(stats)
    return at if isinstance(at, str) else float(channel_sqnr_db(stats)[int(at)])


_RANGE = (
    "Largest minus smallest value of the fp32 {what}. No range is wrong by itself, but outliers that stretch it make "
    "the step coarse for all others: the channel ratio and the kurtosis tell."
)
VALUES: Sequence[tuple[str, str, str, PairCompute]] = (
    ("min", "min", "Smallest value of the fp32 {what}.", lambda s, _: minimum(s, "x")),
    ("max", "max", "Largest value of the fp32 {what}.", lambda s, _: maximum(s, "x")),
    ("range", "range", _RANGE, lambda s, _: value_range(s, "x")),
    ("mean", "mean", "Average of the fp32 {what}.", lambda s, _: mean(s.total("x"), s)),
    ("std", "std", "Standard deviation of the fp32 {what}.", lambda s, _: deviation(s, "x")),
    ("var", "variance", "Variance of the fp32 {what}.", lambda s, _: variance(s, "x")),
    ("q_min", "min int8", "Smallest value of the quantized {what}, dequantized.", lambda s, _: minimum(s, "y")),
    ("q_max", "max int8", "Largest value of the quantized {what}, dequantized.", lambda s, _: maximum(s, "y")),
    ("q_mean", "mean int8", "Average of the quantized {what}, dequantized.", lambda s, _: mean(s.total("y"), s)),
    ("q_std", "std int8", "Standard deviation of the quantized {what}.", lambda s, _: deviation(s, "y")),
    ("q_var", "variance int8", "Variance of the quantized {what}.", lambda s, _: variance(s, "y")),
)
ERRORS: Sequence[tuple[Column, PairCompute]] = (
    (Column("mse", label="MSE", unit="value²", better="lower",
            help="Average squared difference. Depends on how large the values are, so do not compare ops by it."), mse),
    (Column("nmse", label="noise / signal", unit="ratio", better="lower", normal=(0, 0.003),
            help="Energy of the error over energy of the fp32 values. 0.003 is 25 dB; at 1 noise equals signal."),
     nmse),
    (Column("sqnr_db", label="SQNR", unit="dB", better="higher", normal=(25, None),
            help="Signal to quantization noise. int8 usually has 30 to 45; under 20 is suspicious, 0 is all noise."),
     sqnr_db),
    (Column("cosine", label="cosine", unit="ratio", better="higher", normal=(0.998, 1),
            help="Cosine of the angle between both tensors. 1 is the same direction, 0 is unrelated."), cosine),
    (Column("max_abs", label="max |error|", unit="value", better="lower", help="The single largest difference."),
     max_abs),
    (Column("rmse_lsb", label="RMSE in steps", unit="steps", better="lower", normal=(0, 1),
            help="Root mean square error in quantization steps. 0.29 is what rounding alone gives; above 1 "
                 "something is clipped, the scale is wrong, or error arrived from upstream."), rmse_lsb),
    (Column("inc_mse", label="MSE (INC)", unit="ratio", better="lower",
            help="The MSE that Neural Compressor prints: both tensors scaled to 0…1 by their own range first. Kept for "
                 "comparison with old logs; it hides outliers, so do not rank by it."), inc_mse),
)  # fmt: skip
CHANNELS: Sequence[tuple[Column, PairCompute]] = (
    (Column("channel_ratio", label="channel ratio", unit="ratio", better="lower", normal=(1, 16),
            help="Range of the largest channel over the median one. Above 16, one scale for all leaves most channels "
                 "fewer than 4 of 8 bits."), channel_ratio),
    (Column("worst_channel", label="worst channel", unit="index", help="The channel with the lowest SQNR."),
     worst_channel),
    (Column("worst_channel_sqnr_db", label="worst channel SQNR", unit="dB", better="higher", normal=(15, None),
            help="SQNR of the worst channel alone. Near 0 it is lost, which is harmless if it carries little."),
     worst_channel_sqnr_db),
)  # fmt: skip
CAUSES: Sequence[tuple[Column, PairCompute]] = (
    (Column("clipped", label="clipped", unit="share", better="lower", normal=(0, 0.001),
            help="Share of fp32 values outside of what the quantized type can represent. Calibration should leave "
                 "less than 0.1 % outside."), clipped),
    (Column("range_used", label="range used", unit="share",
            help="How much of the range that calibration chose these samples reach. Little of it: the step is coarser "
                 "than they need. All of it, with a share clipped: they reach further than what was calibrated with."),
     range_used),
    (Column("flushed", label="flushed to zero", unit="share", better="lower", normal=(0, 0.2),
            help="Share of non-zero fp32 values that became exactly zero. Many mean that the step is too coarse for "
                 "most values."), flushed),
    (Column("kurtosis", label="kurtosis", unit="ratio", better="lower", normal=(1, 30),
            help="How heavy the tails are: 3 for a bell curve, 1.8 for a flat one. High values mean few outliers that "
                 "stretch the range."), kurtosis),
)  # fmt: skip
