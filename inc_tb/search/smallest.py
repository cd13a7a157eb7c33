"""The cheapest set of ops to keep in fp32, searched in the simulated model.

Without prices every op costs the same, and the cheapest set is the smallest. Rounding one tensor is spared only when
every op at either end of it stays in fp32, so what is chosen are such groups of ops, not single ones. Errors of
different tensors add up unless they happen to cancel; therefore sums of single errors give the order in which to try,
and every set that counts is evaluated as a set.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from inc_tb.search.budget import Budget
from inc_tb.search.simulation import Simulation

Progress = Callable[[int, int], None]
_NEGLIGIBLE = 0.01
"""Of the error of everything rounded: of a group with less, no member is looked at by itself."""
HEALTHY = 0.003
"""Error of the output that healthy int8 has: 25 dB."""
LOST = 0.1
"""Error of an output that is clearly lost."""
_EXPLAINED = 0.95
"""With this share removed, and the output no longer lost, a set whose cause is known needs no further ops."""
_REMOVED = 0.9
"""A set that explains the loss removes this share of the output's error, …"""
_WORTH = 0.5
"""… and whatever more at least halves what is left, as long as that is not healthy."""


class Grid(NamedTuple):
    """Sites that round the same values; they are spared when all units of one of the ways stay in fp32."""

    sites: list[str]
    ways: tuple[frozenset[str], ...]

    @property
    def units(self) -> frozenset[str]:
        return frozenset().union(*self.ways)

    def is_spared(self, kept: frozenset[str]) -> bool:
        return any(way <= kept for way in self.ways)


