"""The cheapest model that meets the criterion, searched in a simulation and proven by trials.

What costs nothing comes first: types that the kernels are fast with, other settings of the tool, a rewritten model,
ops without multiplications in fp32. Then what the diagnosis suggests, and last single ops, most error for the lowest
price first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from typing import Any

from inc_tb.advise.effects import KeptSet, with_measured_sets
from inc_tb.errors import ModelError
from inc_tb.records import Trial, listed, plural
from inc_tb.search.probe import screened
from inc_tb.search.simulation import Simulation
from inc_tb.search.smallest import HEALTHY, Search
from inc_tb.tuning.attempt import Attempt
from inc_tb.tuning.objectives import LATENCY, OPS
from inc_tb.tuning.strategies.space import first_made
from inc_tb.tuning.strategies.workbench import Attempts, Workbench

_BETTER = 0.5
"""A cheaper cure is taken up if it at least halves the error of the output …"""
_PROMISING = 2.0
"""… and tried alone if that brings the error this close to what is needed."""
_SATURATES = 2.0
_CLOSE = 1.1
_ROUGHLY = 4
"""Samples for single tensors, of which there are many; sets are simulated with more."""
_TINY = 1e-12
_SEVEN_BITS = "7 bits for weights, because the integer kernels saturate"
_LESS, _FAR_LESS = 0.7, 0.1
_FASTER = 0.95
"""Kernels for other types are taken if they need so much less time."""
_PAYS = 0.9
"""Of fp32's cost: from there on int8 gains little, and what it gains nothing by is tried in fp32."""
_AS_CHEAP = 1.05
"""Of the cheapest int8 model: a trial that costs no more cannot be improved on."""
_SUGGESTED = 5
_AFTER_MET = 4
"""Trials in search of something cheaper, once one has met the criterion."""


def probe(bench: Workbench) -> Attempts:
    """Searches in the simulated model, and confirms with real quantizations.

    Accuracy falls as the error of the output grows. The trials so far therefore tell about which error is needed, and
    the cheapest set that gets there in the simulation is tried next.
    """
    yield from _Search(bench).attempts()


