"""A diagnosis with what a probe has measured at the output: its columns, and suggestions ranked by it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from inc_tb.advise.configs import configs, is_setting, with_followers
from inc_tb.advise.judge import costs_of
from inc_tb.frameworks.patterns import pattern_of
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.records import Cell, Column, Effect, Suggestion, plural, short_repr

EXPLAINING, FOUND = "smallest_set", "measured_set"
"""The smallest as far as the search can tell; or, where it had no time for everything, one that works."""
EVIDENCE = (
    Column("error_left", label="error left at the output", unit="ratio", better="lower", normal=(None, 0.003),
           help="Error of the model's output with these ops in fp32, relative to how much the output varies between "
                "samples."),
    Column("recovered", label="error removed", unit="share", better="higher",
           help="Share of the output's error that goes away when these ops stay in fp32. Measured with all of them "
                "together."),
)  # fmt: skip
"""What the evidence means that it adds to suggestions."""
_FOLLOWS = "nothing starts to be rounded at this op"
_NOT_LEFT_OUT = "not among the most sensitive units, for which it is measured"
_NO_GRADIENT = "there is no gradient at this op; only PyTorch models have any"
_ILL = ("watch", "bad")
_MOST_PARTS = 3
_ENOUGH = 0.5
"""A cause that removes less than this share of the error by itself is not the only one."""
_MOST = 0.5
"""Of the error: a cause that removes so much explains most of it."""
_OTHERWISE = "Other settings (per channel, another calibrator, more bits) may do more than keeping ops in fp32"
_NOTHING = 0.02
"""Less than this share of the error is nothing."""
SPREAD_OVER = 12
"""More ops than this are not a culprit: the error is spread over the model."""
_FEW = 4
"""One unit of so many, or the two ends of a tensor, …"""
_DOMINATING = 25.0
"""… that each take away this many times what one of the others leaves, stand out without any rule."""


@dataclass
class UnitEffect:
    """What quantizing one unit does to the output."""

    __repr__ = short_repr

    name: str
    ops: list[str]
    sensitivity: float
    low: float
    high: float
    rank: tuple[int, int] = (0, 0)
    """The best and the worst rank that the samples leave possible."""
    recovery: float | None = None

    @property
    def rank_text(self) -> str:
        best, worst = self.rank
        return "" if not best else str(best) if best == worst else f"{best}–{worst}"


@dataclass
class KeptSet:
    """Units kept in fp32 together, and the error of the output that is left then."""

    __repr__ = short_repr

    units: list[str]
    error: float
    recovered: float
    """Share of the quantized model's error that goes away."""


def with_effects(
    diagnosis: Diagnosis,
    effects: Collection[UnitEffect],
    why_not: Mapping[str, str],
    gradients: Mapping[str, float] | None = None,
) -> Diagnosis:
    """Fills the columns of the op table; `why_not` has the reason for units that were not measured."""
    by_op = {op: effect for effect in effects for op in effect.ops}
    names = [str(name) for name in diagnosis.ops["name"]]

    def column(value_of: str) -> list[Cell]:
        found: list[Cell] = []
        for name in names:
            value = getattr(by_op[name], value_of) if name in by_op else why_not.get(name, _FOLLOWS)
            found.append(value if value is not None else _NOT_LEFT_OUT)
        return found

    columns: dict[str, list[Cell]] = {
        "sensitivity": column("sensitivity"), "sensitivity_low": column("low"), "sensitivity_high": column("high"),
        "recovery": column("recovery"),
        "sensitivity_gradient": [(gradients or {}).get(name, _NO_GRADIENT) for name in names],
        "sensitivity_rank": [by_op[name].rank_text if name in by_op else "" for name in names],
    }  # fmt: skip
    return replace(diagnosis, ops=diagnosis.ops.replaced(columns))


def with_kept(diagnosis: Diagnosis, kept: Sequence[str]) -> Diagnosis:
    """Configs that go on keeping in fp32 what the model keeps already."""
    if not kept:
        return diagnosis
    suggestions = [
        msgspec.structs.replace(
            s, recipes=_configs(diagnosis, [*kept, *(op for op in s.ops if op not in kept)], s.recipes)
        )
        for s in diagnosis.suggestions
    ]
    return replace(diagnosis, suggestions=suggestions)


