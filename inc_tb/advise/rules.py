"""Why an op loses accuracy: one function a rule.

A rule is asked about an op that measurably adds error (its output differs from the reference although it got the
reference's inputs) and answers with a finding or None. Nothing is claimed about ops without a measured effect, so a
healthy model gets no suggestions. To add a rule: write the function, and put it with the meaning of its evidence into
RULES, at its place in the order from the most specific cause to the most general.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from inc_tb.advise import evidence as meaning
from inc_tb.advise.finding import MOST_LISTED, Finding, finite, outliers_among
from inc_tb.advise.range_rules import (
    FAR_APART,
    difference_db,
    joined_db,
    large_bias,
    mask_constant,
    masked_db,
    near_equal_difference,
)
from inc_tb.advise.scene import (
    CLIPPED,
    EXPLAINS_DB,
    FLUSHED,
    LOST_CHANNEL_DB,
    OUTLIER_RATIO,
    Scene,
    added_db,
    harm_db,
    healthy_db,
    known_channels,
    median_channel_db,
    number,
    outlier_ratio,
    reach_of,
    rounding_db,
    share_beyond,
    share_outside,
    weights_explain,
)
from inc_tb.advise.weight_rules import (
    MISFIT,
    WRAPPED,
    misfit_weights,
    weight_outliers,
    weights_per_tensor,
    weights_worse_than_usual,
    wrapped_weights,
)
from inc_tb.measure import metrics
from inc_tb.measure.natural import WATCH_DB
from inc_tb.measure.op_table import Measurement
from inc_tb.records import Column, listed

CLIPPED_STEPS = 2.0
"""How far outside the range values must lie, in steps of eight bits, to be more than rounding at its end."""
TAIL = 1 / 16
IN_TAIL = 0.01
DELICATE = {
    "Softmax": "softmax turns small differences of its inputs into large ones and has outputs near 0",
    "LogSoftmax": "log-softmax turns small differences of its inputs into large ones",
    "LayerNormalization": "layer norm divides by a small spread, which amplifies rounding",
    "SkipLayerNormalization": "layer norm divides by a small spread, which amplifies rounding",
    "SimplifiedLayerNormalization": "the norm divides by a small spread, which amplifies rounding",
    "Gelu": "GELU has a long positive tail and a thin negative one, which one scale serves badly",
    "FastGelu": "GELU has a long positive tail and a thin negative one, which one scale serves badly",
    "BiasGelu": "GELU has a long positive tail and a thin negative one, which one scale serves badly",
    "Erf": "it is part of GELU, whose long positive tail and thin negative one share one scale badly",
}


@dataclass(frozen=True)
class Rule:
    """A cause, and how it is found."""

    name: str
    find: Callable[[Measurement, Scene], Finding | None]
    evidence: Sequence[Column] = ()
    """What its numbers mean, as columns of the op table say it."""


def non_finite(m: Measurement, scene: Scene) -> Finding | None:
    if m.output is None or m.output.total("nonfinite_y") <= m.output.total("nonfinite_x"):
        return None
    bad, total = m.output.total("nonfinite_y"), m.output.total("count") + m.output.total("nonfinite_y")
    because = f"{m.op.name} gives NaN or infinite values ({bad:.0f}, {bad / total:.1%}), the fp32 model none there"
    return Finding(scene.edge_ops(m) or [m.op.name], because, {"non_finite": bad, "share": bad / total})


def constant(m: Measurement, scene: Scene) -> Finding | None:
    """With correct inputs, or an op before it is to blame."""
    own = m.isolated
    if own is None or not own.total("count") or own.extreme("neg_y_min") != -own.extreme("y_max"):
        return None
    value, spread = own.extreme("y_max"), number(metrics.deviation(own, "x"))
    if spread == 0:
        return None
    because = f"{m.op.name} is the constant {value:.3g} after quantization, in fp32 it varies by ±{spread:.3g}"
    return Finding(scene.edge_ops(m) or [m.op.name], because, {"value": value, "fp32_std": spread})


def lost_sign(m: Measurement, scene: Scene) -> Finding | None:
    """A type that has a sign, of which the kernel makes no use: MXNet's sums with uint8."""
    stats, quantization = m.output, m.op.activation
    if stats is None or quantization is None or quantization.limits is None or quantization.scale is None:
        return None
    share = share_outside(stats, 0.0, math.inf, margin=float(np.max(quantization.scale)))
    if quantization.dtype != "int8" or quantization.low != 0 or share <= CLIPPED:
        return None
    because = (
        f"{share:.2%} of the output of {m.op.name} lie below 0 and are lost: its kernel adds to numbers without a "
        "sign, and gives the sum none either. Keep it in fp32; no calibration helps"
    )
    return Finding(scene.unit_ops(m.op.name), because, {"clipped": share, "low": 0.0})


