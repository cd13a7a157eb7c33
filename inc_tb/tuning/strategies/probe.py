"""The cheapest model that meets the criterion, searched in a simulation and proven by trials.

What costs nothing comes first: types that the kernels are fast with, other settings of the tool, a rewritten model,
ops without multiplications in fp32. Then what the diagnosis suggests, and last single ops, most error for the lowest
price first.
"""

from __future__ import annotations

from inc_tb.tuning.strategies.cures import fastest, try_cures, try_long_types
from inc_tb.tuning.strategies.explored import Explored
from inc_tb.tuning.strategies.sets import narrow_down, search_of, try_families, try_only_products
from inc_tb.tuning.strategies.space import first_made
from inc_tb.tuning.strategies.workbench import Attempts, Workbench


def probe(bench: Workbench) -> Attempts:
    """Searches in the simulated model, and confirms with real quantizations.

    Accuracy falls as the error of the output grows. The trials so far therefore tell about which error is needed, and
    the cheapest set that gets there in the simulation is tried next.
    """
    explored = Explored(bench)
    made = yield from explored.watched(first_made(bench, fastest(bench)))
    if made is None:
        return
    explored.begin(*made)
    if not bench.is_met(explored.trial):
        yield from explored.watched(try_cures(explored))
    yield from explored.watched(try_only_products(explored))
    if explored.is_over() or (bench.is_met(explored.trial) and not explored.is_slow()):
        return
    search = search_of(explored)
    for tried in (try_families, try_long_types, narrow_down):
        if not explored.is_over():
            yield from explored.watched(tried(explored, search))
