"""What rules look around in: the ops, who reads whom, and what the measurements say about each in dB."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from inc_tb.measure import metrics
from inc_tb.measure.metrics import sqnr_db
from inc_tb.measure.natural import NATURAL_SLACK_DB, WATCH_DB, natural
from inc_tb.measure.op_table import Measurement
from inc_tb.measure.stats import PairStats
from inc_tb.records import Cell

BAD_DB = 15.0
"""An op that adds this much noise alone is a problem by itself."""
LOST_DB = 20.0
EXPLAINS_DB = 6.0
"""One source of noise explains the whole if it is at most this much weaker."""
OUTLIER_RATIO = 8.0
LOST_CHANNEL_DB = 10.0
"""A channel with less than this has lost what it carried."""
CHANCE_DB = 20.0
"""A hundredth of all sums of two squares of a bell shape are smaller than their mean by this."""
FLUSHED = 0.5
CLIPPED = 0.001
"""Share of values outside of the range that calibration may leave there."""
LAYOUT = {"Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Split", "Identity", "MaxPool", "Expand",
          "Pad"}  # fmt: skip
SOFTMAX = {"Softmax", "LogSoftmax"}
HANDING = {*LAYOUT, "Concat"}
"""Ops whose result has the values of all that they read."""


class Scene:
    """The ops and who reads whom; what rules look around in."""

    def __init__(self, measurements: Sequence[Measurement], words: Mapping[str, str] | None = None) -> None:
        """`words` has what ONNX calls the types of ops, where their framework has another name for them."""
        self.all = list(measurements)
        self._words = words or {}
        self.by_name = {m.op.name: m for m in measurements}
        self._units: dict[str, list[str]] = defaultdict(list)
        self._readers: dict[str, list[str]] = defaultdict(list)
        self._sources: dict[str, list[str]] = defaultdict(list)
        for m in measurements:
            self._units[m.op.unit].append(m.op.name)
            here = m.op.compared_at
            for source in dict.fromkeys(self.by_name[name].op.compared_at for name in m.op.inputs):
                if here and source and source != here:
                    self._readers[source].append(here)
                    self._sources[here].append(source)
        ends = [m for m in measurements if m.output is not None and not self._readers[m.op.name]]
        worst = min((as_db(sqnr_db(m.output)) for m in ends if m.output is not None), default=math.inf)
        self.limit = BAD_DB if worst >= LOST_DB else WATCH_DB
        """An op that adds more noise than this is looked into; stricter where the model's output is lost."""

    def limit_of(self, m: Measurement) -> float:
        """That of an op: what few bits must add is no finding."""
        return min(self.limit, natural_db(m) - EXPLAINS_DB)

    def rounds(self, m: Measurement) -> bool:
        """Whether the result of an op is rounded, here or by those who read it."""
        around = [m, *self.readers(m), *(self.by_name[name] for name in self.unit_ops(m.op.name))]
        return any(each.op.activation is not None for each in around)

    def rounds_activations(self, m: Measurement) -> bool:
        """Whether anything but weights is rounded at an op: what it reads, or what it makes."""
        known = {id(source.output) for source in self.sources(m)}
        reads_rounded = any(stats.total("e2") > 0 for stats in m.arrived if id(stats) not in known)
        return reads_rounded or any(self.rounds(each) for each in (m, *self.sources(m)))

    def kind(self, m: Measurement) -> str:
        """The type of an op, or of what it is joined to, in the words of ONNX, whatever its framework calls it."""
        kind = m.op.joined or m.op.type
        return self._words.get(kind, kind)

    def sources(self, m: Measurement) -> list[Measurement]:
        return [self.by_name[name] for name in self._sources[m.op.name]]

    def readers(self, m: Measurement) -> list[Measurement]:
        """Compared ops of other units that read this op's unit from here on."""
        found: dict[str, Measurement] = {}
        waiting = list(self._readers[m.op.name])
        while waiting:
            reader = self.by_name[waiting.pop(0)]
            if reader.op.unit == m.op.unit:
                waiting += self._readers[reader.op.name]
            else:
                found[reader.op.name] = reader
        return list(found.values())

    def unit_ops(self, name: str) -> list[str]:
        return self._units[self.by_name[name].op.unit]

    def edge_ops(self, m: Measurement) -> list[str]:
        """The producer of a quantized tensor and its consumers, looking through ops that only rearrange."""
        found = dict.fromkeys(self.unit_ops(m.op.name) if self.is_quantized(m.op.unit) else ())
        waiting = self.readers(m)
        while waiting:
            reader = waiting.pop(0)
            if reader.op.name not in found:
                found.update(dict.fromkeys(self.unit_ops(reader.op.name)))
                if self.kind(reader) in HANDING:
                    waiting += self.readers(reader)
        return sorted(found, key=lambda name: self.by_name[name].op.index)

    def is_quantized(self, unit: str) -> bool:
        """Whether a weight or a result of its ops is rounded; what is in fp32 may read rounded values all the same."""
        ops = (self.by_name[name].op for name in self._units[unit])
        return any(op.weight is not None or op.activation is not None for op in ops)


def as_db(value: Cell) -> float:
    """No number because there is no error, or nothing to measure, is no problem."""
    return value if not isinstance(value, str) else math.inf