def clipped_range(m: Measurement, scene: Scene) -> Finding | None:
    for edge in [m, *scene.sources(m)]:
        stats, quantization = edge.output, edge.op.activation
        if stats is None or quantization is None or quantization.limits is None:
            continue
        if not np.ptp(quantization.limits):
            because = f"the output of {edge.op.name} is quantized with the scale 0, which leaves nothing of it"
            return Finding(scene.edge_ops(edge), because, {"scale": 0.0})
        low, high = float(np.min(quantization.limits[0])), float(np.max(quantization.limits[1]))
        share = share_outside(stats, low, high, margin=(high - low) / 255 / 2)
        steps = max(stats.extreme("neg_x_min") + low, stats.extreme("x_max") - high) * 255 / (high - low)
        if share > CLIPPED and steps > CLIPPED_STEPS and (edge is m or added_db(edge) < scene.limit_of(edge)):
            found = f"[{-stats.extreme('neg_x_min'):.3g}, {stats.extreme('x_max'):.3g}]"
            because = (
                f"{share:.2%} of the output of {edge.op.name} lie clearly outside [{low:.3g}, {high:.3g}], which is "
                f"all that its quantized type can hold; fp32 has {found}. Calibrate with data like this, or with "
                "min-max"
            )
            return Finding(scene.edge_ops(edge), because, {"clipped": share, "low": low, "high": high})
    return None


def clipped_input(m: Measurement, scene: Scene) -> Finding | None:
    """The model's own input, quantized with a range that the data exceed."""
    known = {id(s.output) for s in scene.sources(m)}
    for stats in m.arrived:
        if id(stats) in known:
            continue
        low, high = -stats.extreme("neg_x_min"), stats.extreme("x_max")
        q_low, q_high = -stats.extreme("neg_y_min"), stats.extreme("y_max")
        if q_high - q_low < 0.9 * (high - low):
            because = (
                f"the input of {m.op.name} goes from {low:.3g} to {high:.3g}, its quantized type only from {q_low:.3g} "
                f"to {q_high:.3g}. Calibrate with data like this"
            )
            return Finding(scene.unit_ops(m.op.name), because, {"low": q_low, "high": q_high})
    return None


def outlier_channels(m: Measurement, scene: Scene) -> Finding | None:
    """A few channels stretch the one scale that all share, behind this op or before it."""
    before = [] if weights_explain(m) else scene.sources(m)
    edges = [e for e in (m, *before) if scene.rounds(e) and outlier_ratio(e) > OUTLIER_RATIO]
    if not edges:
        return None
    edge = min(edges, key=median_channel_db)
    if edge is m and median_channel_db(m) >= scene.limit_of(m):
        return None
    ranges = metrics.channel_ranges(edge.output) if edge.output is not None else np.zeros(0)
    outliers = outliers_among(ranges)
    channels = known_channels(edge)
    share = float(np.mean(channels < LOST_CHANNEL_DB)) if channels.size else 0.0
    reader = next(iter(scene.readers(edge)), None)
    are = "is" if len(outliers) == 1 else "are up to"
    where = f"between {edge.op.name} and {reader.op.name}" if reader is not None else f"of the output of {edge.op.name}"
    because = (
        f"{len(outliers)} of {len(ranges)} channels {are} {outlier_ratio(edge):.0f} times the median one, {where}; "
        "the scale that all share "
    )
    drowned = f"drowns {share:.0%} of the channels in rounding noise (under {LOST_CHANNEL_DB:.0f} dB)"
    because += drowned if share >= 0.005 else "leaves the others few of its steps"
    if reader is not None and added_db(reader) < healthy_db(reader):
        because += f" and {_leaves(reader)}"
    evidence = {
        "edge": edge.op.name, "channel_ratio": outlier_ratio(edge), "channels": outliers[:MOST_LISTED],
        "lost_channels": share, "median_channel_sqnr_db": finite(median_channel_db(edge)),
    }  # fmt: skip
    return Finding(scene.edge_ops(edge), because, evidence)


