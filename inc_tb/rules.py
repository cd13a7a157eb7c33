"""Why an op loses accuracy: one function a rule.

A rule is asked about an op that measurably adds error (its output differs from the reference although it
got the reference's inputs) and answers with a finding or None. Nothing is claimed about ops without a
measured effect, so a healthy model gets no suggestions. To add a rule: write the function, and put it
into RULES at its place in the order, from the most specific cause to the most general.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from inc_tb import metrics
from inc_tb.metrics import Measurement, sqnr_db
from inc_tb.recipes import recipes
from inc_tb.records import Suggestion, Value
from inc_tb.stats import PairStats

BAD_DB = 15.0
"""An op that adds this much noise alone is a problem by itself."""
WATCH_DB = 25.0
"""Worse than healthy int8; a problem only where the model's output is lost."""
LOST_DB = 20.0
EXPLAINS_DB = 6.0
"""One source of noise explains the whole if it is at most this much weaker."""
OUTLIER_RATIO = 8.0
CLIPPED = 0.001
CLIPPED_STEPS = 2.0
"""How far outside the range values must lie, in steps of eight bits, to be more than rounding at its end."""
UNBALANCED_RATIO = 16.0
PER_CHANNEL_GAIN_DB = 6.0
FLUSHED = 0.5
TAIL = 1 / 16
IN_TAIL = 0.01
PATTERN_EXCESS = 1.5
LAYOUT = {"Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Split", "Identity", "MaxPool", "Expand"}
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


@dataclass
class Finding:
    rule: str
    ops: list[str]
    because: str
    evidence: dict[str, Any] = field(default_factory=dict)
    score: float = 0.0
    """Noise over signal at the op that suffers."""


class Scene:
    """The ops and who reads whom; what rules look around in."""

    def __init__(self, measurements: Sequence[Measurement]) -> None:
        self.all = list(measurements)
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
        found = dict.fromkeys(self.unit_ops(m.op.name) if self._is_quantized(m.op.unit) else ())
        waiting = self.readers(m)
        while waiting:
            reader = waiting.pop(0)
            if reader.op.name not in found:
                found.update(dict.fromkeys(self.unit_ops(reader.op.name)))
                if reader.op.type in LAYOUT:
                    waiting += self.readers(reader)
        return sorted(found, key=lambda name: self.by_name[name].op.index)

    def _is_quantized(self, unit: str) -> bool:
        ops = (self.by_name[name].op for name in self._units[unit])
        return any(op.weight is not None or op.activation is not None for op in ops)


Rule = Callable[[Measurement, Scene], Finding | None]


def as_db(value: Value) -> float:
    """No number because there is no error, or no signal, is no problem."""
    return value if not isinstance(value, str) else math.inf


def number(value: Value, otherwise: float = 0.0) -> float:
    return value if not isinstance(value, str) else otherwise


def added_db(m: Measurement) -> float:
    return as_db(sqnr_db(m.isolated)) if m.isolated is not None else math.inf


def median_channel_db(m: Measurement) -> float:
    """What the op adds to its median channel. One large channel can hide that all the others are lost."""
    channels = _known_channels(m)
    return float(np.median(channels)) if channels.size else math.inf


def harm_db(m: Measurement, scene: Scene) -> float:
    """The error that an op adds, seen over the whole tensor or, where few channels dominate it, by channel."""
    uneven = _outlier_ratio(m) > OUTLIER_RATIO and scene.readers(m) and m.op.type not in ("Softmax", "LogSoftmax")
    return min(added_db(m), median_channel_db(m)) if uneven else added_db(m)


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


def non_finite(m: Measurement, scene: Scene) -> Finding | None:
    if m.output is None or m.output.total("nonfinite_y") <= m.output.total("nonfinite_x"):
        return None
    bad, total = m.output.total("nonfinite_y"), m.output.total("count") + m.output.total("nonfinite_y")
    because = (
        f"{m.op.name} gives {bad:.0f} values that are NaN or infinite ({bad / total:.1%}), the fp32 model none there"
    )
    return Finding("non_finite", scene.edge_ops(m) or [m.op.name], because, {"non_finite": bad, "share": bad / total})


