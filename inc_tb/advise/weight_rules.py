"""Rules about the weights of an op: see rules.py, where they have their place."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from inc_tb.advise.finding import MOST_LISTED, Finding, outliers_among
from inc_tb.advise.scene import Scene, flushed_weights, number, weight_db, weights_explain
from inc_tb.frameworks.ops import Quantization
from inc_tb.measure import metrics
from inc_tb.measure.natural import NATURAL_SLACK_DB, natural, reach
from inc_tb.measure.op_table import Measurement
from inc_tb.measure.stats import PairStats

PER_CHANNEL_GAIN_DB = 6.0
ROUNDING_STEPS = 1.0
"""Errors of weights that are larger than this, in steps and on average, are not those of rounding."""
MISFIT = 0.5
"""Share of the weights' error that a factor and a shift explain."""
HALF_STEP = 0.505
"""The largest error of rounding, in steps, with what computing it adds."""
_GONE = 0.01
"""Weights that come out this many times smaller are rounded to zero."""
WRAPPED = 0.9
"""Error of a weight, as a share of the range of all, that only the step from one end to the other makes."""
ALL_ALIKE = 0.95
"""Share of the error above which a factor and a shift are all that is wrong."""
FAR_OUT = 1.5
"""How much further out than in a bell shape weights lie that stretch their scale."""
FEW = 32
"""Weights in a channel."""


def weights_per_tensor(m: Measurement, scene: Scene) -> Finding | None:
    if m.weight is None or m.op.weight is None or m.op.weight.granularity != "per tensor" or m.weight.channels < 2:
        return None
    in_steps, ratio = metrics.rmse_lsb(m.weight, m.op.weight), number(metrics.channel_ratio(m.weight))
    if not weights_explain(m) or (not isinstance(in_steps, str) and in_steps > ROUNDING_STEPS):
        return None
    gain = _gain_per_channel_db(m.weight, m.op.weight)
    if gain < PER_CHANNEL_GAIN_DB or weight_db(m) + gain < natural(m.op.weight, m.weight).sqnr_db - NATURAL_SLACK_DB:
        return None  # as where some weights of every channel are far too large: its own scale does not cure that
    because = (
        f"the weights of {m.op.name} share one scale although its largest channel is {ratio:.1f} times the median one "
        f"({weight_db(m):.1f} dB): give each channel a scale of its own, or keep it in fp32"
    )
    evidence = {
        "weight_sqnr_db": weight_db(m), "channel_ratio": ratio, "expected_gain_db": gain,
        "weight_channels": outliers_among(metrics.channel_ranges(m.weight))[:MOST_LISTED],
    }  # fmt: skip
    return Finding(scene.unit_ops(m.op.name), because, evidence)


def _gain_per_channel_db(weight: PairStats, q: Quantization) -> float:
    """What scales of their own would do for the channels, over the whole or for the median one, whatever is more."""
    step = metrics.channel_ranges(weight) * 2 / (q.high - q.low)
    now, then = weight.channel_sums("e2"), weight.channel_sums("count") * step**2 / 12
    known = (now > 0) & (then > 0)
    if not known.any():
        return 0.0
    ratio = max(float(now[known].sum() / then[known].sum()), float(np.median(now[known] / then[known])))
    return 10 * math.log10(ratio)


class _Line(NamedTuple):
    """Quantized weights as a factor of the fp32 ones and a shift, channel by channel."""

    explained: float
    """Share of the error."""
    is_factor: bool
    """Rather than a shift."""
    channel: int | None
    """Where that does most harm; None where all are taken together."""
    factor: float
    shift: float
    """In that channel."""


def _line(weight: PairStats) -> _Line:
    names = ("count", "x", "x2", "y", "xy", "e2")
    sums = [weight.channel_sums(name) for name in names]
    if weight.total("count") < len(sums[0]) * FEW:  # so few that a line goes through them by chance
        sums = [np.array([weight.total(name)]) for name in names]
    n, x, x2, y, xy, e2 = sums
    with np.errstate(divide="ignore", invalid="ignore"):
        spread, shift = x2 - x * x / n, (y - x) / n
        factor = np.where(spread > 0, (xy - x * y / n) / spread, 1.0)
        by_factor, by_shift = (factor - 1) ** 2 * spread, np.where(n > 0, shift**2 * n, 0.0)
    at = int(np.argmax(by_factor + by_shift))
    explained = float(by_factor.sum() + by_shift.sum()) / float(e2.sum())
    is_factor = bool(by_factor.sum() >= by_shift.sum())
    return _Line(explained, is_factor, at if len(n) > 1 else None, float(factor[at]), float(shift[at]))


