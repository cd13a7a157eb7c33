"""From findings to ranked suggestions: the worst first, duplicates dropped, what belongs together as one."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from inc_tb.advise.configs import SHOWN_IN, Fitted, curing, recipes_for, write_for
from inc_tb.advise.finding import finite
from inc_tb.advise.groups import Scored, grouped
from inc_tb.advise.rules import RULES, harm
from inc_tb.advise.scene import LAYOUT, Scene, added_db, healthy_db
from inc_tb.frameworks.ops import Op
from inc_tb.frameworks.patterns import exact_patterns, pattern_of
from inc_tb.frameworks.registry import named
from inc_tb.measure.natural import WATCH_DB
from inc_tb.measure.op_table import Measurement, Verdict, text_columns
from inc_tb.records import Column, Effect, Suggestion

EVIDENCE: Sequence[Column] = (
    Column("op", "op", label="op that suffers", help="The op whose output shows the error."),
    Column("added_sqnr_db", label="added SQNR", unit="dB", better="higher", normal=(WATCH_DB, None),
           help="Signal to noise of the op's output when only its own quantization is at work."),
    Column("places", label="places", unit="count",
           help="How many times the same was found: under names that differ by an index only, in the same channels "
                "further on, or wherever one setting cures it."),
    Column("matches", label="matching ops", unit="count",
           help="How many ops of the model the pattern matches: those of this suggestion and no others."),
    *(column for rule in RULES for column in rule.evidence),
)  # fmt: skip
"""What the evidence of its suggestions means."""
Verdicts = dict[str, Verdict]
"""By op."""


def judge(measurements: Sequence[Measurement], framework: str) -> tuple[list[Suggestion], Verdicts]:
    """Suggestions, worst first, and what is to be thought of every op."""
    known = named(framework)
    scene = Scene(measurements, known.words if known is not None else {})
    formats = recipes_for(framework, text_columns(scene.all, SHOWN_IN))
    findings = []
    for m in scene.all:
        broken = m.output is not None and m.output.total("nonfinite_y") > m.output.total("nonfinite_x")
        harmed = harm(m, scene)
        if (harmed >= scene.limit_of(m) or scene.kind(m) in LAYOUT) and not broken:
            continue
        found = next(((rule, f) for rule in RULES if (f := rule.find(m, scene)) is not None), None)
        if found is not None:
            score = math.inf if broken else 10 ** (-harmed / 10)
            evidence = {"op": m.op.name, "added_sqnr_db": finite(added_db(m)), **found[1].evidence}
            cured_by = tuple(curing(formats, found[0].name, m.op.type))
            findings.append(Scored(found[0], found[1]._replace(evidence=evidence), score, cured_by))
    noise = {m.op.name: 10 ** (-added_db(m) / 10) for m in scene.all}
    groups = grouped(_distinct(findings), scene)
    suggestions = [_as_suggestion(group, rank, scene, formats, noise) for rank, group in enumerate(groups, start=1)]
    return suggestions, _verdicts(scene, suggestions)


def _distinct(findings: Sequence[Scored]) -> list[Scored]:
    """Worst first, without those whose ops a worse one covers already."""
    kept: list[Scored] = []
    for finding in sorted(findings, key=lambda f: -f.score):
        if not any(set(finding.ops) <= set(other.ops) for other in kept):
            kept.append(finding)
    return kept


def _as_suggestion(
    group: Sequence[Scored], rank: int, scene: Scene, formats: Sequence[Fitted], noise: Mapping[str, float]
) -> Suggestion:
    worst = group[0]
    ops = sorted({name for f in group for name in f.ops}, key=lambda name: scene.by_name[name].op.index)
    patterns = exact_patterns(ops, scene.by_name)
    pattern = pattern_of(ops, scene.by_name)
    because, evidence = worst.finding.because, dict(worst.finding.evidence)
    if len(group) > 1:
        because += f". The same in {len(group)} places{', which one setting cures' if worst.cured_by else ''}"
        evidence.update(places=len(group))
    evidence.update({"matches": len(ops)} if pattern else {})
    nodes = [scene.by_name[name].op for name in ops]
    # What costs less than fp32 comes first.
    recipes = [f.recipe for f in sorted(formats, key=lambda f: f.recipe.tool not in worst.cured_by)]
    texts = {recipe.tool: write_for(recipe, ops, nodes, patterns) for recipe in recipes}
    effects = effects_of(nodes, noise)
    effects = instead(effects) if worst.cured_by else effects
    return Suggestion(ops, worst.rule.name, because, evidence, texts, pattern, rank, effects)


def effects_of(ops: Sequence[Op], noise: Mapping[str, float]) -> list[Effect]:
    """What keeping the ops in fp32 gives and takes, as far as the statistics tell."""
    found = []
    total = sum(noise.values())
    if math.isfinite(total) and total > 0:
        share = sum(noise[op.name] for op in ops) / total
        how = "the share of these ops in the noise that all ops add, each relative to its own signal"
        found.append(Effect("recovers", "less added noise", share, "share", "estimated", how, "noise"))
    return [*found, *costs_of([(op.params, op.weight.dtype if op.weight is not None else "") for op in ops])]


def costs_of(ops: Sequence[tuple[float, str]]) -> list[Effect]:
    """Of ops with these numbers of weights, quantized to these types; "" is fp32."""
    size = sum(params * (4 - _bits(dtype) / 8) for params, dtype in ops if dtype)
    return [
        Effect("costs", "larger weights", size, "bytes", "counted", "4 bytes a weight instead of int8's", "size"),
        Effect("costs", "ops that stay in fp32", len(ops), "count", "counted", "the ops of this suggestion", "ops"),
    ]


def instead(effects: Iterable[Effect]) -> list[Effect]:
    """Of keeping the ops in fp32, where what is suggested is a setting."""
    return [
        msgspec.structs.replace(effect, label=effect.label + " with these ops in fp32 instead")
        for effect in effects
        if effect.what != "ops"
    ]


def _bits(dtype: str) -> int:
    digits = re.search(r"\d+", dtype)
    return int(digits[0]) if digits else 32


def _verdicts(scene: Scene, suggestions: Sequence[Suggestion]) -> Verdicts:
    blamed: Mapping[str, str] = {op: s.because for s in reversed(suggestions) for op in s.ops}
    own = {m.op.name: _verdict(m, scene, blamed.get(m.op.name, "")) for m in scene.all}
    return {m.op.name: _with_its_head(m, own) for m in scene.all}


def _with_its_head(m: Measurement, own: Verdicts) -> Verdict:
    """What was fused into another op is as good or bad as that; its reason says where it went."""
    verdict, head = own[m.op.name], own.get(m.op.compared_at)
    return verdict._replace(verdict=head.verdict) if m.op.note and not verdict.verdict and head else verdict


def _verdict(m: Measurement, scene: Scene, blamed_for: str) -> Verdict:
    if blamed_for:
        return Verdict("bad", blamed_for)
    if m.op.note or m.isolated is None:
        return Verdict("", m.op.note)
    if not m.isolated.total("count"):
        return Verdict("", "no finite value was seen")
    usual = healthy_db(m)
    if added_db(m) < usual and scene.kind(m) in LAYOUT:
        return Verdict("watch", "differs although it only rearranges values: perhaps compared with the wrong place")
    if added_db(m) < usual and not m.op.is_rounded:
        return Verdict("watch", "differs although nothing in it is rounded: perhaps compared with the wrong place")
    if added_db(m) < usual and m.op.is_blind:
        error = f"{added_db(m):.1f} dB, but not by itself: what reaches it is rounded and could not be compared"
        return Verdict("watch", error)
    if added_db(m) < usual:
        return Verdict("watch", f"adds noise: {added_db(m):.1f} dB where over {usual:.0f} is usual")
    return Verdict("ok")