class _Search:
    """What has been tried, and what that says about the next trial."""

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        self._began = time.monotonic()
        self._goes_on = bench.minimize != OPS
        """Whether something cheaper is looked for once the criterion holds."""
        self._cheapest = math.inf
        """The cost of the cheapest model with everything in int8."""
        self._best = math.inf
        """The cost of the cheapest trial that has met the criterion."""
        self._since_met = 0
        self._tried: dict[tuple[str, ...], Trial] = {}
        """By what is kept in fp32, with the settings of now."""

    def attempts(self) -> Attempts:
        bench = self._bench
        made = yield from self._watched(first_made(bench, _fastest(bench)))
        if made is None:
            return
        self._base, self._trial = made
        self._tried[()] = self._trial
        self._free = bench.without_multiplications(self._base) if self._goes_on else []
        if not bench.is_met(self._trial):
            yield from self._watched(self._try_cures())
        elif not self._is_slow():
            return
        if not self._is_over():
            yield from self._watched(self._try_families())
        if not self._is_over():
            yield from self._watched(self._narrow_down())

    def _watched(self, attempts: Generator[Attempt, Trial, Any]) -> Generator[Attempt, Trial, Any]:
        """Notes what every trial costs."""
        trial = None
        while True:
            try:
                attempt = next(attempts) if trial is None else attempts.send(trial)
            except StopIteration as stop:
                return stop.value
            trial = yield attempt._replace(goes_on=self._goes_on)
            cost = self._bench.cost(trial)
            if not attempt.keep:
                self._cheapest = min(self._cheapest, cost)
            self._since_met += self._best < math.inf
            if self._bench.is_met(trial):
                self._best = min(self._best, cost)

    def _is_over(self) -> bool:
        if self._best == math.inf:
            return False
        return self._best <= _AS_CHEAP * self._cheapest or self._since_met >= _AFTER_MET

    def _is_slow(self) -> bool:
        """Whether int8 gains little against fp32, so that less of it may be cheaper."""
        fp32 = self._bench.baseline_objectives.get(self._bench.minimize)
        return fp32 is not None and self._bench.cost(self._trial) > _PAYS * fp32

    # What costs nothing, or little

    def _try_cures(self) -> Generator[Attempt, Trial, None]:
        """What costs less than fp32, where the rules point to it; and the settings to go on with."""
        yield from self._try_seven_bits()
        bench, original = self._bench, self._base.settings
        full, freed = self._errors(self._base)
        limit = self._limit(full)
        for what, changed in self._cures().items():
            # On top of the cures that were taken up before.
            changes = {name: value for name, value in changed.items() if value != original.get(name)}
            attempt = Attempt({**self._base.settings, **changes}, note=f"instead of fp32: {what}")
            try:
                error, without = self._errors(attempt)
            except ModelError:
                continue
            is_everywhere = not attempt.settings.get("int16_tensors")
            halves = is_everywhere and error <= _BETTER * full
            if error <= _PROMISING * limit or halves:
                cured = yield attempt
                if bench.is_met(cured):
                    self._take_up(attempt, cured)
                    break
                if is_everywhere and bench.loss(cured) < bench.loss(self._trial):
                    self._take_up(attempt, cured)
                    full, freed = error, without
                    limit = self._limit(full)
            elif is_everywhere and without <= _BETTER * freed:
                self._take_up(attempt, self._trial)
                full, freed = error, without
        bench.forget_simulations(but=self._base)

    def _try_seven_bits(self) -> Generator[Attempt, Trial, None]:
        bench, base = self._bench, self._base
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
        if bench.loss(cured) < bench.loss(self._trial):
            self._take_up(attempt, cured)

    def _cures(self) -> Mapping[str, Mapping[str, Any]]:
        """Without any other cost, first."""
        bench, settings = self._bench, self._base.settings
        found = bench.diagnosis(self._base)
        tensors = {node.name: node.tensor for node in found.graph}
        cures = dict(bench.quantizer.cures(settings, found.suggestions, tensors))
        rewrites = bench.rewrites()
        if rewrites:
            told = f"{plural(len(rewrites), 'rewrite')} of the fp32 model that change nothing of what it computes"
            cures = {told: {**settings, "rewrites": rewrites}, **cures}
        return dict(sorted(cures.items(), key=lambda cure: bool(cure[1].get("int16_tensors"))))

    def _take_up(self, attempt: Attempt, trial: Trial) -> None:
        self._base, self._trial = attempt, trial
        self._tried = {(): trial}

    def _errors(self, attempt: Attempt) -> tuple[float, float]:
        """With everything in int8, and with only those ops in it that multiply."""
        simulation = self._bench.simulation(attempt)
        return simulation.error_keeping(()), simulation.error_keeping(self._free)

    # Several ops at once

    def _try_families(self) -> Generator[Attempt, Trial, None]:
        """Only what multiplies in int8, and what the diagnosis suggests, the cheapest first."""
        bench, simulation = self._bench, self._bench.simulation(self._base)
        limit = self._limit(simulation.error_keeping(()))
        for kept, note in self._offered(simulation):
            is_promising = simulation.error_keeping(kept) <= _PROMISING * limit
            if tuple(kept) not in self._tried and (is_promising or bench.is_met(self._trial)):
                yield from self._try(kept, note, simulation)
            if self._is_over() or (self._best < math.inf and not self._goes_on):
                return

    def _offered(self, simulation: Simulation) -> list[tuple[list[str], str]]:
        bench, base = self._bench, self._base
        order = [unit.name for unit in simulation.model.units]
        free = self._free
        prices = bench.prices(base)
        sets = {tuple(free): "only ops that multiply in int8"} if free else {}
        for suggestion in bench.diagnosis(base).suggestions[:_SUGGESTED] if self._goes_on else ():
            own = {op for op in suggestion.ops if op in order}
            for more, note in ((free, "and only ops that multiply in int8"), ([], "")):
                kept = tuple(op for op in order if op in own or op in more)
                if own:
                    sets.setdefault(kept, f"the suggestion of the diagnosis {note}".strip())
        by_price = sorted(sets, key=lambda kept: sum(prices.get(op, 1.0) for op in kept))
        return [(list(kept), sets[kept]) for kept in by_price]

    def _try(self, kept: Sequence[str], note: str, simulation: Simulation) -> Generator[Attempt, Trial, Trial]:
        trial = yield self._keeping(kept, "; ".join(filter(None, (note, _simulated_note(simulation, kept)))))
        self._tried[tuple(kept)] = trial
        return trial

    def _keeping(self, kept: Sequence[str], note: str) -> Attempt:
        """Types of which all are kept are left out by a setting, where the tool has one; the others by their names."""
        settings, named = self._base.settings, tuple(kept)
        proves = partial(_log_found, self._bench, self._base, self._trial, tuple(kept))
        if self._goes_on and hasattr(self._bench.quantizer, "without_types"):
            types = _types(self._bench, self._base)
            others = {types[unit] for unit in types if unit not in set(kept)}
            whole = sorted({types[unit] for unit in kept} - others)
            if whole:
                settings = self._bench.quantizer.without_types(settings, whole)
                named = tuple(unit for unit in kept if types[unit] in others)
                note = f"no {listed(whole, 6)} in int8; {note}"
        return Attempt(settings, named, note, proves)

    # Single ops

    def _narrow_down(self) -> Generator[Attempt, Trial, None]:
        """Sets between an error of the output that is small enough and one that is too much, until the two meet."""
        bench, search = self._bench, self._searched()
        simulation = search.simulation
        enough, too_much = 0.0, simulation.error_keeping(())
        # A lost output tells little about small errors; healthy int8 is a better guess then, and costs one trial.
        limit = max(self._limit(too_much), min(HEALTHY, too_much / 2))
        for kept, trial in self._tried.items():
            if bench.is_met(trial):
                enough = max(enough, simulation.error_keeping(kept))
            else:
                too_much = min(too_much, simulation.error_keeping(kept))
        if enough or too_much < limit:
            limit = math.sqrt(enough * too_much) if enough > 0 else _LESS * too_much
        needed = limit
        while too_much > _CLOSE * enough and limit > _TINY and not self._is_over():
            kept = tuple(search.smallest(limit) or search.most())
            is_new = kept not in self._tried
            if is_new:
                trial = yield from self._try(kept, "", simulation)
                needed = _needed_error(bench, simulation.error_keeping(kept), bench.loss(trial))
            elif kept == tuple(search.most()):
                break
            if bench.is_met(self._tried[kept]):
                enough = max(enough, limit)
                limit = math.sqrt(enough * too_much)
            else:
                too_much = min(too_much, limit, simulation.error_keeping(kept))
                limit = math.sqrt(enough * too_much) if enough > 0 else min(needed, _LESS * too_much)
        everything = tuple(search.order)
        if self._best == math.inf and everything not in self._tried:
            yield Attempt(self._base.settings, everything, "everything in fp32 that can be")

    def _searched(self) -> Search:
        """With every tensor alone measured, as far as there is time."""
        bench, base = self._bench, self._base
        simulation, rough = bench.simulation(base), bench.simulation(base, samples=_ROUGHLY)
        order = screened(bench.diagnosis(base), [unit.name for unit in simulation.model.units])
        search = Search(simulation, order, rough, bench.prices(base))
        search.try_each_alone(time.monotonic() + bench.probe_s, bench.probing, as_before=True)
        return search

    def _limit(self, error: float) -> float:
        return _needed_error(self._bench, error, self._bench.loss(self._trial))