def with_measured_sets(
    diagnosis: Diagnosis, explaining: KeptSet | None, measured: Mapping[int, KeptSet], units: Collection[str], how: str,
    *, is_smallest: bool = True, is_lost: bool = True,
) -> Diagnosis:  # fmt: skip
    """Suggestions ranked by what they do to the output: first the set that explains the loss, then the others.

    `measured` has what following the suggestions of these ranks does. What was not measured keeps its order behind
    those that do something; those that do nothing by themselves are last and say so. Suggestions may name ops besides
    the `units`, which change nothing. The explaining set is called the smallest only if it `is_smallest`. Unless the
    output `is_lost`, a set of healthy ops is none to act on, nor is one of most of the ops: their rounding adds up in
    any model.
    """
    settings = [s.rank for s in diagnosis.suggestions if is_setting(diagnosis.framework, diagnosis.ops, s)]
    shares = {rank: kept.recovered for rank, kept in measured.items()}
    suggestions = [
        _with_effect(_judged(s, shares[s.rank]), _recovers(measured[s.rank], how), is_instead=s.rank in settings)
        if s.rank in shares
        else s
        for s in diagnosis.suggestions
    ]
    suggestions.sort(key=lambda s: _place(shares.get(s.rank)))
    notes = list(diagnosis.notes)
    if explaining is not None and explaining.units:
        same = [s for s in suggestions if set(s.ops).intersection(units) == set(explaining.units)]
        cured = next((s for s in same if s.rank in settings), None)
        # What a setting cures need not be kept, and what is kept is not cured by it.
        found = {s.rank: s for s in diagnosis.suggestions}
        related = [found[s.rank] for s in same or suggestions if s.rank not in settings]
        is_most = 2 * len(set(units).intersection(explaining.units)) > len(units)
        if not (same or _is_to_blame(diagnosis, explaining, related, units)) and (is_most or not is_lost):
            notes.append(_of_all(explaining, is_lost=is_lost))
            return replace(diagnosis, suggestions=_ranked(suggestions), notes=notes)
        first = (
            _as_suggestion(diagnosis, explaining, how, related, units, shares, is_smallest=is_smallest)
            if cured is None
            else _with_effect(cured, _recovers(explaining, how), is_instead=True)
        )
        others = [s for s in suggestions if s not in same]
        # A set that the time did not suffice to make small is no better than a cause that explains most with few ops.
        before = [s for s in others[:1] if not is_smallest and _is_handier(s, shares.get(s.rank), explaining)]
        suggestions = [*before, first, *(s for s in others if s not in before)]
        if len(explaining.units) > SPREAD_OVER:
            free = [s for s in suggestions if s.rank in settings and (s is not first or cured is not None)]
            suggestions = [*free, *(s for s in suggestions if s not in free)]  # a setting costs none of that
            count = f"{'' if is_smallest else 'up to '}{len(explaining.units)}"
            notes.append(
                f"the error is spread: it takes {count} ops in fp32 to remove {share_text(explaining.recovered)} of it "
                f"at the output. {_OTHERWISE}"
            )
    return replace(diagnosis, suggestions=_ranked(suggestions), notes=notes)


def _ranked(suggestions: Sequence[Suggestion]) -> list[Suggestion]:
    return [msgspec.structs.replace(s, rank=rank) for rank, s in enumerate(suggestions, start=1)]


