"""What is tried before any op stays in fp32: types that kernels are fast with, other settings, a rewritten model."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import msgspec

from inc_tb.errors import ModelError
from inc_tb.records import Trial, listed, plural
from inc_tb.search.ranging import find_ranges
from inc_tb.search.smallest import Search
from inc_tb.tuning.attempt import Attempt
from inc_tb.tuning.objectives import LATENCY
from inc_tb.tuning.strategies.explored import Explored
from inc_tb.tuning.strategies.workbench import Workbench

_BETTER = 0.5
"""A cheaper cure is taken up if it at least halves the error of the output …"""
PROMISING = 2.0
"""… and tried alone if that brings the error this close to what is needed."""
_LOST, _PARTS = 0.5, 8
"""From this error on the output says little, and less of what a cure does; parts of the model still do."""
_SHARE, _SHARE_OF_RANGES = 0.5, 0.75
"""Of the time, for settings, and until ranges are not looked for any more."""
_EACH_CHANNEL = {"per_channel": True}
"""It helps so often that it is tried even where there is no time to simulate it."""
_SATURATES = 2.0
_SEVEN_BITS = "7 bits for weights, because the integer kernels saturate"


def fastest(bench: Workbench) -> Mapping[str, Any]:
    """The tool's own settings, or those with other types that the kernels of this machine are faster with."""
    chosen: Mapping[str, Any] = bench.quantizer.settings
    others = bench.quantizer.kernels() if hasattr(bench.quantizer, "kernels") else ()
    for settings in others if bench.minimize == LATENCY else ():
        if bench.is_faster(Attempt(settings), Attempt(chosen)):
            chosen = settings
    return chosen


def try_cures(explored: Explored) -> Generator[Attempt, Trial, None]:
    """Settings for everything that cost nothing, whatever the rules point to; and those to go on with."""
    yield from _try_seven_bits(explored)
    bench, original = explored.bench, explored.base.settings
    medicine = _Medicine(explored)
    for what, changed in _cures(explored).items():
        if _is_long(changed):
            continue
        # On top of the cures that were taken up before.
        changes = {name: value for name, value in changed.items() if value != original.get(name)}
        if medicine.has_met:
            break
        if not bench.budget.is_over(_SHARE):
            yield from medicine.tried(what, {**explored.base.settings, **changes})
        elif changes == _EACH_CHANNEL:
            yield from medicine.taken(what, {**explored.base.settings, **changes})
    if not medicine.has_met and not bench.budget.is_over(_SHARE_OF_RANGES):
        for found in (_with_ranges, _with_biases):
            for what, settings in found(explored).items() if not medicine.has_met else ():
                yield from medicine.tried(what, settings, _BETTER)
    bench.forget_simulations(but=explored.base)


class _Medicine:
    """What cures have done so far to the error of the output."""

    def __init__(self, explored: Explored) -> None:
        self.has_met = False
        self._explored = explored
        self._measure(explored.base)

    def _measure(self, base: Attempt) -> None:
        self._full, self._freed = _errors(self._explored, base)
        self._parts = _error_of_parts(self._explored, base) if self._freed > _LOST else 0.0

    def tried(self, what: str, settings: Mapping[str, Any], most: float = 1.0) -> Generator[Attempt, Trial, None]:
        """A trial where it is promising, taken up unless it leaves more than `most` of the loss; without a trial it is
        taken up where it helps in part.
        """
        explored = self._explored
        attempt = Attempt(settings, note=f"instead of fp32: {what}")
        try:
            error, freed = _errors(explored, attempt)
        except ModelError:
            return
        if error <= PROMISING * explored.limit(self._full) or error <= _BETTER * self._full:
            yield from self._carried_out(attempt, most)
            if explored.base is attempt:
                self._measure(attempt)
        elif freed <= _BETTER * self._freed or self._helps_parts(attempt):
            explored.take_up(attempt, explored.trial)
            self._measure(attempt)

    def taken(self, what: str, settings: Mapping[str, Any]) -> Generator[Attempt, Trial, None]:
        """A trial at once."""
        yield from self._carried_out(Attempt(settings, note=f"instead of fp32: {what}"), 1.0)

    def _carried_out(self, attempt: Attempt, most: float) -> Generator[Attempt, Trial, None]:
        bench = self._explored.bench
        cured = yield attempt
        loss, before = bench.loss(cured), bench.loss(self._explored.trial)
        if loss < before and loss <= most * before:
            self._explored.take_up(attempt, cured)
        self.has_met = bench.is_met(cured)

    def _helps_parts(self, attempt: Attempt) -> bool:
        return bool(self._parts) and _error_of_parts(self._explored, attempt) <= _BETTER * self._parts


