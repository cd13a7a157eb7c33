"""Ranges of the tensors for which the output comes closest, each tried in one run of the switchable model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from inc_tb.frameworks.ops import Range, RangesOffered
from inc_tb.search.budget import Budget
from inc_tb.search.simulation import Simulation

_BETTER, _AS_GOOD = 0.98, 1.02
"""What other ranges must leave of the error to be taken; what it may grow by where tensors go without."""
_RUNS = 80
_SHARE = 0.75
"""Of the time."""
_Names = tuple[str, ...]


class Ranged(NamedTuple):
    ranges: dict[str, Range]
    """Only of tensors that are better off with them."""
    how: list[str]
    """How they were found, most of them first."""


def find_ranges(simulation: Simulation, offered: RangesOffered, on: Collection[str], budget: Budget) -> Ranged:
    """All tensors in the way that leaves the least error of the output; then other ways for parts of them, and halves
    of parts, as long as that leaves less. Those go without that need none.
    """
    search = _Search(simulation, offered, on, budget)
    tensors = list(offered)
    ways = list(dict.fromkeys(way for choice in offered.values() for way in choice))
    errors = {way: search.error(dict.fromkeys(tensors, way)) for way in ways if not search.is_over()}
    order: list[str] = sorted(errors, key=lambda way: errors[way])
    chosen: dict[_Names, str] = {}
    least = simulation.error(on)
    if order and errors[order[0]] < _BETTER * least:
        chosen, least = dict.fromkeys(tensors, order[0]), errors[order[0]]
    for way, at_most in (("", _AS_GOOD), *((way, _BETTER) for way in order), ("", _AS_GOOD)):
        chosen, least = search.changed(chosen, least, tensors, way, at_most)
    taken = [way for way in chosen.values() if way]
    how = sorted(set(taken), key=lambda way: (-taken.count(way), way))
    return Ranged(search.ranges(chosen), how)


class _Search:
    def __init__(self, simulation: Simulation, offered: RangesOffered, on: Collection[str], budget: Budget) -> None:
        self._offered = offered
        self._budget = budget
        self._run: Callable[[dict[str, Range]], float] = lambda ranges: simulation.error_with(ranges, on)
        self._known: dict[frozenset[tuple[str, Range]], float] = {}

    def is_over(self) -> bool:
        return len(self._known) >= _RUNS or self._budget.is_over(_SHARE)

    def ranges(self, chosen: dict[_Names, str]) -> dict[str, Range]:
        return {name: self._offered[names][way] for names, way in chosen.items() if way for name in names}

    def error(self, chosen: dict[_Names, str]) -> float:
        ranges = self.ranges(chosen)
        key = frozenset(ranges.items())
        if key not in self._known:
            self._known[key] = self._run(ranges)
        return self._known[key]

    def changed(
        self, chosen: dict[_Names, str], least: float, part: Sequence[_Names], way: str, at_most: float
    ) -> tuple[dict[_Names, str], float]:
        """With this way for the tensors of the part, or of its halves, that have another range, and the least error."""
        part = [names for names in part if self._range(names, way) != self._range(names, chosen.get(names, ""))]
        if not part or self.is_over():
            return chosen, least
        tried = {**chosen, **dict.fromkeys(part, way)}
        error = self.error(tried)
        if error <= at_most * least:
            return tried, min(error, least)
        if len(part) > 1:
            middle = len(part) // 2
            for half in (part[:middle], part[middle:]):
                chosen, least = self.changed(chosen, least, half, way, at_most)
        return chosen, least

    def _range(self, names: _Names, way: str) -> Range | None:
        return self._offered[names][way] if way else None
