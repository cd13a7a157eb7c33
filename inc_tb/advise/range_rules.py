"""Rules about numbers of very different sizes that meet: see rules.py, where they have their place.

Such an op adds no error of its own that a signal-to-noise ratio would show: huge numbers that carry nothing make up the
signal. What rounding leaves of the numbers that matter is measured against those.
"""

from __future__ import annotations

import math

import numpy as np

from inc_tb.advise.finding import Finding
from inc_tb.advise.scene import HANDING, LAYOUT, SOFTMAX, Scene, added_db, as_db, number, reach_of
from inc_tb.measure import metrics
from inc_tb.measure.metrics import sqnr_db
from inc_tb.measure.op_table import Measurement
from inc_tb.measure.stats import Floats, PairStats

FAR_APART = 16.0
"""What is this many times smaller than what it shares a scale with has few steps left."""
_MASKING = {"Add", "Sum", "Sub", "Where"}
_AVERAGING = {"ReduceMean", "ReduceSum", "GlobalAveragePool", "Mean", "mean", "sum"}
_SQUARING = {"Mul", "Pow", "Square", "mul", "pow", "square", "Div", "div"}
_HANDS_ON = {"Relu", "LeakyRelu", "Clip", "Identity", "Dropout", *LAYOUT}
_GONE_DB = 3.0
"""A part that is rounded away is bad, but not as bad as an op most of whose channels are."""
_FINE_DB = 20.0
"""What reaches a difference is fine with this."""


def mask_constant(m: Measurement, scene: Scene) -> Finding | None:
    """Places that nobody is to see are given a huge number, in one range with the scores."""
    scores = _scores_beside_mask(m, scene)
    if scores is None or masked_db(m, scene) >= scene.limit:
        return None
    step = _step(m)
    softmax = next(reader.op.name for reader in _behind(m, scene) if scene.kind(reader) in SOFTMAX)
    low = -m.output.extreme("neg_x_min") if m.output is not None else 0.0
    because = (
        f"{m.op.name} hides places by a huge number ({low:.3g}), in one range with the scores, which reach "
        f"{scores:.3g} only: rounded in steps of {step:.3g} they come to {softmax} as good as equal. Hide places by "
        "-30 beyond the lowest score instead, which no softmax can tell apart, or keep these ops in fp32"
    )
    return Finding(scene.edge_ops(m) or [m.op.name], because, {"scores": scores, "step": step, "low": low})


def masked_db(m: Measurement, scene: Scene) -> float:
    """What rounding leaves of the scores, of which a softmax tells differences of about 1."""
    if _scores_beside_mask(m, scene) is None:
        return math.inf
    step = _step(m)
    return -10 * math.log10(step * step / 12) if step > 0 else math.inf


def large_bias(m: Measurement, scene: Scene) -> Finding | None:
    """A constant part takes the range, and multiplies every error of the weights that read it."""
    for edge in scene.sources(m):
        maker = _maker(edge, scene)
        offset, spread = _offset_and_spread(edge.output)
        if maker is None or not scene.rounds(edge) or spread <= 0 or offset < FAR_APART * spread:
            continue
        if _added_offset(maker) < offset / 2:
            continue  # it was there before, or comes of products that are all of one sign
        because = (
            f"the bias of {maker.op.name} is large beside its products, as one folded from a batch norm may be: its "
            f"result lies about {offset:.3g} from 0 and varies by ±{spread:.3g} only, of which rounding leaves "
            f"{m.op.name} {added_db(m):.1f} dB signal to noise"
        )
        ops = sorted({*scene.unit_ops(maker.op.name), *scene.edge_ops(edge)}, key=lambda n: scene.by_name[n].op.index)
        return Finding(ops, because, {"offset": offset, "spread": spread})
    return None


def _maker(edge: Measurement, scene: Scene) -> Measurement | None:
    """The op with weights whose result this is, but for an activation function."""
    while not edge.op.params:
        sources = scene.sources(edge)
        if len(sources) != 1 or scene.kind(edge) not in _HANDS_ON:
            return None
        edge = sources[0]
    return edge


def _offset_and_spread(stats: PairStats | None) -> tuple[float, float]:
    """How far channels lie from 0, and how much they vary around that."""
    if stats is None or not stats.total("count"):
        return 0.0, 0.0
    n, x, x2 = (stats.channel_sums(name) for name in ("count", "x", "x2"))
    of_means = float((x**2 / np.maximum(n, 1)).sum())
    return math.sqrt(of_means / n.sum()), math.sqrt(max(0.0, float(x2.sum()) - of_means) / n.sum())