def constant(m: Measurement, scene: Scene) -> Finding | None:
    if m.output is None or m.output.extreme("neg_y_min") != -m.output.extreme("y_max"):
        return None
    value, spread = m.output.extreme("y_max"), number(metrics.deviation(m.output, "x"))
    if spread == 0:
        return None
    because = f"{m.op.name} is the constant {value:.3g} after quantization, in fp32 it varies by ±{spread:.3g}"
    return Finding("constant", scene.edge_ops(m) or [m.op.name], because, {"value": value, "fp32_std": spread})


def clipped_range(m: Measurement, scene: Scene) -> Finding | None:
    for edge in [m, *scene.sources(m)]:
        stats, quantization = edge.output, edge.op.activation
        if stats is None or quantization is None or quantization.limits is None:
            continue
        share = number(metrics.clipped(stats, quantization))
        low, high = float(np.min(quantization.limits[0])), float(np.max(quantization.limits[1]))
        steps = max(stats.extreme("neg_x_min") + low, stats.extreme("x_max") - high) * 255 / (high - low)
        if share > CLIPPED and steps > CLIPPED_STEPS and (edge is m or added_db(edge) < scene.limit):
            found = f"[{-stats.extreme('neg_x_min'):.3g}, {stats.extreme('x_max'):.3g}]"
            because = (
                f"{share:.2%} of the output of {edge.op.name} lie outside [{low:.3g}, {high:.3g}], which is all that "
                f"its quantized type can hold; fp32 has {found}. Calibrate with data like this, or with min-max"
            )
            return Finding("clipped_range", scene.edge_ops(edge), because, {"clipped": share, "low": low, "high": high})
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
            return Finding("clipped_range", scene.unit_ops(m.op.name), because, {"low": q_low, "high": q_high})
    return None


def outlier_channels(m: Measurement, scene: Scene) -> Finding | None:
    """A few channels stretch the one scale that all share, behind this op or before it."""
    before = [] if _weights_explain(m) else scene.sources(m)
    edges = [edge for edge in (m, *before) if scene.readers(edge) and _outlier_ratio(edge) > OUTLIER_RATIO]
    if not edges:
        return None
    edge = min(edges, key=median_channel_db)
    if edge is m and median_channel_db(m) >= scene.limit:
        return None
    ranges = metrics.channel_ranges(edge.output) if edge.output is not None else np.zeros(0)
    outliers = np.flatnonzero(ranges > OUTLIER_RATIO * np.median(ranges[ranges > 0])).tolist()
    channels = _known_channels(edge)
    share = float(np.mean(channels < 10)) if channels.size else 0.0
    reader = scene.readers(edge)[0]
    because = (
        f"{len(outliers)} of {len(ranges)} channels between {edge.op.name} and {reader.op.name} are up to "
        f"{_outlier_ratio(edge):.0f} times larger than the median channel; the scale that all share drowns {share:.0%} "
        f"of the channels in rounding noise (under 10 dB)"
    )
    if added_db(reader) < WATCH_DB:
        because += f" and {_leaves(reader)}"
    evidence = {
        "channel_ratio": _outlier_ratio(edge), "channels": outliers[:32], "lost_channels": share,
        "median_channel_sqnr_db": _finite(median_channel_db(edge)),
    }  # fmt: skip
    return Finding("outlier_channels", scene.edge_ops(edge), because, evidence)


