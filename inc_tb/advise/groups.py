"""Findings that belong together: one cause in every layer, or along a chain of ops that hand the same channels on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inc_tb.advise.finding import Finding
from inc_tb.advise.rules import Rule
from inc_tb.advise.scene import LAYOUT, OUTLIER_RATIO, SOFTMAX, Scene, outlier_ratio
from inc_tb.frameworks.patterns import is_repeated, shape_of
from inc_tb.measure.op_table import Measurement

KEEPS_CHANNELS = {
    "Add", "Sum", "Sub", "Mul", "Div", "Max", "Min", "Identity", "Dropout", "Clip", "Relu", "LeakyRelu", "PRelu", "Elu",
    "Selu", "Sigmoid", "HardSigmoid", "HardSwish", "Swish", "Mish", "Tanh", "Erf", "Gelu", "FastGelu", "BiasGelu",
    "Softplus", "BatchNormalization", "InstanceNormalization", "GroupNormalization", "LayerNormalization",
    "SkipLayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization", "MaxPool", "AveragePool",
    "GlobalAveragePool", "GlobalMaxPool",
}  # fmt: skip
"""Types of ops, as ONNX calls them, that may have weights and have the channels of their input in the same order."""

_SUMS = {"Add", "Sum", "Sub", "Concat"}
_PRODUCTS = {"MatMul", "BatchMatMul", "matmul", "bmm"}


class Scored(NamedTuple):
    rule: Rule
    finding: Finding
    score: float
    """Noise over signal at the op that suffers."""
    cured_by: tuple[str, ...] = ()
    """Tools of which one setting for the whole model takes the cause away."""

    @property
    def ops(self) -> list[str]:
        return self.finding.ops


def grouped(findings: Sequence[Scored], scene: Scene) -> list[list[Scored]]:
    """Groups of findings of one rule, the worst first, also within each.

    Those belong together which one setting cures, whose ops have the same names but for an index, and whose outlier
    channels are handed on from one to the other.
    """
    whole = [_to_the_producer(finding, scene) for finding in findings]
    groups = [[f for group in chain for f in group] for chain in _chained(_alike(whole, scene), scene)]
    groups = [sorted(group, key=lambda f: -f.score) for group in groups]
    return _uncovered(sorted(groups, key=lambda group: -group[0].score))


def _alike(findings: Sequence[Scored], scene: Scene) -> list[list[Scored]]:
    """Unless many others have such names, as where names are mere numbers."""
    groups: dict[tuple[str, tuple[str, ...]], list[Scored]] = {}
    for finding in findings:
        same = finding.cured_by or tuple(sorted(map(shape_of, finding.ops)))
        groups.setdefault((finding.rule.name, same), []).append(finding)
    split: list[list[Scored]] = []
    for group in groups.values():
        names = {name for finding in group for name in finding.ops}
        is_one = group[0].cured_by or is_repeated(names, scene.by_name)
        split += [group] if is_one else [[finding] for finding in group]
    return split


def _chained(groups: Sequence[list[Scored]], scene: Scene) -> list[list[list[Scored]]]:
    """Groups along whose tensors the same outlier channels are handed on."""
    chain_of = {i: [i] for i in range(len(groups))}
    edges = {_edge(f): (i, f) for i, group in enumerate(groups) for f in group if _has_edge(f)}
    for name, (i, finding) in edges.items():
        edge = scene.by_name[name]
        sources = {s.op.name: False for s in (scene.sources(edge) if _may_hand_on(edge, scene) else ())}
        way = _way_back(edge, scene)
        sources |= {m.op.name: _is_rearranged(way[:at], scene) for at, m in enumerate(way) if at}
        for source, is_rearranged in sources.items():
            j, before = edges.get(source, (i, finding))
            fits = before.rule is finding.rule and (is_rearranged or _shares_channels(before, finding))
            if chain_of[i] is not chain_of[j] and fits:
                chain_of[i] += chain_of[j]
                chain_of.update(dict.fromkeys(chain_of[j], chain_of[i]))
    chains = {id(chain): chain for chain in chain_of.values()}
    return [[groups[i] for i in chain] for chain in chains.values()]


def _to_the_producer(finding: Scored, scene: Scene) -> Scored:
    """With all that hands the channels on to the edge, from the op that makes them: sparing a part spares nothing."""
    if not _has_edge(finding):
        return finding
    rounded = [m for m in _way_back(scene.by_name[_edge(finding)], scene)[1:] if m.op.activation is not None]
    ops = {name for m in rounded for name in scene.unit_ops(m.op.name)}.union(finding.ops)
    in_order = sorted(ops, key=lambda name: scene.by_name[name].op.index)
    return finding._replace(finding=finding.finding._replace(ops=in_order))


def _way_back(edge: Measurement, scene: Scene) -> list[Measurement]:
    """From an edge, over what hands its outlier channels on, to the op that makes them.

    It ends where two branches with such channels meet: each has its own cause.
    """
    way = [edge]
    while _may_hand_on(way[-1], scene) and scene.kind(way[-1]) not in SOFTMAX:
        sources = scene.sources(way[-1])
        is_sum = scene.kind(way[-1]) in _SUMS and len(sources) > 1
        is_layout = scene.kind(way[-1]) in LAYOUT
        large = sources if is_layout else [m for m in sources if outlier_ratio(m) > OUTLIER_RATIO]
        if len(large) != 1 or is_sum or large[0] in way:
            break
        way.append(large[0])
    return way


def _is_rearranged(way: Sequence[Measurement], scene: Scene) -> bool:
    """Whether one of these ops gives its channels other places: heads, or an axis that was moved."""
    return any(scene.kind(m) in LAYOUT or scene.kind(m) in _PRODUCTS for m in way)


def _may_hand_on(edge: Measurement, scene: Scene) -> bool:
    """Without weights an op cannot make such channels itself, whatever a framework calls it."""
    return not edge.op.params or scene.kind(edge) in KEEPS_CHANNELS


def _edge(finding: Scored) -> str:
    return str(finding.finding.evidence["edge"])


def _has_edge(finding: Scored) -> bool:
    return {"edge", "channels"} <= set(finding.finding.evidence)


def _shares_channels(a: Scored, b: Scored) -> bool:
    common = set(a.finding.evidence["channels"]).intersection(b.finding.evidence["channels"])
    return a.rule.name == b.rule.name and bool(common)


def _uncovered(groups: Sequence[list[Scored]]) -> list[list[Scored]]:
    """Without those whose ops a worse one keeps in fp32 already, as a setting does not."""
    found: list[list[Scored]] = []
    kept: list[set[str]] = []
    for group in groups:
        ops = {name for finding in group for name in finding.ops}
        if group[0].cured_by or not any(ops <= others for others in kept):
            found.append(group)
            kept += [] if group[0].cured_by else [ops]
    return found