def unbalanced_parts(m: Measurement, scene: Scene) -> Finding | None:
    """Parts that are joined end to end, where their channels tell the same less clearly."""
    return unbalanced_inputs(m, scene) if scene.kind(m) == "Concat" else None


def unbalanced_inputs(m: Measurement, scene: Scene) -> Finding | None:
    is_join = scene.kind(m) in ("Add", "Sum", "Sub", "Concat") and len(scene.sources(m)) > 1
    if not is_join or not scene.rounds_activations(m):
        return None
    ranges = {s.op.name: reach_of(s.output) for s in scene.sources(m) if s.output is not None}
    ranges = {name: reach for name, reach in ranges.items() if reach > 0}
    if len(ranges) < 2 or max(ranges.values()) < FAR_APART * min(ranges.values()):
        return None
    large, small = max(ranges, key=lambda n: ranges[n]), min(ranges, key=lambda n: ranges[n])
    ratio = ranges[large] / ranges[small]
    because = (
        f"{m.op.name} joins {large} (up to {ranges[large]:.3g}) and {small} (up to {ranges[small]:.3g}): on a common "
        f"scale the smaller one, {ratio:.0f} times smaller, has few steps left"
    )
    return Finding(scene.edge_ops(m) or scene.unit_ops(m.op.name), because, {"ratio": ratio})


def dispersed_range(m: Measurement, scene: Scene) -> Finding | None:
    """The range is set by few values far out, so the many near the middle get few steps."""
    for edge in [m, *scene.sources(m)]:
        if edge.output is None or edge.op.activation is None:
            continue
        reach = reach_of(edge.output)
        tail = share_beyond(edge.output, TAIL * reach)
        suffers = rounding_db(edge) < added_db(m) + EXPLAINS_DB if edge is m else tail > 0
        if not suffers or tail > IN_TAIL or reach == 0:
            continue
        because = (
            f"only {tail:.2%} of the output of {edge.op.name} lie beyond ±{TAIL * reach:.3g}, but its range goes to "
            f"±{reach:.3g}: the rest share {TAIL:.0%} of the steps"
        )
        evidence = {"share_in_tails": tail, "reach": reach, "kurtosis": number(metrics.kurtosis(edge.output))}
        return Finding(scene.edge_ops(edge) or scene.unit_ops(m.op.name), because, evidence)
    return None


def flushed_to_zero(m: Measurement, scene: Scene) -> Finding | None:
    for edge in [m, *scene.sources(m)]:
        share = number(metrics.flushed(edge.isolated, edge.op.activation)) if edge.isolated is not None else 0.0
        if share > FLUSHED and edge.op.activation is not None:
            step = edge.op.activation.scale
            size = f"{float(step.flat[0]):.3g}" if step is not None else "chosen at run time"
            because = (
                f"{share:.0%} of the non-zero output of {edge.op.name} become exactly zero: its step ({size}) is "
                "larger than most values"
            )
            ops = scene.edge_ops(edge) or scene.unit_ops(m.op.name)
            return Finding(ops, because, {"flushed": share})
    return None


def delicate_neighbourhood(m: Measurement, scene: Scene) -> Finding | None:
    for near in [m, *scene.sources(m)]:
        if scene.kind(near) in DELICATE and scene.rounds(near):
            because = f"{near.op.name} {_leaves(m)}: {DELICATE[scene.kind(near)]}"
            return Finding(scene.edge_ops(near) or [m.op.name], because, {"type": near.op.type})
    if scene.kind(m) == "Add" and len(scene.sources(m)) > 1 and scene.rounds_activations(m):
        because = (
            f"rounding the sum of two branches {_leaves(m)}; what is lost in a residual sum is missing in every layer "
            "behind it"
        )
        return Finding(scene.edge_ops(m) or [m.op.name], because, {"type": "residual"})
    return None