def number(value: Cell, otherwise: float = 0.0) -> float:
    return value if not isinstance(value, str) else otherwise


def added_db(m: Measurement) -> float:
    return as_db(sqnr_db(m.isolated)) if m.isolated is not None else math.inf


def median_channel_db(m: Measurement) -> float:
    """What the op adds to its median channel. One large channel can hide that all the others are lost."""
    channels = known_channels(m)
    return float(np.median(channels)) if channels.size else math.inf


def harm_db(m: Measurement, scene: Scene) -> float:
    """The error that an op adds, over the whole tensor or, where few channels dominate a rounded one, by channel."""
    uneven = outlier_ratio(m) > OUTLIER_RATIO and scene.rounds(m) and not _are_shares(m, scene)
    return min(added_db(m), median_channel_db(m)) if uneven else added_db(m)


def _are_shares(m: Measurement, scene: Scene) -> bool:
    """Results from 0 to 1, of which those near 0 are no finer: classes that are rare."""
    if scene.kind(m) in SOFTMAX or m.output is None:
        return True
    return not scene.readers(m) and m.output.extreme("neg_x_min") <= 0 and m.output.extreme("x_max") <= 1


def weight_db(m: Measurement) -> float:
    """What rounding the weights leaves, of the whole or of the median channel, whichever is worse."""
    if m.weight is None or m.op.weight is None:
        return math.inf
    channels = _known(metrics.channel_sqnr_db(m.weight))
    return min(as_db(sqnr_db(m.weight)), float(np.median(channels)) if channels.size else math.inf)


def rounding_db(m: Measurement) -> float:
    """What rounding the op's output to its grid gives by itself: the step squared over 12."""
    if m.output is None or m.op.activation is None or m.op.activation.scale is None:
        return math.inf
    power, step = number(metrics.mean(m.output.total("x2"), m.output)), float(m.op.activation.scale.flat[0])
    return 10 * math.log10(power / (step * step / 12)) if power > 0 and step > 0 else math.inf


def natural_db(m: Measurement) -> float:
    """What the op's formats leave by nature."""
    formats = ((m.op.weight, m.weight), (m.op.activation, m.output))
    noise = sum(10 ** (-natural(q, stats).sqnr_db / 10) for q, stats in formats if q is not None and stats is not None)
    return -10 * math.log10(noise) - _chance_db(m) if noise > 0 else math.inf


def _chance_db(m: Measurement) -> float:
    """By how much few outputs may be small by chance, as in one model of a hundred, with weights that are fine.

    The classifier of two classes of an untrained model, whose samples are all alike behind it, has a signal of two
    squares; the noise of its weights stays what it is.
    """
    if m.weight is None or m.op.weight is None or m.weight.channel_axis is None:
        return 0.0
    is_fine = weight_db(m) >= natural(m.op.weight, m.weight).sqnr_db - NATURAL_SLACK_DB
    return min(CHANCE_DB, 2 * CHANCE_DB / m.weight.channels) if is_fine else 0.0


def healthy_db(m: Measurement) -> float:
    """What an op should have: less where its formats give less."""
    return min(WATCH_DB, natural_db(m) - NATURAL_SLACK_DB)


def weights_explain(m: Measurement) -> bool:
    """Rounding the weights alone makes about as much noise as the op adds, or wipes most of them out.

    Neither of which is said of weights that are as good as their format lets them be.
    """
    if m.weight is None or m.op.weight is None:
        return False
    best = natural(m.op.weight, m.weight)
    is_noisy = weight_db(m) < best.sqnr_db - NATURAL_SLACK_DB and weight_db(m) <= added_db(m) + EXPLAINS_DB
    return is_noisy or flushed_weights(m) > max(FLUSHED, (1 + best.flushed) / 2)


def flushed_weights(m: Measurement) -> float:
    return number(metrics.flushed(m.weight, m.op.weight)) if m.weight is not None else 0.0


def known_channels(m: Measurement) -> npt.NDArray[np.float64]:
    if m.isolated is None or m.isolated.channels < 2:
        return np.zeros(0)
    return _known(metrics.channel_sqnr_db(m.isolated))


def outlier_ratio(m: Measurement) -> float:
    return number(metrics.channel_ratio(m.output)) if m.output is not None else 0.0


def reach_of(stats: PairStats | None) -> float:
    if stats is None:
        return 0.0
    found = max(stats.extreme("neg_x_min"), stats.extreme("x_max"))
    return found if math.isfinite(found) else 0.0


def share_beyond(stats: PairStats, limit: float) -> float:
    """Share of reference values with a magnitude above the limit, to the width of a histogram bin."""
    edges, counts = stats.reference.edges, stats.reference.counts
    beyond = counts[(edges[:-1] >= limit) | (edges[1:] <= -limit)].sum()
    return float(beyond) / max(1, stats.reference.total)


def share_outside(stats: PairStats, low: float, high: float, margin: float) -> float:
    """Share of reference values that lie further outside than rounding moves them, to the width of a histogram bin."""
    edges, counts = stats.reference.edges, stats.reference.counts
    outside = counts[(edges[:-1] >= high + margin) | (edges[1:] <= low - margin)].sum()
    return float(outside) / max(1, stats.reference.total)


def _known(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return values[~np.isnan(values)]
