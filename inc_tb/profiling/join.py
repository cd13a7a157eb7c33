"""A diagnosis with the times of a profile: columns, prices of suggestions, and ops that int8 has made slower."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import msgspec

from inc_tb.advise.configs import configs, is_setting, recipes_for
from inc_tb.advise.judge import instead
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.profiling.profile import Profile, speedup
from inc_tb.records import SLOWER, Cell, Column, Effect, ProfileRow, Suggestion

EVIDENCE = (
    Column("slower_us", label="slower in int8", unit="µs", better="lower", normal=(None, 0),
           help="How much longer these ops take in int8 with their conversions than in fp32, together, in each run."),
    Column("time_share", label="share of the int8 model's time", unit="share", better="lower", normal=(None, 0),
           help="What they take longer, as a share of the time of a whole run of the int8 model."),
)  # fmt: skip
"""What the evidence of its suggestion means."""
_EXCESS = 1.05
"""Ops that take together so many times what the whole run takes are slowed down by the profiler."""
_WORTH = 0.02
"""Of the int8 model's time, before slower ops are worth a suggestion."""
_FUSED = "runs as part of {}"
_UNTIMED = "the profile has no time of it"
_NOISE = "the times in fp32 and int8 cannot be told apart from noise"


def joined(profile: Profile, diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis with the times in its op table, and in its suggestions what keeping their ops in fp32 costs.

    Ops that got slower by quantization are a suggestion of their own.
    """
    row_of = {op: row for row in profile.rows for op in (*row.ops, row.op) if op}
    names = [str(name) for name in diagnosis.ops["name"]]

    def column(value_of: Callable[[ProfileRow], Cell]) -> list[Cell]:
        found: list[Cell] = []
        for name in names:
            row = row_of.get(name)
            is_head = row is not None and row.op == name
            found.append(value_of(row) if row is not None and is_head else _untimed(row))
        return found

    columns: dict[str, list[Cell]] = {
        "time_fp32_us": column(lambda row: _known(row.fp32_us)),
        "time_int8_us": column(lambda row: _known(row.int8_us)),
        "convert_us": column(lambda row: row.convert_us),
        "speedup": column(lambda row: _known(speedup(row)) if row.differs or speedup(row) is None else _NOISE),
    }
    suggestions = [_priced(s, profile, diagnosis) for s in diagnosis.suggestions if s.rule != SLOWER]
    suggestions += _slower(profile, diagnosis, 1 + max((s.rank for s in suggestions), default=0))
    return replace(diagnosis, ops=diagnosis.ops.replaced(columns), suggestions=suggestions)


def _slower(profile: Profile, diagnosis: Diagnosis, rank: int) -> list[Suggestion]:
    total, table = profile.total.int8_us, diagnosis.ops
    dtypes = zip(table["weight_dtype"], table["act_dtype"], strict=True)
    quantized = {str(name) for name, types in zip(table["name"], dtypes, strict=True) if any(types)}
    slower = [row for row in profile.rows if row.differs and (row.difference_us or 0.0) > 0]
    # A kernel has the types of its first op; what that gives may be rounded for others, which costs time there.
    rows = [row for row in slower if row.op in quantized]
    lost = sum(row.difference_us or 0.0 for row in rows)
    if not total or lost < _WORTH * total:
        return []
    known = {str(name) for name in table["name"]}
    ops = [op for row in rows for op in (row.op, *row.ops) if op in known]
    worst = max(rows, key=lambda row: row.difference_us or 0.0)
    because = (
        f"quantizing made {'this op' if len(rows) == 1 else f'these {len(rows)} ops'} slower: together "
        f"{lost:.1f} µs a run, {lost / total:.0%} of the int8 model's time; {worst.op} alone "
        f"{worst.difference_us:.1f} µs ({worst.fp32_us:.1f} in fp32)"
    )
    evidence = {"op": worst.op, "slower_us": lost, "time_share": lost / total}
    fp32 = [f.recipe.tool for f in recipes_for(diagnosis.framework, diagnosis.ops) if not f.recipe.rounds]
    texts = configs(diagnosis.framework, diagnosis.ops, diagnosis.graph, ops)
    texts = {tool: text for tool, text in texts.items() if tool in fp32}
    return [Suggestion(ops, SLOWER, because, evidence, texts, "", rank, _price(profile, ops))]


def _priced(suggestion: Suggestion, profile: Profile, diagnosis: Diagnosis) -> Suggestion:
    price = _price(profile, suggestion.ops)
    if is_setting(diagnosis.framework, diagnosis.ops, suggestion):
        price = instead(price)
    return msgspec.structs.replace(suggestion, effects=[*(e for e in suggestion.effects if e.what != "time"), *price])


def _price(profile: Profile, ops: Sequence[str]) -> list[Effect]:
    """What keeping the ops in fp32 costs in time, or gains."""
    rows = [row for row in profile.rows if {row.op, *row.ops}.intersection(ops) and row.differs is not None]
    if not rows:
        return []
    clear = [row for row in rows if row.differs and row.difference_us is not None]
    excess = max(1.0, *profile.accounted.values()) if profile.accounted else 1.0
    change = -sum(row.difference_us or 0.0 for row in clear) / excess
    how = (
        "fp32 minus int8 and its conversions, measured; conversions at new borders come on top"
        if clear
        else "inside the noise: fp32 and int8 cannot be told apart"
    )
    basis: Literal["measured", "estimated"] = "measured"
    if clear and excess > _EXCESS:
        basis = "estimated"
        how = f"fp32 minus int8, scaled: under the profiler ops took {excess:.0%} of what a run takes without it"
    kind: Literal["costs", "recovers"] = "recovers" if change < 0 else "costs"
    return [Effect(kind, "less time" if change < 0 else "more time", abs(change), "µs", basis, how, "time")]


def _known(value: float | None) -> Cell:
    return _UNTIMED if value is None else value


def _untimed(row: ProfileRow | None) -> str:
    return _UNTIMED if row is None else _FUSED.format(row.op)