def first_or_last_layer(m: Measurement, scene: Scene) -> Finding | None:
    bearing = [other for other in scene.all if other.op.params]
    if not bearing or m not in (bearing[0], bearing[-1]) or not scene.rounds_activations(m):
        return None
    place = "first" if m is bearing[0] else "last"
    why = "its input carries all the detail" if place == "first" else "nothing behind it evens the error out"
    because = f"quantizing the {place} layer with weights {_leaves(m)}; {why}"
    return Finding(scene.unit_ops(m.op.name), because, {"place": place})


def high_error(m: Measurement, scene: Scene) -> Finding | None:
    rounded = [] if scene.is_quantized(m.op.unit) else [s for s in scene.sources(m) if s.op.activation is not None]
    if rounded:
        ops = {name for s in rounded for name in scene.edge_ops(s)}
        makers = listed(s.op.name for s in rounded)
        because = f"{m.op.name} is in fp32, but what {makers} hands it is rounded, which {_leaves(m, 'it')}"
        return Finding(sorted(ops, key=lambda name: scene.by_name[name].op.index), because)
    sources = listed(s.op.name for s in scene.sources(m)) or ("" if m.op.inputs else "the model's input")
    because = f"quantizing it {_leaves(m)}, even with correct inputs" + (f" from {sources}" if sources else "")
    return Finding(scene.unit_ops(m.op.name), because)


def _leaves(m: Measurement, it: str = "") -> str:
    return f"leaves {it or m.op.name} {added_db(m):.1f} dB signal to noise where over {healthy_db(m):.0f} is healthy"


def harm(m: Measurement, scene: Scene) -> float:
    """The error that an op adds or brings to light, against the smallest of what it has to keep apart."""
    is_known = m.op.is_rounded and not m.op.is_blind
    own = min(harm_db(m, scene), masked_db(m, scene), joined_db(m, scene)) if is_known else math.inf
    return min(own, difference_db(m, scene))


