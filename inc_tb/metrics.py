"""Every number of the op table: one function each, with its unit, normal range and explanation.

To add one: write a function of a Measurement (or of one pair's statistics) that returns a number,
or a sentence that says why there is none, and put it with its column into the tables below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from inc_tb.records import Column, Op, OpTable, Quantization, Value
from inc_tb.stats import PairStats


@dataclass
class Measurement:
    """Everything measured about one op."""

    op: Op
    weight: PairStats | None = None
    output: PairStats | None = None
    isolated: PairStats | None = None
    arrived: list[PairStats] = field(default_factory=list)
    """Statistics of the values that the op reads."""
    verdict: str = ""
    reason: str = ""


Compute = Callable[[Measurement], Value]
PairCompute = Callable[[PairStats, Quantization | None], Value]

NO_ERROR = "no error at all: both are equal"
_ALL_ZERO = "the reference is zero everywhere"
_EMPTY = "no finite value was seen"
_NOT_PROBED = "needs a probe of the outputs, which has not run"
_NOT_PROFILED = "needs a profile, which has not run"


def mean(total: float, stats: PairStats) -> Value:
    return total / stats.total("count") if stats.total("count") else _EMPTY


def variance(stats: PairStats, which: str) -> Value:
    low, high = minimum(stats, which), maximum(stats, which)
    if isinstance(low, str) or isinstance(high, str):
        return _EMPTY
    if low == high:
        return 0.0
    n = stats.total("count")
    average = stats.total(which) / n
    return max(0.0, stats.total(f"{which}2") / n - average * average)


def deviation(stats: PairStats, which: str) -> Value:
    found = variance(stats, which)
    return found if isinstance(found, str) else math.sqrt(found)


def minimum(stats: PairStats, which: str) -> Value:
    found = -stats.extreme(f"neg_{which}_min")
    return found if math.isfinite(found) else _EMPTY


def maximum(stats: PairStats, which: str) -> Value:
    found = stats.extreme(f"{which}_max")
    return found if math.isfinite(found) else _EMPTY


def mse(stats: PairStats, _: Quantization | None = None) -> Value:
    return mean(stats.total("e2"), stats)


def nmse(stats: PairStats, _: Quantization | None = None) -> Value:
    power = stats.total("x2")
    if power > 0:
        return stats.total("e2") / power
    return _ALL_ZERO if stats.total("count") else _EMPTY


def sqnr_db(stats: PairStats, _: Quantization | None = None) -> Value:
    ratio = nmse(stats)
    if isinstance(ratio, str):
        return ratio
    if not math.isfinite(ratio):
        return "the values are too large to be squared"
    return -10 * math.log10(ratio) if ratio > 0 else NO_ERROR


def cosine(stats: PairStats, _: Quantization | None = None) -> Value:
    norms = math.sqrt(stats.total("x2")) * math.sqrt(stats.total("y2"))
    if norms > 0:
        return max(-1.0, min(1.0, stats.total("xy") / norms))
    return "one of the two is zero everywhere" if stats.total("count") else _EMPTY


def max_abs(stats: PairStats, _: Quantization | None = None) -> Value:
    found = stats.extreme("e_abs")
    return found if math.isfinite(found) else _EMPTY


def rmse_lsb(stats: PairStats, quantization: Quantization | None) -> Value:
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


def inc_mse(stats: PairStats, _: Quantization | None = None) -> Value:
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


def clipped(stats: PairStats, quantization: Quantization | None) -> Value:
    if quantization is None or quantization.limits is None:
        return "this tensor has no fixed range"
    return mean(stats.total("clipped"), stats)


def flushed(stats: PairStats, quantization: Quantization | None) -> Value:
    if quantization is None:
        return "this tensor is not quantized"
    nonzero = stats.total("nonzero")
    return stats.total("flushed") / nonzero if nonzero else _ALL_ZERO


def kurtosis(stats: PairStats, _: Quantization | None = None) -> Value:
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


def channel_ratio(stats: PairStats, _: Quantization | None = None) -> Value:
    if stats.channels < 2:
        return "there is only one channel"
    ranges = channel_ranges(stats)
    alive = ranges[ranges > 0]
    if not alive.size:
        return _ALL_ZERO if stats.total("count") else _EMPTY
    return float(alive.max() / np.median(alive))


def channel_sqnr_db(stats: PairStats) -> npt.NDArray[np.float64]:
    """SQNR of each channel; NaN where it has no signal, infinite where it has no error."""
    signal, noise = stats.channel_sums("x2"), stats.channel_sums("e2")
    with np.errstate(divide="ignore", invalid="ignore"):
        found: npt.NDArray[np.float64] = 10 * np.log10(signal / noise)
    return np.where(signal > 0, found, np.nan)


def worst_channel(stats: PairStats, _: Quantization | None = None) -> Value:
    if stats.channels < 2:
        return "there is only one channel"
    found = channel_sqnr_db(stats)
    if np.isnan(found).all():
        return _ALL_ZERO if stats.total("count") else _EMPTY
    return float(np.nanargmin(found)) if np.isfinite(found).any() else NO_ERROR


def worst_channel_sqnr_db(stats: PairStats, _: Quantization | None = None) -> Value:
    at = worst_channel(stats)
    return at if isinstance(at, str) else float(channel_sqnr_db(stats)[int(at)])


def arrived_sqnr_db(m: Measurement) -> Value:
    if not m.arrived:
        return "nothing that is compared reaches this op"
    power = sum(stats.total("x2") for stats in m.arrived)
    noise = sum(stats.total("e2") for stats in m.arrived)
    if power <= 0:
        return _ALL_ZERO
    return 10 * math.log10(power / noise) if noise > 0 else "what reaches this op has no error"


def _missing(m: Measurement) -> str:
    return m.op.note or "not measured"


def _of_output(compute: PairCompute) -> Compute:
    return lambda m: compute(m.output, m.op.activation) if m.output is not None else _missing(m)


def _of_weight(compute: PairCompute) -> Compute:
    return lambda m: compute(m.weight, m.op.weight) if m.weight is not None else _no_weight(m)


def _no_weight(m: Measurement) -> str:
    return "this op has no weight to compare" if not m.op.note else m.op.note


def _of_isolated(compute: PairCompute) -> Compute:
    return lambda m: compute(m.isolated, m.op.activation) if m.isolated is not None else _missing(m)


def _because(reason: str) -> Compute:
    return lambda _: reason


def _act_number(which: str) -> Compute:
    def compute(m: Measurement) -> Value:
        found = None if m.op.activation is None else getattr(m.op.activation, which)
        if found is None or not found.size:
            return "the output is not quantized with a fixed scale"
        return float(found.flat[0])

    return compute


_VALUES: Sequence[tuple[str, str, str, PairCompute]] = (
    ("min", "min", "Smallest value of the fp32 {what}.", lambda s, _: minimum(s, "x")),
    ("max", "max", "Largest value of the fp32 {what}.", lambda s, _: maximum(s, "x")),
    ("mean", "mean", "Average of the fp32 {what}.", lambda s, _: mean(s.total("x"), s)),
    ("std", "std", "Standard deviation of the fp32 {what}.", lambda s, _: deviation(s, "x")),
    ("var", "variance", "Variance of the fp32 {what}.", lambda s, _: variance(s, "x")),
    ("q_min", "min int8", "Smallest value of the quantized {what}, dequantized.", lambda s, _: minimum(s, "y")),
    ("q_max", "max int8", "Largest value of the quantized {what}, dequantized.", lambda s, _: maximum(s, "y")),
    ("q_mean", "mean int8", "Average of the quantized {what}, dequantized.", lambda s, _: mean(s.total("y"), s)),
    ("q_std", "std int8", "Standard deviation of the quantized {what}.", lambda s, _: deviation(s, "y")),
    ("q_var", "variance int8", "Variance of the quantized {what}.", lambda s, _: variance(s, "y")),
)
_ERRORS: Sequence[tuple[Column, PairCompute]] = (
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
_CHANNELS: Sequence[tuple[Column, PairCompute]] = (
    (Column("channel_ratio", label="channel ratio", unit="ratio", better="lower", normal=(1, 16),
            help="Range of the largest channel over the median one. Above 16, one scale for all leaves most channels "
                 "fewer than 4 of 8 bits."), channel_ratio),
    (Column("worst_channel", label="worst channel", unit="index", help="The channel with the lowest SQNR."),
     worst_channel),
    (Column("worst_channel_sqnr_db", label="worst channel SQNR", unit="dB", better="higher", normal=(15, None),
            help="SQNR of the worst channel alone. Near 0 it is lost, which is harmless if it carries little."),
     worst_channel_sqnr_db),
)  # fmt: skip
_CAUSES: Sequence[tuple[Column, PairCompute]] = (
    (Column("clipped", label="clipped", unit="share", better="lower", normal=(0, 0.001),
            help="Share of fp32 values outside of what the quantized type can represent. Calibration should leave "
                 "less than 0.1 % outside."), clipped),
    (Column("flushed", label="flushed to zero", unit="share", better="lower", normal=(0, 0.2),
            help="Share of non-zero fp32 values that became exactly zero. Many mean that the step is too coarse for "
                 "most values."), flushed),
    (Column("kurtosis", label="kurtosis", unit="ratio", better="lower", normal=(1, 30),
            help="How heavy the tails are: 3 for a bell curve, 1.8 for a flat one. High values mean few outliers that "
                 "stretch the range."), kurtosis),
)  # fmt: skip


def _prefixed(prefix: str, label: str, column: Column) -> Column:
    return msgspec.structs.replace(column, name=f"{prefix}_{column.name}", label=f"{label} {column.label}")


def _columns() -> list[tuple[Column, Compute]]:
    sides = (("w", "weight", _of_weight), ("a", "output", _of_output))
    found: list[tuple[Column, Compute]] = [
        (Column("index", label="#", unit="position", help="Position in the graph, from the input."),
         lambda m: float(m.op.index)),
        (Column("act_scale", label="step", unit="value", help="Distance between two neighbouring quantized values of "
                "the output."), _act_number("scale")),
        (Column("act_zero_point", label="zero point", unit="integer", help="The integer that stands for 0.0."),
         _act_number("zero_point")),
    ]  # fmt: skip
    for prefix, what, of in sides:
        for name, label, text, value_of in _VALUES:
            column = Column(name, label=label, unit="value", help=text.format(what=what))
            found.append((_prefixed(prefix, what, column), of(value_of)))
    for table in (_ERRORS, _CHANNELS):
        for prefix, what, of in sides:
            found += [(_prefixed(prefix, what, column), of(compute)) for column, compute in table]
    found += [(_prefixed("a", "output", column), _of_output(compute)) for column, compute in _CAUSES]
    place = Column("", unit="dB", better="higher", normal=(25, None))
    replace = msgspec.structs.replace
    found += [
        (replace(place, name="added_sqnr_db", label="added here",
                 help="SQNR of the output when the op gets the correct fp32 inputs: what its own quantization (inputs, "
                      "weights, output) does. The lowest ones are the culprits; healthy int8 has over 25."),
         _of_isolated(sqnr_db)),
        (replace(place, name="arrived_sqnr_db", label="arrived",
                 help="SQNR of what the op reads: error made upstream."), arrived_sqnr_db),
        (replace(place, name="total_sqnr_db", label="total",
                 help="SQNR of the output in the quantized model: added and arrived error together."),
         _of_output(sqnr_db)),
    ]  # fmt: skip
    effect = Column("", unit="ratio", better="lower", normal=(0, 0.003))
    found += [
        (replace(effect, name="sensitivity", label="sensitivity",
                 help="Error of the model's output when only this unit is quantized, relative to how much the output "
                      "varies between samples. 0.003 is 25 dB; at 1 the output says nothing any more."),
         _because(_NOT_PROBED)),
        (replace(effect, name="sensitivity_low", label="sensitivity, low end",
                 help="Lower end of the sensitivity's 95 % interval, by resampling the samples."),
         _because(_NOT_PROBED)),
        (replace(effect, name="sensitivity_high", label="sensitivity, high end",
                 help="Upper end of the sensitivity's 95 % interval, by resampling the samples."),
         _because(_NOT_PROBED)),
        (Column("recovery", label="recovery", unit="share",
                help="Share of the output's error that goes away when this unit alone goes back to fp32. Negative: it "
                     "gets worse, because errors had been cancelling. Near 0 for one end of a bad tensor: both ends "
                     "must change."), _because(_NOT_PROBED)),
        (Column("sensitivity_gradient", label="gradient score", unit="nats", better="lower", normal=(0, 0.01),
                help="Kullback-Leibler divergence of the model's output from fp32's that the op's own error is "
                     "expected to cause, from one backward pass; no labels are needed. An estimate for small errors: "
                     "the sensitivity is measured. PyTorch only."), _because(_NOT_PROBED)),
        (Column("time_fp32_us", label="time fp32", unit="µs", better="lower",
                help="Median time in the fp32 model, with what its runtime has fused into the op."),
         _because(_NOT_PROFILED)),
        (Column("time_int8_us", label="time int8", unit="µs", better="lower",
                help="Median time when quantized, with what the runtime has fused into the op, without conversion."),
         _because(_NOT_PROFILED)),
        (Column("convert_us", label="conversion", unit="µs", better="lower",
                help="Median time of quantizing, dequantizing and reordering on the op's account."),
         _because(_NOT_PROFILED)),
        (Column("speedup", label="speed-up", unit="ratio", better="higher", normal=(1, None),
                help="Time in fp32 over time in int8 with conversion. Below 1 the op got slower, and keeping it in "
                     "fp32 saves time. Only where the two can be told apart from noise."), _because(_NOT_PROFILED)),
        (Column("params", label="parameters", unit="count", help="Numbers in the op's main weight."),
         lambda m: float(m.op.params)),
    ]  # fmt: skip
    return found


_NUMBERS = _columns()
_TEXTS: Mapping[str, tuple[str, str, Callable[[Measurement], str]]] = {
    "name": ("op", "Name of the op in the fp32 model.", lambda m: m.op.name),
    "type": ("type", "Kind of operation.", lambda m: m.op.type),
    "module": ("module", "PyTorch module, Keras layer or MXNet symbol that the op is part of.", lambda m: m.op.module),
    "block": ("block", "Part of the model that the op belongs to.", lambda m: m.op.block),
    "unit": ("unit", "Ops with the same unit change precision together.", lambda m: m.op.unit),
    "weight_dtype": ("weight type", "Type of the quantized weight; empty for fp32.",
                     lambda m: m.op.weight.dtype if m.op.weight else ""),
    "weight_granularity": ("weight scales", "One scale for the tensor, for each channel, or for each block.",
                           lambda m: m.op.weight.granularity if m.op.weight else ""),
    "act_dtype": ("output type", "Type of the quantized output; empty for fp32.",
                  lambda m: m.op.activation.dtype if m.op.activation else ""),
    "act_scheme": ("output scheme", "Symmetric or asymmetric around zero, or dynamic: chosen for each batch.",
                   lambda m: m.op.activation.scheme if m.op.activation else ""),
    "sensitivity_rank": ("rank", "Rank by sensitivity; 2–4 where the samples do not tell these ranks apart.",
                         lambda m: ""),
    "verdict": ("verdict", "ok; watch: worse than usual; bad: named by a suggestion.", lambda m: m.verdict),
    "reason": ("reason", "Why the verdict, or why there are no numbers.", lambda m: m.reason),
}  # fmt: skip
_LAST = ("verdict", "reason")

COLUMNS: Sequence[Column] = [
    *(Column(name, type="text", label=t[0], help=t[1]) for name, t in _TEXTS.items() if name not in _LAST),
    *(column for column, _ in _NUMBERS),
    *(Column(name, type="text", label=_TEXTS[name][0], help=_TEXTS[name][1]) for name in _LAST),
]


def op_table(measurements: Sequence[Measurement]) -> OpTable:
    rows: list[dict[str, Value]] = []
    for m in measurements:
        row: dict[str, Value] = {name: text(m) for name, (_, _, text) in _TEXTS.items()}
        row.update({column.name: compute(m) for column, compute in _NUMBERS})
        rows.append(row)
    return OpTable.from_rows(COLUMNS, rows)
