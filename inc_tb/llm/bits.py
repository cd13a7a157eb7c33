"""A format for each matrix of a language model, so that all of them fit a budget and its text suffers least.

What each format costs each matrix is expected from one backward pass; what is best by that is then measured as a set on
text that the scores have not seen, beside one format for all. The best measured one is taken, so that it is never
worse than the same format for all there.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inc_tb.errors import UsageError
from inc_tb.frameworks.language import Language, Matrix, Round
from inc_tb.llm.formats import find_format
from inc_tb.llm.measuring import Batches, Progress, measure_sets, score_matrices
from inc_tb.llm.tally import Tally

_OTHERS_BITS = 16
"""Embeddings, norms and the head, as tools store them."""
_WAYS: dict[str, Callable[[Matrix], Any]] = {
    "by matrix": lambda m: m.name, "by kind": lambda m: m.kind, "by block": lambda m: m.block,
}  # fmt: skip
"""What has one format together."""
Scores = Mapping[str, Mapping[str, float]]
"""Format -> matrix -> expected divergence."""


@dataclass(frozen=True)
class Choice:
    """A format for each matrix, and what came of it on text that the scores have not seen."""

    name: str
    formats: Mapping[str, str] = field(repr=False)
    bits: float
    """Of a weight, scales included; the mean over the matrices."""
    size: int
    """Bytes of the whole model, with what is in no matrix in 16 bits."""
    expected: float
    kl: float
    """Nats a token."""
    interval: tuple[float, float] | None
    same_first: float
    is_uniform: bool
    fits: bool

    def counts(self) -> dict[str, int]:
        """Format -> matrices."""
        found: dict[str, int] = {}
        for format_ in self.formats.values():
            found[format_] = found.get(format_, 0) + 1
        return found

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "formats": dict(self.formats)}


@dataclass(frozen=True)
class Allocated:
    best: Choice
    uniform: Choice | None
    """The best that has one format for all and fits; None where none does."""
    gain: tuple[float, float] | None
    """How far `best` is above it, in 95 of 100 cases; below zero is better."""
    choices: list[Choice]
    """All that were measured, the smallest first."""
    tokens: int
    budget: float
    """Bits of a weight."""

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"best": self.best.to_json(), "uniform": self.uniform and self.uniform.to_json()}
        told = {"gain": self.gain, "tokens": self.tokens, "budget": self.budget}
        return {**found, **told, "choices": [choice.to_json() for choice in self.choices]}


def allocate(
    language: Language,
    batches: Batches,
    held_out: Batches,
    formats: Sequence[str],
    *,
    bits: float | None = None,
    size: int | None = None,
    curve: int = 0,
    progress: Progress | None = None,
) -> Allocated:
    """`size` is in bytes and counts the whole model; `curve` is how many other budgets are measured as well."""
    names = [find_format(name).name for name in dict.fromkeys(formats)]
    matrices = language.matrices
    budget = _budget(language, names, bits, size)
    rounds: dict[str, Round] = {name: find_format(name).round for name in names}
    whole = {name: {m.name: round_ for m in matrices} for name, round_ in rounds.items()}
    scores = _corrected(
        score_matrices(language, batches(), whole),
        dict(zip(names, measure_sets(language, batches(), list(whole.values())), strict=True)),
    )
    plans = {f"{name} for all": {m.name: name for m in matrices} for name in names}
    for label, way in _WAYS.items():
        plans[label] = best_within(matrices, scores, budget, way)
    for point in _curve(matrices, names, curve):
        plans[f"{point:.3g} bits by matrix"] = best_within(matrices, scores, point, _WAYS["by matrix"])
    plans = _different(plans)
    sets = [{m: rounds[f] for m, f in plan.items()} for plan in plans.values()]
    tallies = dict(zip(plans, measure_sets(language, held_out(), sets, None, progress), strict=True))
    choices = {n: _choice(n, p, language, scores, tallies[n], budget) for n, p in plans.items()}
    fitting = [choice for choice in choices.values() if choice.fits]
    best = min(fitting, key=lambda choice: choice.kl)
    uniform = min((c for c in fitting if c.is_uniform), key=lambda choice: choice.kl, default=None)
    gain = tallies[best.name].interval(tallies[uniform.name]) if uniform is not None and uniform is not best else None
    ordered = sorted(choices.values(), key=lambda choice: choice.bits)
    return Allocated(best, uniform, gain, ordered, tallies[best.name].tokens, budget)


def _corrected(scores: Scores, together: Mapping[str, Tally]) -> dict[str, dict[str, float]]:
    """A score holds for small errors: each format's are scaled to what all matrices in it do together."""
    found = {}
    for name, own in scores.items():
        expected = sum(own.values())
        times = together[name].kl / expected if expected > 0 else 1.0
        found[name] = {matrix: times * score for matrix, score in own.items()}
    return found