def try_long_types(explored: Explored, search: Search) -> Generator[Attempt, Trial, None]:
    """16 bits where the rules point to them. The kernels of most machines compute that in fp32, so it is no base."""
    bench = explored.bench
    if explored.has_met:
        return
    limit = explored.limit(search.simulation.error_keeping(()))
    for what, settings in _cures(explored).items():
        if not _is_long(settings) or bench.budget.is_over():
            continue
        attempt = Attempt(settings, note=f"instead of fp32: {what}")
        try:
            error = bench.simulation(attempt).error_keeping(())
        except ModelError:
            continue
        if error <= PROMISING * limit:
            yield attempt
    bench.forget_simulations(but=explored.base)


def _is_long(settings: Mapping[str, Any]) -> bool:
    return bool(settings.get("int16_tensors"))


def _try_seven_bits(explored: Explored) -> Generator[Attempt, Trial, None]:
    bench, base = explored.bench, explored.base
    simulation = bench.simulation(base)
    bench.comparison = compared = simulation.compare()
    saturates = compared["real"].error > _SATURATES * compared["simulated"].error
    if not saturates or base.settings.get("reduce_range") is not False:
        return
    attempt = Attempt({**base.settings, "reduce_range": True}, note=f"instead of fp32: {_SEVEN_BITS}")
    try:
        if bench.real_error(attempt, simulation) > _BETTER * compared["real"].error:
            return
    except ModelError:
        return
    cured = yield attempt
    if bench.loss(cured) < bench.loss(explored.trial):
        explored.take_up(attempt, cured)


def _cures(explored: Explored) -> Mapping[str, Mapping[str, Any]]:
    """On top of the settings of now."""
    bench, settings = explored.bench, explored.base.settings
    found = bench.diagnosis(explored.base)
    tensors = {node.name: node.tensor for node in found.graph}
    cures = bench.quantizer.cures(settings, found.suggestions, tensors)
    rewrites = bench.rewrites()
    if not rewrites:
        return cures
    told = f"{plural(len(rewrites), 'rewrite')} of the fp32 model that change nothing of what it computes"
    return {told: {**settings, "rewrites": rewrites}, **cures}


def _with_ranges(explored: Explored) -> Mapping[str, Mapping[str, Any]]:
    """Ranges of single tensors, where the tool can be told any."""
    bench, settings = explored.bench, explored.base.settings
    if not hasattr(bench.quantizer, "with_ranges") or bench.quantizer.with_ranges(settings, {}) is None:
        return {}
    simulation = bench.simulation(explored.base, is_rough=True)
    everything = simulation.sites_without(())
    # Where nothing is left of the output, it does not tell one range from another.
    on = everything if simulation.error(everything) <= _LOST else simulation.sites_without(explored.free)
    found = find_ranges(simulation, bench.ranges(explored.base), on, bench.budget)
    if not found.ranges:
        return {}
    told = f"ranges of their own for {plural(len(found.ranges), 'tensor')}, by {listed(found.how)}"
    return {told: bench.quantizer.with_ranges(settings, found.ranges)}


def _with_biases(explored: Explored) -> Mapping[str, Mapping[str, Any]]:
    """Biases that make up for what rounding does to the mean of a channel."""
    bench, settings = explored.bench, explored.base.settings
    if not bench.rewrite or "rewrites" not in settings:
        return {}
    simulation = bench.simulation(explored.base)
    shifts = [msgspec.to_builtins(rewrite) for rewrite in simulation.model.shifts(simulation.batches)]
    told = "biases of the fp32 model that make up for rounded weights"
    return {told: {**settings, "rewrites": [*settings["rewrites"], *shifts]}} if shifts else {}


def _errors(explored: Explored, attempt: Attempt) -> tuple[float, float]:
    """With everything in int8, and with only those ops in it that multiply."""
    simulation = explored.bench.simulation(attempt)
    return simulation.error_keeping(()), simulation.error_keeping(explored.free)


def _error_of_parts(explored: Explored, attempt: Attempt) -> float:
    """The sum of the errors with one of eight parts rounded at a time, each from all over the model."""
    simulation = explored.bench.simulation(attempt, is_rough=True)
    sites = [site.name for site in simulation.model.sites]
    return sum(simulation.error(sites[part::_PARTS]) for part in range(_PARTS))