def _added_offset(m: Measurement) -> float:
    """How far at least its channels lie from where what it reads would bring its products."""
    if m.output is None or len(m.arrived) != 1:
        return 0.0
    read, made = _means(m.arrived[0]), _means(m.output)
    if m.weight is None:  # it only adds
        return _size(made - read) if made.size == read.size else 0.0
    if m.weight.channels != made.size:
        return 0.0
    count, x, x2 = (m.weight.channel_sums(name) for name in ("count", "x", "x2"))
    mean = float(read.mean())
    times = np.where(count >= read.size, count / read.size, count)  # how often a weight meets the same channel
    unknown = np.sqrt(x2 * times * float(np.square(read - mean).sum()))  # which weights meet which mean
    ends = [x * mean - unknown, x * mean + unknown]
    if number(metrics.minimum(m.output, "x"), -1.0) >= 0:
        ends = [np.maximum(0.0, end) for end in ends]  # a ReLU may be part of it
    return _size(made - np.clip(made, *ends))


def _means(stats: PairStats) -> Floats:
    return stats.channel_sums("x") / np.maximum(stats.channel_sums("count"), 1)


def _size(values: Floats) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def near_equal_difference(m: Measurement, scene: Scene) -> Finding | None:
    """E[x²] - E[x]²: what little is left of two large numbers is less than the error of either."""
    found = _difference(m, scene)
    if found is None:
        return None
    large, small, db = found
    a, b = (source.op.name for source in scene.sources(m)[:2])
    because = (
        f"{m.op.name} subtracts two large numbers that are nearly equal, {a} and {b} (up to {large:.3g}): what is "
        f"left, about {small:.3g}, drowns in the rounding of both ({db:.1f} dB, although each arrives well). A "
        "variance that is written as E[x²] - E[x]² does so. Keep these ops in fp32, or use a norm that is one op"
    )
    return Finding(_products(m, scene), because, {"large": large, "difference": small, "difference_sqnr_db": db})


def difference_db(m: Measurement, scene: Scene) -> float:
    """What is left of a difference of nearly equal numbers."""
    found = _difference(m, scene)
    return found[2] if found is not None else math.inf


def joined_db(m: Measurement, scene: Scene) -> float:
    """What rounding to one scale leaves of the smallest part that is joined here."""
    step = _step(m)
    if scene.kind(m) != "Concat" or step <= 0:
        return math.inf
    powers = [number(metrics.mean(s.output.total("x2"), s.output)) for s in scene.sources(m) if s.output is not None]
    alive = [power for power in powers if power > 0]
    return max(_GONE_DB, 10 * math.log10(min(alive) / (step * step / 12))) if len(alive) > 1 else math.inf


def _scores_beside_mask(m: Measurement, scene: Scene) -> float | None:
    """How far the scores reach, if a softmax reads the result and that reaches much further."""
    if scene.kind(m) not in _MASKING or not any(scene.kind(reader) in SOFTMAX for reader in _behind(m, scene)):
        return None
    reaches = [reach for source in scene.sources(m) if (reach := reach_of(source.output)) > 0]
    is_far = bool(reaches) and reach_of(m.output) >= FAR_APART * min(reaches)
    return min(reaches) if is_far else None


def _behind(m: Measurement, scene: Scene) -> list[Measurement]:
    """Who reads the result, also behind what only rearranges it."""
    found, waiting = [], scene.readers(m)
    while waiting:
        reader = waiting.pop(0)
        found.append(reader)
        waiting += scene.readers(reader) if scene.kind(reader) in HANDING else []
    return found


def _difference(m: Measurement, scene: Scene) -> tuple[float, float, float] | None:
    """How far both reach, the usual size of what is left, and its signal to noise; of differences that lose it."""
    sources = scene.sources(m)
    if scene.kind(m) != "Sub" or len(sources) != 2 or m.output is None or not m.output.total("count"):
        return None
    large = min(reach_of(source.output) for source in sources)
    small = math.sqrt(number(metrics.mean(m.output.total("x2"), m.output)))
    db = as_db(sqnr_db(m.output))
    arrives = min((as_db(sqnr_db(source.output)) for source in sources if source.output is not None), default=-math.inf)
    is_lost = small > 0 and large >= FAR_APART * small and db < scene.limit and arrives >= _FINE_DB
    return (large, small, db) if is_lost else None


def _products(m: Measurement, scene: Scene) -> list[str]:
    """The difference, who reads it, and what makes its two numbers: averages, and products before and behind them."""
    found, waiting = {m.op.name: m}, [m]
    while waiting:
        for source in scene.sources(waiting.pop(0)):
            if source.op.name not in found and scene.kind(source) in _AVERAGING | _SQUARING:
                found[source.op.name] = source
                waiting += [source]
    ops = {name for each in found.values() for name in scene.unit_ops(each.op.name)}.union(scene.edge_ops(m))
    return sorted(ops, key=lambda name: scene.by_name[name].op.index)


def _step(m: Measurement) -> float:
    return (
        float(m.op.activation.scale.max()) if m.op.activation is not None and m.op.activation.scale is not None else 0.0
    )