class Search:
    def __init__(
        self,
        simulation: Simulation,
        screened: Sequence[str],
        rough: Simulation | None = None,
        prices: Mapping[str, float] | None = None,
        budget: Budget | None = None,
        given: Collection[str] = (),
    ) -> None:
        """`screened` are all units, the worst first; single grids are evaluated in the `rough` simulation.

        `prices` are above 0: what it costs to keep each unit in fp32. Once the `budget` is over, sets are no longer
        made smaller or better. What is `given` is in every set.
        """
        self.budget = budget or Budget()
        self._prices = prices or {}
        self.simulation = simulation
        self._given = frozenset(given)
        self.order = [unit.name for unit in simulation.model.units]
        self.grids = grids_of(simulation)
        self._rough = rough if rough is not None else simulation
        place = {unit: i for i, unit in enumerate(screened)}
        self._screened = sorted(self.grids, key=lambda name: min(place[unit] for unit in self.grids[name].units))
        self.is_whole = True
        """Whether every tensor was tried and the time has sufficed, so that no smaller set was overlooked."""
        self._errors: dict[str, float] = {}
        self._chain: list[frozenset[str]] = []

    def try_each_alone(self, deadline: float, progress: Progress | None = None) -> None:
        """The error of rounding each grid alone, in the order of the screen, as far as time allows."""
        self._rough.foresee(self.grids[name].sites for name in self._screened)
        for done, name in enumerate(self._screened, start=1):
            sites = self.grids[name].sites
            if time.monotonic() > deadline and not self._rough.is_known(sites):
                self.is_whole = False
                break
            self._errors[name] = self._rough.error(sites)
            if progress is not None:
                progress(done, len(self._screened))
        self._rough.forget_foreseen()
        self._chain = []

    def try_in_groups(self) -> None:
        """The error of rounding each grid alone, as far as it matters: groups are halved, the worst one first.

        What is found at any time is the share of each grid in the error of its group, more for those that the screen
        has first.
        """
        negligible = _NEGLIGIBLE * self._rough.error_keeping(())
        groups: list[tuple[float, int, list[str]]] = []
        self._errors = {name: 0.0 for name in self._screened if self.grids[name].is_spared(self._given)}
        self._note_group(groups, 0, [name for name in self._screened if name not in self._errors])
        while groups and not self.budget.is_over():
            error, place, members = heapq.heappop(groups)
            if -error <= negligible:
                break
            if len(members) == 1:
                continue
            middle = len(members) // 2
            self._note_group(groups, place, members[:middle])
            self._note_group(groups, place + middle, members[middle:])
        self._chain = []

    def _note_group(self, groups: list[tuple[float, int, list[str]]], place: int, members: list[str]) -> None:
        if not members:
            return
        error = self._rough.error([site for name in members for site in self.grids[name].sites])
        shares = 1 / np.arange(1, len(members) + 1)
        self._errors.update(zip(members, (error * shares / shares.sum()).tolist(), strict=True))
        heapq.heappush(groups, (-error, place, members))

    def smallest(self, limit: float) -> list[str] | None:
        """The cheapest units found that keep the error of the output within the limit; None if none of them do."""
        if self.simulation.error_keeping(()) <= limit:
            return []
        found = self._first_within(self.prefixes(), limit)
        return None if found is None else self.pruned(found, limit)

    def smallest_of(self, families: Iterable[Collection[str]], limit: float) -> list[str] | None:
        """The same of whole families, without a look at their members; None also where the time is over before."""
        whole = frozenset(self.order) - self._given
        gains: dict[frozenset[str], float] = {}
        for family in (frozenset(members) - self._given for members in families):
            if not family:
                continue
            if self.budget.is_over():
                return None
            gains[family] = self._rough.error_keeping(self._given | (whole - family)) / self.price(family)
        prefixes: list[frozenset[str]] = []
        for family in sorted(gains, key=lambda family: -gains[family]):
            prefixes.append(family.union(self._given, *prefixes[-1:]))
        found = self._first_within(prefixes, limit)
        return None if found is None else self._sorted(found)

    def _first_within(self, growing: Sequence[frozenset[str]], limit: float) -> frozenset[str] | None:
        """Of sets that grow, looked for in the rough simulation; from there on the other one has to agree."""
        if not growing:
            return None
        roughly = self._roughly(limit, ())
        low, high = -1, len(growing) - 1
        while high - low > 1:
            middle = (low + high) // 2
            if self._rough.error_keeping(growing[middle]) <= roughly:
                high = middle
            else:
                low = middle
        step = 1
        while self.simulation.error_keeping(growing[high]) > limit:
            if high == len(growing) - 1:
                return None
            high, step = min(high + step, len(growing) - 1), 2 * step
        return growing[high]

    def _roughly(self, limit: float, kept: Collection[str]) -> float:
        """What the limit is in the rough simulation, by what they say of this set."""
        fine, rough = self.simulation.error_keeping(kept), self._rough.error_keeping(kept)
        return limit * rough / fine if fine > 0 else limit

    def most(self) -> list[str]:
        """Every unit that is known to matter."""
        prefixes = self.prefixes()
        return self._sorted(prefixes[-1]) if prefixes else []

    def explaining(self, sets: Iterable[Collection[str]] = ()) -> list[str]:
        """The set that explains most of the loss: what is left is small, and no further op changes it much, or what
        is there is what a cause has.

        Nor do all of one of the `sets` together, such as what a cause has in every layer. Where several of them
        together explain the loss with fewer ops than single ones do, it is those.
        """
        wholes = [frozenset(whole) for whole in sets]
        full = self.simulation.error_keeping(())
        if full <= 0:
            return []
        limit = max((1 - _REMOVED) * full, HEALTHY)
        together = self._together(wholes, limit)
        single = self.smallest(limit) if together is None or self._may_try(()) else None
        found = [some for some in (single, together) if some is not None]
        if not found:
            return []
        kept, prefixes = min(map(frozenset, found), key=len), self.prefixes()
        error, enough = self.simulation.error_keeping(kept), min(LOST, (1 - _EXPLAINED) * full)
        while error > HEALTHY and (more := next((p for p in prefixes if not p <= kept), None)) is not None:
            grown = kept | more
            if error <= enough and _is_covered(kept, wholes):
                return self._sorted(kept)
            if not self._may_try(grown) or self.simulation.error_keeping(grown) > _WORTH * error:
                break
            kept = frozenset(self.pruned(grown, _WORTH * error))
            error = self.simulation.error_keeping(kept)
        for whole in wholes:
            grown = kept | whole
            if error > HEALTHY and grown != kept and self._may_try(grown):
                less = self.simulation.error_keeping(grown)
                kept, error = (grown, less) if less <= _WORTH * error else (kept, error)
        return self._sorted(kept)

    def _together(self, sets: Sequence[frozenset[str]], limit: float) -> list[str] | None:
        """Of all of the sets, those that must go together to get there: two causes of which either alone is enough."""
        left = [some for i, some in enumerate(sets) if not any(some <= other for other in sets[:i])]
        whole = frozenset[str]().union(*left)
        if not left or not self._may_try(whole) or self.simulation.error_keeping(whole) > limit:
            return None
        for some in reversed(left):
            less = frozenset[str]().union(*(other for other in left if other is not some))
            if len(left) > 1 and self._may_try(less) and self.simulation.error_keeping(less) <= limit:
                left.remove(some)
        return self.pruned(frozenset[str]().union(*left), limit)

    def _may_try(self, kept: Collection[str]) -> bool:
        """Whether there is time for it, or it is known already."""
        is_over = self.budget.is_over()
        self.is_whole = self.is_whole and not is_over
        return not is_over or self.simulation.is_known(self.simulation.sites_without(kept))

    def pruned(self, kept: Collection[str], limit: float) -> list[str]:
        """Without the units that can be quantized after all: those that gain least for their price first, many at
        once, and fewer where that is too much.

        Each step is looked for in the rough simulation, and taken only if the other one agrees.
        """
        roughly = self._roughly(limit, kept)
        free = [unit for unit in self._sorted(kept) if unit not in self._given]
        left = sorted(free, key=lambda unit: self._weight(unit) / self.price([unit]))
        middle = (len(left) + 1) // 2
        parts = [left[middle:], left[:middle]]
        while parts and not self.budget.is_over():
            part = parts.pop()
            less = [unit for unit in left if unit not in set(part)]
            rest = self._given.union(less)
            if self._rough.error_keeping(rest) <= roughly and self.simulation.error_keeping(rest) <= limit:
                left = less
            elif len(part) > 1:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
        return self._sorted(self._given.union(left))

    def price(self, units: Iterable[str]) -> float:
        """What it costs to keep them in fp32."""
        return math.fsum(self._prices.get(unit, 1.0) for unit in units)

    def prefixes(self) -> list[frozenset[str]]:
        """Growing sets of units, most gain for the lowest price first."""
        if not self._chain:
            self._chain = list(self._grow())
        return self._chain

    def _grow(self) -> Iterable[frozenset[str]]:
        """Bit sets, because every step looks at every choice."""
        bit = {unit: 1 << i for i, unit in enumerate(self.order)}
        known = self._errors | self._guesses()
        ways = {name: [sum(bit[u] for u in way) for way in self.grids[name].ways] for name in known if known[name] > 0}
        near: dict[int, list[str]] = {}
        for name in ways:
            for unit in self.grids[name].units:
                near.setdefault(bit[unit], []).append(name)
        kept = sum(bit[unit] for unit in self._given)
        ways = {name: some for name, some in ways.items() if all(way & ~kept for way in some)}
        if kept:
            yield self._given
        while ways:
            choices = sorted({way | kept for some in ways.values() for way in some})
            scores = {choice: self._gain(choice, kept, ways, near, known) for choice in choices}
            kept = max(choices, key=lambda choice: scores[choice])
            ways = {name: some for name, some in ways.items() if all(way & ~kept for way in some)}
            yield frozenset(unit for unit in self.order if bit[unit] & kept)

    def _gain(
        self,
        choice: int,
        kept: int,
        ways: Mapping[str, Sequence[int]],
        near: Mapping[int, Sequence[str]],
        errors: Mapping[str, float],
    ) -> float:
        """The errors that go away for what it costs. Only grids near the units that are new can be spared."""
        new = choice & ~kept
        places = [i for i in range(new.bit_length()) if new >> i & 1]
        touched = dict.fromkeys(name for i in places for name in near[1 << i] if name in ways)
        spared = [name for name in touched if any(way & ~choice == 0 for way in ways[name])]
        return math.fsum(errors[name] for name in spared) / self.price(self.order[i] for i in places)

    def _guesses(self) -> dict[str, float]:
        """For grids that were not reached: less than any that was, the worse ones of the screen first."""
        least = min((error for error in self._errors.values() if error > 0), default=1.0)
        rest = [name for name in self._screened if name not in self._errors]
        return {name: least / (2 + i) for i, name in enumerate(rest)}

    def _weight(self, unit: str) -> float:
        return sum(error for name, error in self._errors.items() if unit in self.grids[name].units)

    def _sorted(self, units: Collection[str]) -> list[str]:
        return [unit for unit in self.order if unit in units]


def _is_covered(kept: frozenset[str], sets: Sequence[frozenset[str]]) -> bool:
    """Whether each unit is in one of the sets of which it has most."""
    inside = [some for some in sets if 2 * len(kept & some) > len(some)]
    return any(kept <= some for some in sets) or kept <= frozenset[str]().union(*inside)


def grids_of(simulation: Simulation) -> dict[str, Grid]:
    """Sites that share a grid are tensors, which have one way each: all of their units together."""
    found: dict[str, Grid] = {}
    for site in simulation.model.sites:
        if site.grid not in found:
            found[site.grid] = Grid([site.name], site.ways or (site.units,))
        else:
            before = found[site.grid]
            found[site.grid] = Grid([*before.sites, site.name], (before.units | site.units,))
    return found