def best_within(
    matrices: Sequence[Matrix], scores: Scores, budget: float, way: Callable[[Matrix], Any]
) -> dict[str, str]:
    """From the smallest format up, each time what gains most for its bits, as long as that fits."""
    groups: dict[Any, list[Matrix]] = {}
    for matrix in matrices:
        groups.setdefault(way(matrix), []).append(matrix)
    steps = {key: _hull(members, scores) for key, members in groups.items()}
    left = budget * sum(m.size for m in matrices) - sum(hull[0][0] for hull in steps.values())
    at = dict.fromkeys(steps, 0)
    waiting = [(-_slope(hull, 0), i, key) for i, (key, hull) in enumerate(steps.items()) if len(hull) > 1]
    heapq.heapify(waiting)
    while waiting:
        _, i, key = heapq.heappop(waiting)
        hull, now = steps[key], at[key]
        cost = hull[now + 1][0] - hull[now][0]
        if cost > left:
            continue
        left -= cost
        at[key] = now + 1
        if now + 2 < len(hull):
            heapq.heappush(waiting, (-_slope(hull, now + 1), i, key))
    return {m.name: steps[key][at[key]][2] for key, members in groups.items() for m in members}


def mean_bits(matrices: Sequence[Matrix], formats: Mapping[str, str]) -> float:
    taken = sum(find_format(formats[m.name]).bits_per_weight(m.columns) * m.size for m in matrices)
    return taken / sum(m.size for m in matrices)


def _hull(members: Sequence[Matrix], scores: Scores) -> list[tuple[float, float, str]]:
    """Bits, expected divergence and format: from the smallest on, what gains ever less for its bits."""
    points = sorted(
        (
            sum(find_format(name).bits_per_weight(m.columns) * m.size for m in members),
            sum(found[m.name] for m in members), name,
        )
        for name, found in scores.items()
    )  # fmt: skip
    hull: list[tuple[float, float, str]] = []
    for point in points:
        if hull and point[1] >= hull[-1][1]:
            continue
        while len(hull) > 1 and _slope([hull[-2], point], 0) >= _slope(hull, len(hull) - 2):
            hull.pop()
        hull.append(point)
    return hull


def _slope(hull: Sequence[tuple[float, float, str]], at: int) -> float:
    """What the next step gains for its bits."""
    (bits, loss, _), (more, less, _) = hull[at : at + 2]
    return (loss - less) / max(more - bits, 1e-9)


def _budget(language: Language, names: Sequence[str], bits: float | None, size: int | None) -> float:
    if (bits is None) == (size is None):
        raise UsageError("expected a number of bits, or a size; neither or both were given.")
    if len(names) < 2:
        raise UsageError(f"{names[0] if names else 'no format'} was given; expected two formats or more.")
    matrices, others = language.matrices, _others_bits(language)
    if size is not None:
        bits = (8 * size - others) / sum(m.size for m in matrices)
    assert bits is not None
    least, name = min((mean_bits(matrices, {m.name: n for m in matrices}), n) for n in names)
    if bits < least:
        asked = f"{bits:.4g} bits a weight were" if size is None else f"{size / 1e6:.4g} MB were"
        needs = f"{least:.4g} bits" + ("" if size is None else f", {_bytes(matrices, least, others) / 1e6:.4g} MB")
        raise UsageError(f"{asked} given; {name}, the smallest of the formats, takes {needs}. Give more.")
    return bits


def _others_bits(language: Language) -> int:
    return _OTHERS_BITS * language.others


def _bytes(matrices: Sequence[Matrix], bits: float, others: int) -> int:
    return round((bits * sum(m.size for m in matrices) + others) / 8)


def _curve(matrices: Sequence[Matrix], names: Sequence[str], points: int) -> list[float]:
    """Budgets between the smallest and the largest format, both left out."""
    ends = [mean_bits(matrices, {m.name: name for m in matrices}) for name in names]
    low, high = min(ends), max(ends)
    return [low + (high - low) * (i + 1) / (points + 1) for i in range(points)]


def _different(plans: Mapping[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """The same plan once, by its first name."""
    found: dict[tuple[str, ...], str] = {}
    for name, plan in plans.items():
        found.setdefault(tuple(plan.values()), name)
    return {name: plans[name] for name in found.values()}


def _choice(
    name: str, plan: Mapping[str, str], language: Language, scores: Scores, tally: Tally, budget: float
) -> Choice:
    bits = mean_bits(language.matrices, plan)
    expected = sum(scores[format_][matrix] for matrix, format_ in plan.items())
    size = _bytes(language.matrices, bits, _others_bits(language))
    is_uniform = len(set(plan.values())) == 1
    fits = bits <= budget * (1 + 1e-9)
    return Choice(name, plan, bits, size, expected, tally.kl, tally.interval(), tally.same_first, is_uniform, fits)
