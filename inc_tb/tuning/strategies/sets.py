"""Which ops stay in fp32: whole types and what the diagnosis suggests first, then single ops."""

from __future__ import annotations

import math
from collections.abc import Generator

from inc_tb.records import Trial
from inc_tb.search.probe import screened
from inc_tb.search.smallest import HEALTHY, Search
from inc_tb.tuning.attempt import Attempt
from inc_tb.tuning.strategies.cures import PROMISING
from inc_tb.tuning.strategies.explored import Explored

_CLOSE = 1.1
_TINY = 1e-12
_LESS = 0.7
_SUGGESTED = 5
_MOST_OF_ALL = 0.5
"""Of the price of everything: a dearer set leaves too little in int8 to be tried for its whole types."""
_AS_CHEAP = 1.05
"""Of all int8."""
ONLY_PRODUCTS = "only ops that multiply in int8"


def try_only_products(explored: Explored) -> Generator[Attempt, Trial, None]:
    """In int8, and all that gains nothing by it in fp32: a trial, unless nothing is lost and that is no faster."""
    bench, free = explored.bench, explored.free
    attempt = explored.attempt(free, ONLY_PRODUCTS)
    if not free or (bench.is_met(explored.trial) and not bench.is_faster(attempt, explored.base)):
        return
    trial = yield attempt
    explored.tried[tuple(free)] = trial
    if bench.cost(trial) <= _AS_CHEAP * bench.cost(explored.trial):
        explored.given = free


def search_of(explored: Explored) -> Search:
    """In the simulation of the settings of now; single tensors, of which there are many, with few samples."""
    bench, base = explored.bench, explored.base
    simulation, rough = bench.simulation(base), bench.simulation(base, is_rough=True)
    order = screened(bench.diagnosis(base), [unit.name for unit in simulation.model.units])
    return Search(simulation, order, rough, bench.prices(base), bench.budget, explored.given)


def try_families(explored: Explored, search: Search) -> Generator[Attempt, Trial, None]:
    """Sets of which many ops are in fp32 or none: the cheapest first of those that seem enough, then of the others."""
    bench, simulation = explored.bench, search.simulation
    limit = _needed(explored, search)
    sets = _offered(explored, search, limit)
    most = _MOST_OF_ALL * search.price(search.order)
    errors: dict[tuple[str, ...], float] = {}
    for kept in sets:
        if kept not in explored.tried and search.price(kept) <= most and not bench.budget.is_over():
            errors[kept] = simulation.error_keeping(kept)
    enough = math.inf
    for kept in sorted(errors, key=lambda kept: (errors[kept] > limit, search.price(kept))):
        is_promising = errors[kept] <= PROMISING * limit or bench.is_met(explored.trial)
        if not is_promising or search.price(kept) >= enough:
            continue
        trial = yield from explored.tried_with(kept, sets[kept], simulation)
        if bench.is_met(trial):
            enough = min(enough, search.price(kept))
        if explored.is_over():
            return


def _offered(explored: Explored, search: Search, limit: float) -> dict[tuple[str, ...], str]:
    """With the reason for each."""
    if not explored.goes_on:
        return {}
    given = set(explored.given)
    besides = f"and {ONLY_PRODUCTS}" if given else ""
    wanted: list[tuple[set[str], str]] = []
    types = explored.types()
    families: dict[str, list[str]] = {}
    for unit in search.order:
        families.setdefault(types[unit], []).append(unit)
    found = search.smallest_of(families.values(), limit)
    wanted.append((set(found or ()), "of the types of ops, those whose error is worth it"))
    suggestions = explored.bench.diagnosis(explored.base).suggestions[:_SUGGESTED]
    wanted += [({*s.ops}, f"the suggestion of the diagnosis {besides}".strip()) for s in suggestions]
    wanted.append(({*explored.bench.slower_in_int8(explored.base)}, f"what takes longer in int8 {besides}".strip()))
    sets: dict[tuple[str, ...], str] = {}
    for units, note in wanted:
        if units.intersection(types):
            sets.setdefault(tuple(unit for unit in search.order if unit in units | given), note)
    return sets


def _needed(explored: Explored, search: Search) -> float:
    """The error at which the criterion is expected to hold, by what was tried and came closest without meeting it."""
    bench, simulation = explored.bench, search.simulation
    unmet = [kept for kept, trial in explored.tried.items() if not bench.is_met(trial)] or [()]
    closest = min(unmet, key=simulation.error_keeping)
    trial = explored.tried.get(closest, explored.trial)
    return explored.needed_error(simulation.error_keeping(closest), bench.loss(trial))


def narrow_down(explored: Explored, search: Search) -> Generator[Attempt, Trial, None]:
    """Sets between an error of the output that is small enough and one that is too much, until the two meet."""
    bench, simulation = explored.bench, search.simulation
    search.try_in_groups()
    enough, too_much = 0.0, simulation.error_keeping(())
    # A lost output tells little about small errors; healthy int8 is a better guess then, and costs one trial.
    limit = max(_needed(explored, search), min(HEALTHY, too_much / 2))
    for kept, trial in explored.tried.items():
        if bench.is_met(trial):
            enough = max(enough, simulation.error_keeping(kept))
        else:
            too_much = min(too_much, simulation.error_keeping(kept))
    if enough or too_much < limit:
        limit = math.sqrt(enough * too_much) if enough > 0 else _LESS * too_much
    needed = limit
    while too_much > _CLOSE * enough and limit > _TINY and not explored.is_over():
        kept = tuple(search.smallest(limit) or search.most())
        if kept not in explored.tried:
            trial = yield from explored.tried_with(kept, "", simulation)
            needed = explored.needed_error(simulation.error_keeping(kept), bench.loss(trial))
        elif kept == tuple(search.most()):
            break
        if bench.is_met(explored.tried[kept]):
            enough = max(enough, limit)
            limit = math.sqrt(enough * too_much)
        else:
            too_much = min(too_much, limit, simulation.error_keeping(kept))
            limit = math.sqrt(enough * too_much) if enough > 0 else min(needed, _LESS * too_much)
    everything = tuple(search.order)
    if not explored.has_met and everything not in explored.tried:
        yield Attempt(explored.base.settings, everything, "everything in fp32 that can be")
