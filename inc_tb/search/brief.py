"""A probe of a few seconds that is part of every diagnosis on the command line, and never in its way."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from inc_tb.data import take
from inc_tb.errors import first_line
from inc_tb.frameworks.feeds import count_rows
from inc_tb.frameworks.memory import free_bytes
from inc_tb.frameworks.models import measure_size, open_switches
from inc_tb.frameworks.ops import Batch
from inc_tb.frameworks.protocols import MOST_SAMPLES, Switchable
from inc_tb.frameworks.registry import framework_of
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.records import plural
from inc_tb.search.probe import Probe, Prober, Progress
from inc_tb.search.simulation import Simulation

BUDGET_S = 5.0
_SHARE = 0.5
_PASSES = 30
"""That are to fit into the budget, of as many samples as then are run."""
_LEAST_PASSES = 8
_FEWEST_SAMPLES = 4
_COPIES = 6
"""Of the fp32 model, that the memory must have room for: what is opened holds it with and without rounding."""


class _OutOfTimeError(Exception):
    """Before anything could be measured."""


def budget_after(diagnosis_s: float) -> float:
    """Half of what the comparison took, where that is more."""
    return max(BUDGET_S, _SHARE * diagnosis_s)


def probe_briefly(
    models: tuple[Any, Any], batches: Iterable[Any], diagnosis: Diagnosis, budget_s: float, progress: Progress | None
) -> Probe:
    """As far as it goes in this time; where nothing can be switched, or that fails, the diagnosis as it was."""
    as_it_was = Probe(diagnosis, complete=False)
    if not framework_of(models[1]).can("open_switches"):
        return as_it_was
    try:
        free, size = free_bytes(), measure_size(models[0]) * 1000 if models[0] is not None else 0.0
        if free is not None and _COPIES * size > free:
            return _noted(diagnosis, f"{size / 1e6:,.0f} MB of weights leave no room for it in memory")
        began = time.monotonic()
        switches = open_switches(*models)
        simulation = _simulated(switches, batches, MOST_SAMPLES, began, budget_s)
        if not switches.sites:
            return as_it_was
        found = replace(diagnosis, notes=[*diagnosis.notes, *switches.notes, *simulation.notes])
        return Prober(simulation, found, budget_s, None, progress, began, is_brief=True).run()
    except Exception as error:  # noqa: BLE001  whatever it is, what is known without a probe is told
        return _noted(diagnosis, first_line(error).rstrip("."))


def _noted(diagnosis: Diagnosis, why: str) -> Probe:
    note = f"what ops do to the output was not probed: {why}"
    return Probe(replace(diagnosis, notes=[*diagnosis.notes, note]), complete=False)


def _simulated(switches: Switchable, batches: Any, samples: int, began: float, budget_s: float) -> Simulation:
    """With as many samples as leave time for the probe: twice as many as long as that fits, too."""
    taken = take(batches, samples, switches.inputs)
    switches.trace(taken[0])
    there, number = sum(map(count_rows, taken)), _FEWEST_SAMPLES
    seconds = _seconds_of(switches, take(taken, number, switches.inputs))
    while number < there and 2 * seconds * _PASSES <= began + budget_s - time.monotonic():
        number *= 2
        seconds = _seconds_of(switches, take(taken, number, switches.inputs))
    if seconds * _LEAST_PASSES > began + budget_s - time.monotonic():
        raise _OutOfTimeError(
            f"{budget_s:.3g} s are too few: {time.monotonic() - began:.1f} s went by until all was open, and one pass "
            f"of {plural(number, 'sample')} takes {seconds:.1f} s. Give it more with --probe"
        )
    found = Simulation(switches, taken, samples=number)
    if number < there:
        found.notes.append(f"the output was probed with {number} samples: more would not have fitted into the time")
    return found


def _seconds_of(switches: Switchable, batches: Sequence[Batch]) -> float:
    """Of the second run: the first one may still open something."""
    switches.run(batches[0], ())
    began = time.monotonic()
    for batch in batches:
        switches.run(batch, ())
    return time.monotonic() - began