def weights_per_tensor(m: Measurement, scene: Scene) -> Finding | None:
    if m.weight is None or m.op.weight is None or m.op.weight.granularity != "per tensor" or m.weight.channels < 2:
        return None
    if not _weights_explain(m):
        return None
    levels = (m.op.weight.high - m.op.weight.low) / 2
    steps = metrics.channel_ranges(m.weight) / levels
    expected = float(np.nansum(m.weight.channel_sums("count") * steps**2 / 12))
    gain = 10 * math.log10(m.weight.total("e2") / expected) if expected > 0 and m.weight.total("e2") > 0 else 0.0
    if gain < PER_CHANNEL_GAIN_DB:
        return None
    ratio = number(metrics.channel_ratio(m.weight))
    because = (
        f"the weights of {m.op.name} share one scale although its largest channel is {ratio:.0f} times the median one "
        f"({weight_db(m):.1f} dB); a scale for each channel would gain about {gain:.0f} dB: quantize with "
        "per_channel=True, or keep it in fp32"
    )
    evidence = {"weight_sqnr_db": weight_db(m), "channel_ratio": ratio, "expected_gain_db": gain}
    return Finding("weights_per_tensor", scene.unit_ops(m.op.name), because, evidence)


def weight_outliers(m: Measurement, scene: Scene) -> Finding | None:
    if m.weight is None or m.op.weight is None or not _weights_explain(m):
        return None
    low, high = number(metrics.minimum(m.weight, "x")), number(metrics.maximum(m.weight, "x"))
    spread = number(metrics.deviation(m.weight, "x"))
    because = (
        f"the weights of {m.op.name} reach from {low:.3g} to {high:.3g} with a spread of only {spread:.3g}: rounding "
        f"them to {m.op.weight.dtype} makes {_flushed_weights(m):.0%} of them zero and leaves {weight_db(m):.1f} dB"
    )
    evidence = {
        "weight_sqnr_db": weight_db(m), "flushed": _flushed_weights(m), "min": low, "max": high, "std": spread,
    }  # fmt: skip
    return Finding("weight_outliers", scene.unit_ops(m.op.name), because, evidence)


def unbalanced_inputs(m: Measurement, scene: Scene) -> Finding | None:
    if m.op.type not in ("Add", "Sum", "Sub", "Concat") or len(scene.sources(m)) < 2:
        return None
    ranges = {s.op.name: _reach(s.output) for s in scene.sources(m) if s.output is not None}
    ranges = {name: reach for name, reach in ranges.items() if reach > 0}
    if len(ranges) < 2 or max(ranges.values()) < UNBALANCED_RATIO * min(ranges.values()):
        return None
    large, small = max(ranges, key=lambda n: ranges[n]), min(ranges, key=lambda n: ranges[n])
    ratio = ranges[large] / ranges[small]
    because = (
        f"{m.op.name} joins {large} (up to {ranges[large]:.3g}) and {small} (up to {ranges[small]:.3g}): on a common "
        f"scale the smaller one, {ratio:.0f} times smaller, has few steps left"
    )
    return Finding("unbalanced_inputs", scene.edge_ops(m) or scene.unit_ops(m.op.name), because, {"ratio": ratio})


def dispersed_range(m: Measurement, scene: Scene) -> Finding | None:
    """The range is set by few values far out, so the many near the middle get few steps."""
    for edge in [m, *scene.sources(m)]:
        if edge.output is None or edge.op.activation is None:
            continue
        reach = _reach(edge.output)
        tail = _share_beyond(edge.output, TAIL * reach)
        suffers = rounding_db(edge) < added_db(m) + EXPLAINS_DB if edge is m else tail > 0
        if not suffers or tail > IN_TAIL or reach == 0:
            continue
        because = (
            f"only {tail:.2%} of the output of {edge.op.name} lie beyond ±{TAIL * reach:.3g}, but its range goes to "
            f"±{reach:.3g}: the rest share {TAIL:.0%} of the steps"
        )
        evidence = {"share_in_tails": tail, "reach": reach, "kurtosis": number(metrics.kurtosis(edge.output))}
        return Finding("dispersed_range", scene.edge_ops(edge) or scene.unit_ops(m.op.name), because, evidence)
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
            return Finding("flushed_to_zero", ops, because, {"flushed": share})
    return None