_OF_PARTS = (
    Column("ratio", label="ratio of the inputs' ranges", unit="ratio", better="lower", normal=(1, FAR_APART),
           help="The range of the largest input over that of the smallest; both share one scale."),
)  # fmt: skip
RULES: Sequence[Rule] = (
    Rule("non_finite", non_finite, (
        Column("non_finite", label="NaN or infinite", unit="count", better="lower", normal=(None, 0),
               help="Values that are NaN or infinite in the quantized model only."),
        Column("share", label="share of all values", unit="share", better="lower", normal=(None, 0),
               help="Share of the values that are NaN or infinite."),
    )),
    Rule("constant", constant, (
        Column("value", label="constant value", unit="value", help="The only value that the quantized op gives."),
        Column("fp32_std", label="spread in fp32", unit="value",
               help="Standard deviation of the same output in fp32."),
    )),
    Rule("wrapped_weights", wrapped_weights, (
        meaning.WEIGHT_SQNR,
        Column("of_range", label="largest error", unit="share", better="lower", normal=(None, WRAPPED),
               help="The largest error of a weight as a share of the weights' range."),
        Column("wrapped", label="wrapped around", unit="share", better="lower", normal=(None, 0),
               help="Share of the weights that came out at the other end of the range, at least."),
        Column("max_abs", label="max |error|", unit="value", better="lower", help="The single largest difference."),
    )),
    Rule("misfit_weights", misfit_weights, (
        meaning.WEIGHT_SQNR,
        Column("explained", label="error that is no rounding", unit="share", better="lower", normal=(None, MISFIT),
               help="Share of the weights' error that goes away when they are divided by a factor and moved back, "
                    "channel by channel."),
        Column("factor", label="factor", unit="ratio", help="How many times the fp32 weights the quantized ones are, "
               "in the channel where that does most harm."),
        Column("shift", label="shift", unit="value", help="How far the quantized weights of that channel lie from the "
               "fp32 ones on average."),
    )),
    Rule("mask_constant", mask_constant, (
        Column("scores", label="reach of the scores", unit="value", help="The largest magnitude of what is masked."),
        Column("step", label="step", unit="value", better="lower", normal=(None, 0.3),
               help="The size of one quantization step; a softmax tells differences of about 1."),
        meaning.LOW,
    )),
    Rule("near_equal_difference", near_equal_difference, (
        Column("large", label="reach of what is subtracted", unit="value", help="The largest magnitude of the smaller "
               "one of the two numbers."),
        Column("difference", label="size of the difference", unit="value",
               help="The root of the mean square of what is left."),
        Column("difference_sqnr_db", label="SQNR of the difference", unit="dB", better="higher",
               normal=(WATCH_DB, None), help="Signal to noise of what is left, with everything before it quantized."),
    )),
    Rule("lost_sign", lost_sign, (meaning.CLIPPED_SHARE, meaning.LOW)),
    Rule("clipped_range", clipped_range, (meaning.CLIPPED_SHARE, meaning.LOW, meaning.HIGH, meaning.SCALE)),
    Rule("clipped_range", clipped_input, (meaning.LOW, meaning.HIGH)),
    Rule("large_bias", large_bias, (
        Column("offset", label="constant part", unit="value", help="How far the channels lie from 0 on average."),
        Column("spread", label="varying part", unit="value",
               help="The standard deviation around that: what tells one input from another."),
    )),
    Rule("unbalanced_inputs", unbalanced_parts, _OF_PARTS),
    Rule("outlier_channels", outlier_channels, (
        Column("edge", "op", label="op before the tensor", help="The op that writes the tensor with these channels."),
        meaning.CHANNEL_RATIO,
        Column("channels", "output_channels", label="outlier channels",
               help="Channels of the output that are much larger than the median one."),
        Column("lost_channels", label="lost channels", unit="share", better="lower", normal=(None, 0),
               help=f"Share of the channels that have less than {LOST_CHANNEL_DB:.0f} dB signal to noise."),
        Column("median_channel_sqnr_db", label="median channel SQNR", unit="dB", better="higher",
               normal=(WATCH_DB, None),
               help="Signal to noise of the median channel; the whole tensor may look better because its large "
                    "channels do."),
    )),
    Rule("weights_per_tensor", weights_per_tensor, (
        meaning.WEIGHT_SQNR, meaning.CHANNEL_RATIO,
        Column("expected_gain_db", label="expected gain", unit="dB",
               help="How much better the weights would be with a scale for each channel, as a whole or in the median "
                    "channel, whichever is more. Estimated from the channels' ranges."),
        meaning.WEIGHT_CHANNELS,
    )),
    Rule("weight_outliers", weight_outliers, (
        meaning.WEIGHT_SQNR, meaning.FLUSHED_SHARE,
        Column("min", label="smallest weight", unit="value", help="The smallest weight in fp32."),
        Column("max", label="largest weight", unit="value", help="The largest weight in fp32."),
        Column("std", label="spread of the weights", unit="value", help="Standard deviation of the weights in fp32."),
        meaning.WEIGHT_CHANNELS,
    )),
    Rule("weights_worse_than_usual", weights_worse_than_usual, (
        meaning.WEIGHT_SQNR, meaning.FLUSHED_SHARE,
        Column("usual_db", label="usual for the format", unit="dB", better="higher",
               help="Signal to noise of weights of a bell shape with as many bits and as many weights to a scale."),
    )),
    Rule("unbalanced_inputs", unbalanced_inputs, _OF_PARTS),
    Rule("dispersed_range", dispersed_range, (
        Column("share_in_tails", label="values in the tails", unit="share", better="higher", normal=(IN_TAIL, None),
               help="Share of the values in the outer 15/16 of the range; if there are hardly any, the steps there "
                    "are wasted."),
        Column("reach", label="reach", unit="value", help="The largest magnitude that occurs."),
        Column("kurtosis", label="kurtosis", better="lower", normal=(1, 30),
               help="How heavy the tails are: 3 for a bell curve, 1.8 for an even spread."),
    )),
    Rule("flushed_to_zero", flushed_to_zero, (meaning.FLUSHED_SHARE,)),
    Rule("delicate_neighbourhood", delicate_neighbourhood, (meaning.KIND,)),
    Rule("first_or_last_layer", first_or_last_layer, (
        Column("place", "text", label="layer with weights", help="Where in the model it is."),
    )),
    Rule("high_error", high_error),
)  # fmt: skip