def misfit_weights(m: Measurement, scene: Scene) -> Finding | None:
    """Quantized weights that are the fp32 ones times a factor, or moved: a wrong scale or zero point."""
    if m.weight is None or not weights_explain(m) or _is_rounding(m.weight, m.op.weight):
        return None
    line = _line(m.weight)
    if line.explained < MISFIT or (line.is_factor and abs(line.factor) < _GONE):
        return None
    of_channel = f" of channel {line.channel}" if line.channel is not None else ""
    times, away = f"are about {line.factor:.2f} times", f"lie about {line.shift:+.3g} from"
    how, why = (times, "scale") if line.is_factor else (away, "zero point")
    because = (
        f"{line.explained:.0%} of the error of the weights of {m.op.name} is no rounding: those{of_channel} {how} the "
        f"fp32 ones ({weight_db(m):.1f} dB). Their {why} does not fit them; quantize them anew, or keep it in fp32"
    )
    evidence = {
        "weight_sqnr_db": weight_db(m), "explained": line.explained, "factor": line.factor, "shift": line.shift,
    }  # fmt: skip
    return Finding(scene.unit_ops(m.op.name), because, evidence)


def _is_rounding(weight: PairStats, q: Quantization | None) -> bool:
    """Whether no weight is further off than half a step, as far as steps are known."""
    if q is None or q.scale is None or q.block or q.dtype.startswith("float"):
        return False
    steps = np.abs(q.scale.astype(np.float64).ravel())
    if steps.size not in (1, weight.channels):
        return False
    return bool(np.all(weight.channel_extremes("e_abs") <= HALF_STEP * steps))


def wrapped_weights(m: Measurement, scene: Scene) -> Finding | None:
    """Weights from one end of the range that came out at the other: integers that overflowed."""
    if m.weight is None or m.op.weight is None or not weights_explain(m):
        return None
    stats, by_channel = m.weight, m.op.weight.granularity != "per tensor"
    names = ("neg_x_min", "x_max", "neg_y_min", "y_max", "e_abs")
    low, high, y_low, y_high, worst = (
        stats.channel_extremes(name) if by_channel else np.array([stats.extreme(name)]) for name in names
    )
    mine, theirs = low + high, y_low + y_high
    # What is clipped or made zero has far less of a range than before.
    of_range = np.where((mine > 0) & (2 * theirs >= mine), worst / np.maximum(np.maximum(mine, theirs), 1e-300), 0.0)
    at = int(np.argmax(of_range))
    if of_range[at] < WRAPPED or _line(stats).explained > ALL_ALIKE:
        return None
    share = stats.total("e2") / (float(np.max(worst)) ** 2 * stats.total("count"))
    because = (
        f"weights of {m.op.name} wrapped around: values at one end of their range, {-low[at]:.3g} to {high[at]:.3g}, "
        f"came out at the other, {worst[at]:.3g} away, at least {share:.1%} of them ({weight_db(m):.1f} dB). Integers "
        f"overflow where they are made {m.op.weight.dtype}; quantize them anew, or keep it in fp32"
    )
    evidence = {
        "weight_sqnr_db": weight_db(m), "of_range": float(of_range[at]), "wrapped": share,
        "max_abs": float(worst[at]),
    }  # fmt: skip
    return Finding(scene.unit_ops(m.op.name), because, evidence)


def weight_outliers(m: Measurement, scene: Scene) -> Finding | None:
    if m.weight is None or m.op.weight is None or not weights_explain(m):
        return None
    low, high = number(metrics.minimum(m.weight, "x")), number(metrics.maximum(m.weight, "x"))
    spread = number(metrics.deviation(m.weight, "x"))
    if max(-low, high) < FAR_OUT * reach(m.weight.total("count")) * spread:
        return None
    because = (
        f"the weights of {m.op.name} reach from {low:.3g} to {high:.3g} with a spread of only {spread:.3g}: rounding "
        f"them to {m.op.weight.dtype} makes {flushed_weights(m):.0%} of them zero and leaves {weight_db(m):.1f} dB"
    )
    evidence = {
        "weight_sqnr_db": weight_db(m), "flushed": flushed_weights(m), "min": low, "max": high, "std": spread,
        "weight_channels": outliers_among(metrics.channel_ranges(m.weight))[:MOST_LISTED],
    }  # fmt: skip
    return Finding(scene.unit_ops(m.op.name), because, evidence)


def weights_worse_than_usual(m: Measurement, scene: Scene) -> Finding | None:
    if m.weight is None or m.op.weight is None or not weights_explain(m):
        return None
    usual = natural(m.op.weight, m.weight).sqnr_db
    because = (
        f"rounding the weights of {m.op.name} to {m.op.weight.dtype} leaves {weight_db(m):.1f} dB, where weights of a "
        f"bell shape have {usual:.0f} with such scales"
    )
    evidence = {"weight_sqnr_db": weight_db(m), "usual_db": usual, "flushed": flushed_weights(m)}
    return Finding(scene.unit_ops(m.op.name), because, evidence)