def _fastest(bench: Workbench) -> Mapping[str, Any]:
    """The tool's own settings, or those with other types that the kernels of this machine are faster with."""
    chosen: Mapping[str, Any] = bench.quantizer.settings
    others = bench.quantizer.kernels() if hasattr(bench.quantizer, "kernels") else ()
    if not others or bench.minimize != LATENCY:
        return chosen
    least = _latency(bench, chosen)
    for settings in others:
        found = _latency(bench, settings)
        if found < _FASTER * least:
            chosen, least = settings, found
    return chosen


def _latency(bench: Workbench, settings: Mapping[str, Any]) -> float:
    try:
        return bench.latency_ms(Attempt(settings))
    except ModelError:
        return math.inf


def _types(bench: Workbench, base: Attempt) -> dict[str, str]:
    table = bench.diagnosis(base).ops
    known = dict(zip(map(str, table["name"]), map(str, table["type"]), strict=True))
    return {unit: known[unit] for unit in bench.units(base)}


def _needed_error(bench: Workbench, error: float, loss: float) -> float:
    """The error of the output at which about the allowed loss of accuracy is expected.

    Rather too much than too little: the first set that is good enough should not be much larger than needed.
    """
    if loss <= 0:
        return _LESS * error
    if not math.isfinite(loss):
        return _FAR_LESS * error
    return error * min(1.0, bench.allowed / loss)


def _simulated_note(simulation: Simulation, kept: Sequence[str]) -> str:
    full, left = simulation.error_keeping(()), simulation.error_keeping(kept)
    return f"simulated error at the output: {left:.2g}, all int8 {full:.2g}"


def _log_found(bench: Workbench, base: Attempt, trial: Trial, kept: Sequence[str]) -> None:
    """The set that met the criterion becomes the first suggestion of the trial that has none of it in fp32."""
    simulation = bench.simulation(base)
    full, left = simulation.error_keeping(()), simulation.error_keeping(kept)
    found = KeptSet(list(kept), left, 1 - left / full if full > 0 else 0.0)
    samples = plural(len(simulation.errors(())), "sample")
    how = f"simulated over {samples}; the trial with just these ops in fp32 proves it"
    order = [unit.name for unit in simulation.model.units]
    bench.log_probed(trial, with_measured_sets(bench.diagnosis(base), found, {}, order, how))