def delicate_neighbourhood(m: Measurement, scene: Scene) -> Finding | None:
    for near in [m, *scene.sources(m)]:
        if near.op.type in DELICATE:
            because = f"{near.op.name} {_leaves(m)}: {DELICATE[near.op.type]}"
            return Finding(
                "delicate_neighbourhood", scene.edge_ops(near) or [m.op.name], because, {"type": near.op.type}
            )
    if m.op.type == "Add" and len(scene.sources(m)) > 1:
        because = (
            f"rounding the sum of two branches {_leaves(m)}; what is lost in a residual sum is missing in every layer "
            "behind it"
        )
        return Finding("delicate_neighbourhood", scene.edge_ops(m) or [m.op.name], because, {"type": "residual"})
    return None


def first_or_last_layer(m: Measurement, scene: Scene) -> Finding | None:
    bearing = [other for other in scene.all if other.op.params]
    if not bearing or m not in (bearing[0], bearing[-1]):
        return None
    place = "first" if m is bearing[0] else "last"
    why = "its input carries all the detail" if place == "first" else "nothing behind it evens the error out"
    because = f"quantizing the {place} layer with weights {_leaves(m)}; {why}"
    return Finding("first_or_last_layer", scene.unit_ops(m.op.name), because, {"place": place})


def high_error(m: Measurement, scene: Scene) -> Finding | None:
    sources = ", ".join(s.op.name for s in scene.sources(m)) or "the model's input"
    because = f"quantizing it {_leaves(m)}, even with correct inputs from {sources}"
    return Finding("high_error", scene.unit_ops(m.op.name), because)


RULES: Sequence[Rule] = (
    non_finite, constant, clipped_range, clipped_input, outlier_channels, weights_per_tensor, weight_outliers,
    unbalanced_inputs, dispersed_range, flushed_to_zero, delicate_neighbourhood, first_or_last_layer, high_error,
)  # fmt: skip


def judge(measurements: Sequence[Measurement], framework: str) -> list[Suggestion]:
    """Suggestions, worst first; also gives every measurement its verdict and reason."""
    scene = Scene(measurements)
    findings = []
    for m in scene.all:
        broken = m.output is not None and m.output.total("nonfinite_y") > m.output.total("nonfinite_x")
        harm = harm_db(m, scene)
        if harm >= scene.limit and not broken:
            continue
        found = next((f for rule in RULES if (f := rule(m, scene)) is not None), None)
        if found is not None:
            found.score = math.inf if broken else 10 ** (-harm / 10)
            found.evidence = {"op": m.op.name, "added_sqnr_db": _finite(added_db(m)), **found.evidence}
            findings.append(found)
    suggestions = [
        _as_suggestion(group, rank, scene, framework)
        for rank, group in enumerate(_grouped(_distinct(findings), scene), start=1)
    ]
    _give_verdicts(scene, suggestions)
    return suggestions


def _distinct(findings: Sequence[Finding]) -> list[Finding]:
    """Worst first, without those whose ops a worse one covers already."""
    kept: list[Finding] = []
    for finding in sorted(findings, key=lambda f: -f.score):
        if not any(set(finding.ops) <= set(other.ops) for other in kept):
            kept.append(finding)
    return kept


def _grouped(findings: Sequence[Finding], scene: Scene) -> list[list[Finding]]:
    """Findings of one rule whose ops have the same names but for an index belong together.

    Unless a pattern for them would catch many other ops, as with names that are mere numbers.
    """
    groups: dict[tuple[str, tuple[str, ...]], list[Finding]] = {}
    for finding in findings:
        key = finding.rule, tuple(sorted(re.sub(r"\d+", "#", name) for name in finding.ops))
        groups.setdefault(key, []).append(finding)
    split: list[list[Finding]] = []
    for group in groups.values():
        names = {name for finding in group for name in finding.ops}
        caught = _matching(patterns_of(sorted(names)), scene)
        split += [group] if caught <= PATTERN_EXCESS * len(names) else [[finding] for finding in group]
    return sorted(split, key=lambda group: -group[0].score)


