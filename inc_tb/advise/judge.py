"""From findings to ranked suggestions: the worst first, duplicates dropped, layers merged into patterns."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from inc_tb.advise.configs import SHOWN_IN, Fitted, recipes_for
from inc_tb.advise.rules import RULES, Finding, Rule, finite
from inc_tb.advise.scene import LAYOUT, WATCH_DB, Scene, added_db, harm_db
from inc_tb.frameworks.ops import Op
from inc_tb.frameworks.registry import named
from inc_tb.frameworks.templates import write
from inc_tb.measure.op_table import Measurement, Verdict, text_columns
from inc_tb.records import Column, Effect, Suggestion

PATTERN_EXCESS = 1.5
EVIDENCE: Sequence[Column] = (
    Column("op", "op", label="op that suffers", help="The op whose output shows the error."),
    Column("added_sqnr_db", label="added SQNR", unit="dB", better="higher", normal=(WATCH_DB, None),
           help="Signal to noise of the op's output when only its own quantization is at work."),
    Column("places", label="places", unit="count",
           help="How many times the same was found under names that differ by an index only."),
    Column("matches", label="matching ops", unit="count", help="How many ops of the model have such names."),
    *(column for rule in RULES for column in rule.evidence),
)  # fmt: skip
"""What the evidence of its suggestions means."""
Verdicts = dict[str, Verdict]
"""By op."""


def judge(measurements: Sequence[Measurement], framework: str) -> tuple[list[Suggestion], Verdicts]:
    """Suggestions, worst first, and what is to be thought of every op."""
    known = named(framework)
    scene = Scene(measurements, known.words if known is not None else {})
    findings = []
    for m in scene.all:
        broken = m.output is not None and m.output.total("nonfinite_y") > m.output.total("nonfinite_x")
        harm = harm_db(m, scene)
        if (harm >= scene.limit or scene.kind(m) in LAYOUT) and not broken:
            continue
        found = next(((rule, f) for rule in RULES if (f := rule.find(m, scene)) is not None), None)
        if found is not None:
            score = math.inf if broken else 10 ** (-harm / 10)
            evidence = {"op": m.op.name, "added_sqnr_db": finite(added_db(m)), **found[1].evidence}
            findings.append(_Scored(found[0], found[1]._replace(evidence=evidence), score))
    formats = recipes_for(framework, text_columns(scene.all, SHOWN_IN))
    noise = {m.op.name: 10 ** (-added_db(m) / 10) for m in scene.all}
    suggestions = [
        _as_suggestion(group, rank, scene, formats, noise)
        for rank, group in enumerate(_grouped(_distinct(findings), scene), start=1)
    ]
    return suggestions, _verdicts(scene, suggestions)


class _Scored(NamedTuple):
    rule: Rule
    finding: Finding
    score: float
    """Noise over signal at the op that suffers."""

    @property
    def ops(self) -> list[str]:
        return self.finding.ops


def _distinct(findings: Sequence[_Scored]) -> list[_Scored]:
    """Worst first, without those whose ops a worse one covers already."""
    kept: list[_Scored] = []
    for finding in sorted(findings, key=lambda f: -f.score):
        if not any(set(finding.ops) <= set(other.ops) for other in kept):
            kept.append(finding)
    return kept


def _grouped(findings: Sequence[_Scored], scene: Scene) -> list[list[_Scored]]:
    """Findings of one rule whose ops have the same names but for an index belong together.

    Unless a pattern for them would catch many other ops, as with names that are mere numbers.
    """
    groups: dict[tuple[str, tuple[str, ...]], list[_Scored]] = {}
    for finding in findings:
        one_cure = finding.rule.has_one_cure
        alike = () if one_cure else tuple(sorted(re.sub(r"\d+", "#", name) for name in finding.ops))
        groups.setdefault((finding.rule.name, alike), []).append(finding)
    split: list[list[_Scored]] = []
    for group in groups.values():
        names = {name for finding in group for name in finding.ops}
        caught = _matching(patterns_of(sorted(names)), scene)
        is_one = group[0].rule.has_one_cure or caught <= PATTERN_EXCESS * len(names)
        split += [group] if is_one else [[finding] for finding in group]
    return sorted(split, key=lambda group: -group[0].score)


def _matching(patterns: Sequence[str], scene: Scene) -> int:
    return sum(1 for name in scene.by_name if any(re.fullmatch(p, name) for p in patterns))


def _as_suggestion(
    group: Sequence[_Scored], rank: int, scene: Scene, formats: Sequence[Fitted], noise: Mapping[str, float]
) -> Suggestion:
    worst = group[0]
    ops = sorted({name for f in group for name in f.ops}, key=lambda name: scene.by_name[name].op.index)
    has_one_cure = worst.rule.has_one_cure
    patterns = patterns_of(ops) if len(group) > 1 and not has_one_cure else []
    because, evidence = worst.finding.because, dict(worst.finding.evidence)
    if has_one_cure and len(group) > 1:
        because += f". The same in {len(group)} places, which one setting cures"
        evidence.update(places=len(group))
    if patterns:
        matched = _matching(patterns, scene)
        because += f". The same in {len(group)} places ({matched} ops match {' and '.join(patterns)})"
        evidence.update(places=len(group), matches=matched)
    tensors = {name: scene.by_name[name].op.tensor for name in ops}
    # What costs less than fp32 comes first.
    recipes = [f.recipe for f in sorted(formats, key=lambda f: worst.rule.name not in f.format.cures)]
    modules = {name: scene.by_name[name].op.module for name in ops}
    texts = {recipe.tool: write(recipe, ops, tensors, patterns, modules) for recipe in recipes}
    effects = effects_of([scene.by_name[name].op for name in ops], noise)
    return Suggestion(ops, worst.rule.name, because, evidence, texts, "|".join(patterns), rank, effects)


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


def _bits(dtype: str) -> int:
    digits = re.search(r"\d+", dtype)
    return int(digits[0]) if digits else 32


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


def _verdicts(scene: Scene, suggestions: Sequence[Suggestion]) -> Verdicts:
    blamed: Mapping[str, str] = {op: s.because for s in reversed(suggestions) for op in s.ops}
    return {m.op.name: _verdict(m, scene, blamed.get(m.op.name, "")) for m in scene.all}


def _verdict(m: Measurement, scene: Scene, blamed_for: str) -> Verdict:
    if blamed_for:
        return Verdict("bad", blamed_for)
    if m.op.note or m.isolated is None:
        return Verdict("", m.op.note)
    if not m.isolated.total("count"):
        return Verdict("", "no finite value was seen")
    if added_db(m) < WATCH_DB and scene.kind(m) in LAYOUT:
        return Verdict("watch", "differs although it only rearranges values: perhaps compared with the wrong place")
    if added_db(m) < WATCH_DB:
        return Verdict("watch", f"adds noise: {added_db(m):.1f} dB where over {WATCH_DB:.0f} is usual")
    return Verdict("ok")