def _is_to_blame(
    diagnosis: Diagnosis, kept: KeptSet, related: Sequence[Suggestion], units: Collection[str]
) -> bool:  # fmt: skip
    """Whether a rule has a reason for some of it, an op of it is not as it should be, or few stand out by far."""
    known = zip(diagnosis.ops["name"], diagnosis.ops["verdict"], strict=True)
    if _parts(kept, related, units) or any(verdict in _ILL for name, verdict in known if name in kept.units):
        return True
    count, others = len(kept.units), len(units) - len(kept.units)
    is_few = count <= max(2, len(units) // _FEW) and others > 0
    return is_few and kept.recovered / count >= _DOMINATING * max(0.0, 1 - kept.recovered) / others


def _is_handier(suggestion: Suggestion, share: float | None, kept: KeptSet) -> bool:
    """Also if there was no time to measure it."""
    return (share is None or share >= _MOST) and len(suggestion.ops) * _FEW <= len(kept.units)


def _of_all(kept: KeptSet, *, is_lost: bool) -> str:
    """Why there is nothing to suggest although there is an error."""
    full = f" {kept.error / (1 - kept.recovered):.2g}" if kept.recovered < 1 else ""
    told = (
        f"error{full} at the output, and no op is to blame: it is the sum of healthy rounding. It would take "
        f"{plural(len(kept.units), 'op')} in fp32 to remove {share_text(kept.recovered)} of it"
    )
    return f"{told}. {_OTHERWISE}" if is_lost else told


def _with_effect(suggestion: Suggestion, effect: Effect, *, is_instead: bool) -> Suggestion:
    """In place of what was estimated. Of a setting, what its ops in fp32 do instead is an estimate, too."""
    others = [other for other in suggestion.effects if other.basis != "estimated" and other.what != "error"]
    if is_instead:
        how = f"{effect.how}; the setting itself was not measured"
        effect = msgspec.structs.replace(effect, basis="estimated", how=how)
    return msgspec.structs.replace(suggestion, effects=[effect, *others])


def _recovers(kept: KeptSet, how: str) -> Effect:
    return Effect("recovers", "less error at the output", kept.recovered, "share", "measured", how, "error")


def _judged(suggestion: Suggestion, share: float) -> Suggestion:
    if share >= _NOTHING:
        return suggestion
    because = f"{suggestion.because}. By itself this changes next to nothing at the output"
    return msgspec.structs.replace(suggestion, because=because)


def _place(share: float | None) -> float:
    """What helps most first, then what is not known."""
    return 0.0 if share is None else -share if share >= _NOTHING else 1.0


def _as_suggestion(
    diagnosis: Diagnosis, kept: KeptSet, how: str, related: Sequence[Suggestion], units: Collection[str],
    shares: Mapping[int, float], *, is_smallest: bool,
) -> Suggestion:  # fmt: skip
    """With the words of the rules that have found the reasons, where some have."""
    names = [str(name) for name in diagnosis.ops["name"]]
    row = {name: i for i, name in enumerate(names)}
    ops = with_followers(diagnosis.framework, [name for name in kept.units if name in row], diagnosis.graph)
    weights = [(float(diagnosis.ops["params"][row[op]]), str(diagnosis.ops["weight_dtype"][row[op]])) for op in ops]
    cause = next((s for s in related if set(kept.units) <= set(s.ops)), None)
    measured = f"keeping {_counted(ops, cause, units)} in fp32 {'together ' if len(ops) > 1 else ''}removes "
    measured += f"{share_text(kept.recovered)} of the error at the output"
    parts = [] if cause is not None else _parts(kept, related, units)
    because = f"{cause.because}; {measured}" if cause is not None else _joined(measured, parts, shares)
    first = cause or next(iter(parts), None)
    pattern = pattern_of(ops, names)
    evidence = {**(cause.evidence if cause is not None else {}), "error_left": kept.error, "recovered": kept.recovered}
    if evidence.pop("matches", 0) and pattern:
        evidence["matches"] = len(ops)
    rule = cause.rule if cause is not None else EXPLAINING if is_smallest else FOUND
    effects = [_recovers(kept, how), *costs_of(weights)]
    texts = _configs(diagnosis, ops, first.recipes if first is not None else ())
    return Suggestion(ops, rule, because, evidence, texts, pattern, 1, effects)


def _parts(kept: KeptSet, related: Sequence[Suggestion], units: Collection[str]) -> list[Suggestion]:
    """The suggestions that have a reason for ops of the set, those first that have one for most of what is left."""
    left, found = set(kept.units), list[Suggestion]()
    while True:
        fitting = [
            s for s in related if left & set(s.ops) and 2 * len(left & set(s.ops)) > len(set(s.ops).intersection(units))
        ]
        if not fitting or len(found) == _MOST_PARTS:
            return sorted(found, key=lambda s: s.rank)
        found.append(max(fitting, key=lambda s: len(left & set(s.ops))))
        left -= set(found[-1].ops)


def _joined(measured: str, parts: Sequence[Suggestion], shares: Mapping[int, float]) -> str:
    """The causes of a set one by one, and whether each is enough."""
    if not parts:
        return measured
    told = "; ".join(f"({i}) {part.because}" for i, part in enumerate(parts, start=1)) if len(parts) > 1 else ""
    alone = [shares[part.rank] for part in parts if part.rank in shares]
    if not told:
        return f"{measured}. Of some of them this is known: {parts[0].because}"
    must = ""
    if len(alone) == len(parts):
        each = ", ".join(share_text(max(0.0, share)) for share in alone)
        must = f". One by one they remove {each}: they must go together" if max(alone) < _ENOUGH else ""
    return f"{measured}. {len(parts)} causes: {told}{must}"


def _counted(ops: Sequence[str], cause: Suggestion | None, units: Collection[str]) -> str:
    more = set(cause.ops).intersection(units) - set(ops) if cause is not None else ()
    if len(ops) == 1:
        return "this op"
    return f"{len(ops)} of these {len(ops) + len(more)} ops" if more else f"these {len(ops)} ops"


def _configs(diagnosis: Diagnosis, ops: Sequence[str], first: Iterable[str]) -> dict[str, str]:
    return configs(diagnosis.framework, diagnosis.ops, diagnosis.graph, ops, first)


def share_text(share: float) -> str:
    """Nothing is removed wholly."""
    return "over 99.9%" if share > 0.999 else f"{share:.1%}"
