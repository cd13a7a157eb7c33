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
ONLY_PRODUCTS = "only ops that multiply in int8"


def search_of(explored: Explored) -> Search:
    """In the simulation of the settings of now; single tensors, of which there are many, with few samples."""
    bench, base = explored.bench, explored.base
    simulation, rough = bench.simulation(base), bench.simulation(base, is_rough=True)
    order = screened(bench.diagnosis(base), [unit.name for unit in simulation.model.units])
    return Search(simulation, order, rough, bench.prices(base), bench.budget)


def try_families(explored: Explored, search: Search) -> Generator[Attempt, Trial, None]:
    """Sets of which many ops are in fp32 or none: the cheapest first of those that seem enough, then of the others."""
    bench, simulation = explored.bench, search.simulation
    limit = explored.limit(simulation.error_keeping(()))
    sets = _offered(explored, search, limit)
    errors: dict[tuple[str, ...], float] = {}
    for kept in sets:
        if sets[kept] == ONLY_PRODUCTS or not bench.budget.is_over():
            errors[kept] = simulation.error_keeping(kept)
    enough = math.inf
    for kept in sorted(errors, key=lambda kept: (errors[kept] > limit, search.price(kept))):
        is_promising = errors[kept] <= PROMISING * limit or bench.is_met(explored.trial)
        if kept in explored.tried or not is_promising or search.price(kept) >= enough:
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
    free = explored.free
    sets = {tuple(free): ONLY_PRODUCTS} if free else {}
    slower = {*free, *explored.bench.slower_in_int8(explored.base)}
    both = tuple(unit for unit in search.order if unit in slower)
    if both:
        sets.setdefault(both, f"{ONLY_PRODUCTS}, but those that take longer so than in fp32")
    types = explored.types()
    families: dict[str, list[str]] = {}
    for unit in search.order:
        families.setdefault(types[unit], []).append(unit)
    found = search.smallest_of(families.values(), limit)
    if found:
        sets.setdefault(tuple(found), "of the types of ops, those whose error is worth it")
    for suggestion in explored.bench.diagnosis(explored.base).suggestions[:_SUGGESTED]:
        own = {op for op in suggestion.ops if op in types}
        for more, note in ((free, f"and {ONLY_PRODUCTS}"), ([], "")):
            kept = tuple(op for op in search.order if op in own or op in more)
            if own:
                sets.setdefault(kept, f"the suggestion of the diagnosis {note}".strip())
    return sets


def narrow_down(explored: Explored, search: Search) -> Generator[Attempt, Trial, None]:
    """Sets between an error of the output that is small enough and one that is too much, until the two meet."""
    bench, simulation = explored.bench, search.simulation
    search.try_in_groups()
    enough, too_much = 0.0, simulation.error_keeping(())
    # A lost output tells little about small errors; healthy int8 is a better guess then, and costs one trial.
    limit = max(explored.limit(too_much), min(HEALTHY, too_much / 2))
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
