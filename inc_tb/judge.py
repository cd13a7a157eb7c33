"""From findings to ranked suggestions: the worst first, duplicates dropped, layers merged into patterns."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from inc_tb.metrics import Measurement
from inc_tb.recipes import Settings, fitted, write
from inc_tb.records import Effect, Op, Recipe, Suggestion
from inc_tb.rules import RULES, Finding, finite
from inc_tb.scene import LAYOUT, WATCH_DB, Scene, added_db, harm_db, kind

PATTERN_EXCESS = 1.5
ONE_CURE = {"weights_per_tensor": "-per-channel"}
"""Rules whose cure is one setting for all ops at once, and how the recipes end that set it."""


def judge(measurements: Sequence[Measurement], framework: str) -> list[Suggestion]:
    """Suggestions, worst first; also gives every measurement its verdict and reason."""
    scene = Scene(measurements)
    findings = []
    for m in scene.all:
        broken = m.output is not None and m.output.total("nonfinite_y") > m.output.total("nonfinite_x")
        harm = harm_db(m, scene)
        if (harm >= scene.limit or kind(m.op) in LAYOUT) and not broken:
            continue
        found = next((f for rule in RULES if (f := rule(m, scene)) is not None), None)
        if found is not None:
            found.score = math.inf if broken else 10 ** (-harm / 10)
            found.evidence = {"op": m.op.name, "added_sqnr_db": finite(added_db(m)), **found.evidence}
            findings.append(found)
    templates = fitted(framework, settings_of(scene))
    noise = {m.op.name: 10 ** (-added_db(m) / 10) for m in scene.all}
    suggestions = [
        _as_suggestion(group, rank, scene, templates, noise)
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
        alike = () if finding.rule in ONE_CURE else tuple(sorted(re.sub(r"\d+", "#", name) for name in finding.ops))
        key = finding.rule, alike
        groups.setdefault(key, []).append(finding)
    split: list[list[Finding]] = []
    for group in groups.values():
        names = {name for finding in group for name in finding.ops}
        caught = _matching(patterns_of(sorted(names)), scene)
        is_one = group[0].rule in ONE_CURE or caught <= PATTERN_EXCESS * len(names)
        split += [group] if is_one else [[finding] for finding in group]
    return sorted(split, key=lambda group: -group[0].score)


def _matching(patterns: Sequence[str], scene: Scene) -> int:
    return sum(1 for name in scene.by_name if any(re.fullmatch(p, name) for p in patterns))


def _as_suggestion(
    group: Sequence[Finding], rank: int, scene: Scene, templates: Sequence[Recipe], noise: Mapping[str, float]
) -> Suggestion:
    worst = group[0]
    ops = sorted({name for f in group for name in f.ops}, key=lambda name: scene.by_name[name].op.index)
    has_one_cure = worst.rule in ONE_CURE
    patterns = patterns_of(ops) if len(group) > 1 and not has_one_cure else []
    because, evidence = worst.because, dict(worst.evidence)
    if has_one_cure and len(group) > 1:
        because += f". The same in {len(group)} places, which one setting cures"
        evidence.update(places=len(group))
    if patterns:
        matched = _matching(patterns, scene)
        because += f". The same in {len(group)} places ({matched} ops match {' and '.join(patterns)})"
        evidence.update(places=len(group), matches=matched)
    tensors = {name: scene.by_name[name].op.tensor for name in ops}
    cure = ONE_CURE.get(worst.rule, "no recipe")
    first = sorted(
        templates, key=lambda recipe: not recipe.tool.endswith(cure)
    )  # what costs less than fp32 comes first
    modules = {name: scene.by_name[name].op.module for name in ops}
    texts = {recipe.tool: write(recipe, ops, tensors, patterns, modules) for recipe in first}
    effects = effects_of([scene.by_name[name].op for name in ops], noise)
    return Suggestion(ops, worst.rule, because, evidence, texts, "|".join(patterns), rank, effects)


def effects_of(ops: Sequence[Op], noise: Mapping[str, float]) -> list[Effect]:
    """What keeping the ops in fp32 gives and takes, as far as the statistics tell."""
    found = []
    total = sum(noise.values())
    if math.isfinite(total) and total > 0:
        share = sum(noise[op.name] for op in ops) / total
        how = "the share of these ops in the noise that all ops add, each relative to its own signal"
        found.append(Effect("recovers", "less added noise", share, "share", "estimated", how))
    return [*found, *costs_of([(op.params, op.weight.dtype if op.weight is not None else "") for op in ops])]


def costs_of(ops: Sequence[tuple[float, str]]) -> list[Effect]:
    """Of ops with these numbers of weights, quantized to these types; "" is fp32."""
    size = sum(params * (4 - _bits(dtype) / 8) for params, dtype in ops if dtype)
    return [
        Effect("costs", "larger weights", size, "bytes", "counted", "4 bytes a weight instead of int8's"),
        Effect("costs", "ops that stay in fp32", len(ops), "count", "counted", "the ops of this suggestion"),
    ]


def settings_of(scene: Scene) -> Settings:
    ops = [m.op for m in scene.all]
    return Settings.seen_in(
        (op.activation.dtype for op in ops if op.activation is not None),
        (op.weight.dtype for op in ops if op.weight is not None),
        (op.weight.granularity for op in ops if op.weight is not None),
        (op.activation.scheme for op in ops if op.activation is not None),
    )


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


def _give_verdicts(scene: Scene, suggestions: Sequence[Suggestion]) -> None:
    blamed: Mapping[str, str] = {op: s.because for s in reversed(suggestions) for op in s.ops}
    for m in scene.all:
        if m.op.name in blamed:
            m.verdict, m.reason = "bad", blamed[m.op.name]
        elif m.op.note or m.isolated is None:
            m.verdict, m.reason = "", m.op.note
        elif not m.isolated.total("count"):
            m.verdict, m.reason = "", "no finite value was seen"
        elif added_db(m) < WATCH_DB and kind(m.op) in LAYOUT:
            m.verdict = "watch"
            m.reason = "differs although it only rearranges values: perhaps compared with the wrong place"
        elif added_db(m) < WATCH_DB:
            m.verdict, m.reason = "watch", f"adds noise: {added_db(m):.1f} dB where over {WATCH_DB:.0f} is usual"
        else:
            m.verdict = "ok"