def _matching(patterns: Sequence[str], scene: Scene) -> int:
    return sum(1 for name in scene.by_name if any(re.fullmatch(p, name) for p in patterns))


def _as_suggestion(group: Sequence[Finding], rank: int, scene: Scene, framework: str) -> Suggestion:
    worst = group[0]
    ops = sorted({name for f in group for name in f.ops}, key=lambda name: scene.by_name[name].op.index)
    patterns = patterns_of(ops) if len(group) > 1 else []
    because, evidence = worst.because, dict(worst.evidence)
    if patterns:
        matched = _matching(patterns, scene)
        because += f". The same in {len(group)} places ({matched} ops match {' and '.join(patterns)})"
        evidence.update(places=len(group), matches=matched)
    texts = recipes(framework, ops, patterns)
    return Suggestion(ops, worst.rule, because, evidence, texts, "|".join(patterns), rank)


def patterns_of(names: Sequence[str]) -> list[str]:
    """Regular expressions for names that differ only by an index; digits that are the same everywhere stay."""
    alike: dict[str, list[list[str]]] = defaultdict(list)
    for name in names:
        alike[re.sub(r"\d+", "#", name)].append(re.split(r"(\d+)", name))
    patterns = []
    for parts in alike.values():
        columns = [{part[i] for part in parts} for i in range(len(parts[0]))]
        patterns.append("".join(re.escape(c.pop()) if len(c) == 1 else r"\d+" for c in columns).replace("\\/", "/"))
    return patterns


def _give_verdicts(scene: Scene, suggestions: Sequence[Suggestion]) -> None:
    blamed: Mapping[str, str] = {op: s.because for s in reversed(suggestions) for op in s.ops}
    for m in scene.all:
        if m.op.name in blamed:
            m.verdict, m.reason = "bad", blamed[m.op.name]
        elif m.op.note or m.isolated is None:
            m.verdict, m.reason = "", m.op.note
        elif added_db(m) < WATCH_DB:
            m.verdict, m.reason = "watch", f"adds noise: {added_db(m):.1f} dB where over {WATCH_DB:.0f} is usual"
        else:
            m.verdict = "ok"


def _weights_explain(m: Measurement) -> bool:
    """Rounding the weights alone makes about as much noise as the op adds, or wipes most of them out."""
    return weight_db(m) <= added_db(m) + EXPLAINS_DB or _flushed_weights(m) > FLUSHED


def _flushed_weights(m: Measurement) -> float:
    return number(metrics.flushed(m.weight, m.op.weight)) if m.weight is not None else 0.0


def _known_channels(m: Measurement) -> npt.NDArray[np.float64]:
    if m.isolated is None or m.isolated.channels < 2:
        return np.zeros(0)
    return _known(metrics.channel_sqnr_db(m.isolated))


def _known(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return values[~np.isnan(values)]


def _outlier_ratio(m: Measurement) -> float:
    return number(metrics.channel_ratio(m.output)) if m.output is not None else 0.0


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _leaves(m: Measurement) -> str:
    return f"leaves {m.op.name} {added_db(m):.1f} dB signal to noise where over {WATCH_DB:.0f} is healthy"


def _reach(stats: PairStats | None) -> float:
    if stats is None:
        return 0.0
    found = max(stats.extreme("neg_x_min"), stats.extreme("x_max"))
    return found if math.isfinite(found) else 0.0


def _share_beyond(stats: PairStats, limit: float) -> float:
    """Share of reference values with a magnitude above the limit, to the width of a histogram bin."""
    edges, counts = stats.reference.edges, stats.reference.counts
    beyond = counts[(edges[:-1] >= limit) | (edges[1:] <= -limit)].sum()
    return float(beyond) / max(1, stats.reference.total)
