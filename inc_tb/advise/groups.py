"""Findings that belong together: one cause in every layer, or along a chain of ops that hand the same channels on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inc_tb.advise.finding import Finding
from inc_tb.advise.rules import Rule
from inc_tb.advise.scene import Scene
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
    groups = [[f for group in chain for f in group] for chain in _chained(_alike(findings, scene), scene)]
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
    edges = {str(f.finding.evidence["edge"]): (i, f) for i, group in enumerate(groups) for f in group if _has_edge(f)}
    for name, (i, finding) in edges.items():
        edge = scene.by_name[name]
        for source in scene.sources(edge) if _may_hand_on(edge, scene) else ():
            j, before = edges.get(source.op.name, (i, finding))
            if chain_of[i] is not chain_of[j] and _shares_channels(before, finding):
                chain_of[i] += chain_of[j]
                chain_of.update(dict.fromkeys(chain_of[j], chain_of[i]))
    chains = {id(chain): chain for chain in chain_of.values()}
    return [[groups[i] for i in chain] for chain in chains.values()]


def _may_hand_on(edge: Measurement, scene: Scene) -> bool:
    """Without weights an op cannot make such channels itself, whatever a framework calls it."""
    return not edge.op.params or scene.kind(edge) in KEEPS_CHANNELS


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
