"""What a search by simulation has tried, what that says about the next trial, and when it is over."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from functools import partial
from typing import Any

from inc_tb.advise.effects import KeptSet, with_measured_sets
from inc_tb.records import Trial, listed, plural
from inc_tb.search.simulation import Simulation
from inc_tb.tuning.attempt import Attempt
from inc_tb.tuning.objectives import OPS
from inc_tb.tuning.strategies.workbench import Workbench

_LESS, _FAR_LESS = 0.7, 0.1
_PAYS = 0.9
"""Of fp32's cost: from there on int8 gains little, and what it gains nothing by is tried in fp32."""
_AS_CHEAP = 1.05
"""Of the cheapest int8 model: a trial that costs no more cannot be improved on."""
_AFTER_MET = 4
"""Trials in search of something cheaper, once one has met the criterion."""
_MOST_NAMED = 6


class Explored:
    def __init__(self, bench: Workbench) -> None:
        self.bench = bench
        self.goes_on = bench.minimize != OPS
        """Whether something cheaper is looked for once the criterion holds."""
        self.tried: dict[tuple[str, ...], Trial] = {}
        """By what is kept in fp32, with the settings of now."""
        self.free: list[str] = []
        """Units that gain nothing by integers."""
        self.given: list[str] = []
        """Those of them that stay in fp32 in every set, because a trial has shown that it costs nothing."""
        self._cheapest = math.inf
        """The cost of the cheapest model with everything in int8."""
        self._best = math.inf
        """The cost of the cheapest trial that has met the criterion."""
        self._since_met = 0

    def begin(self, attempt: Attempt, trial: Trial) -> None:
        self.take_up(attempt, trial)
        self.free = self.bench.without_multiplications(attempt) if self.goes_on else []

    def take_up(self, attempt: Attempt, trial: Trial) -> None:
        """Go on with these settings; the trial is one with everything in int8, perhaps of those before."""
        self.base, self.trial = attempt, trial
        self.tried = {(): trial}

    def watched(self, attempts: Generator[Attempt, Trial, Any]) -> Generator[Attempt, Trial, Any]:
        """Notes what every trial costs."""
        trial = None
        while True:
            try:
                attempt = next(attempts) if trial is None else attempts.send(trial)
            except StopIteration as stop:
                return stop.value
            trial = yield attempt._replace(goes_on=self.goes_on)
            cost = self.bench.cost(trial)
            if not attempt.keep:
                self._cheapest = min(self._cheapest, cost)
            self._since_met += self.has_met
            if self.bench.is_met(trial):
                self._best = min(self._best, cost)

    @property
    def has_met(self) -> bool:
        return self._best < math.inf

    def is_over(self) -> bool:
        if not self.has_met:
            return False
        return self._best <= _AS_CHEAP * self._cheapest or self._since_met >= _AFTER_MET

    def is_slow(self) -> bool:
        """Whether int8 gains little against fp32, so that less of it may be cheaper."""
        fp32 = self.bench.baseline_objectives.get(self.bench.minimize)
        return fp32 is not None and self.bench.cost(self.trial) > _PAYS * fp32

    def attempt(self, kept: Sequence[str], note: str) -> Attempt:
        """Types of which all are kept are left out by a setting, where the tool has one; the others by their names."""
        settings, named = self.base.settings, tuple(kept)
        proves = partial(_log_found, self.bench, self.base, self.trial, tuple(kept))
        if self.goes_on and hasattr(self.bench.quantizer, "without_types"):
            types = self.types()
            others = {types[unit] for unit in types if unit not in set(kept)}
            whole = sorted({types[unit] for unit in kept} - others)
            if whole:
                settings = self.bench.quantizer.without_types(settings, whole)
                named = tuple(unit for unit in kept if types[unit] in others)
                note = f"no {listed(whole, _MOST_NAMED)} in int8; {note}"
        return Attempt(settings, named, note, proves)

    def tried_with(self, kept: Sequence[str], note: str, simulation: Simulation) -> Generator[Attempt, Trial, Trial]:
        trial = yield self.attempt(kept, "; ".join(filter(None, (note, _simulated_note(simulation, kept)))))
        self.tried[tuple(kept)] = trial
        return trial

    def types(self) -> dict[str, str]:
        """Of every unit; what the diagnosis does not know is a type of its own."""
        table = self.bench.diagnosis(self.base).ops
        known = dict(zip(map(str, table["name"]), map(str, table["type"]), strict=True))
        return {unit: known.get(unit, unit) for unit in self.bench.units(self.base)}

    def limit(self, error: float) -> float:
        return self.needed_error(error, self.bench.loss(self.trial))

    def needed_error(self, error: float, loss: float) -> float:
        """The error of the output at which about the allowed loss of accuracy is expected.

        Rather too much than too little: the first set that is good enough should not be much larger than needed.
        """
        if loss <= 0:
            return _LESS * error
        if not math.isfinite(loss):
            return _FAR_LESS * error
        return error * min(1.0, self.bench.allowed / loss)


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
