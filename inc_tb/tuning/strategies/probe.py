"""The set of ops that must stay in fp32, searched in a simulation and proven by trials."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from functools import partial

from inc_tb.advise.effects import KeptSet, with_measured_sets
from inc_tb.errors import ModelError
from inc_tb.records import Trial, plural
from inc_tb.search.probe import screened
from inc_tb.search.simulation import Simulation
from inc_tb.search.smallest import HEALTHY, Search
from inc_tb.tuning.attempt import Attempt
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


def probe(bench: Workbench) -> Attempts:
    """Searches in the simulated model, and confirms with real quantizations.

    Accuracy falls as the error of the output grows. The trials so far therefore tell about which error is needed, and
    the smallest set that gets there in the simulation is tried next.
    """
    made = yield from first_made(bench)
    if made is None:
        return
    first, trial = made
    base, trial = yield from _try_cures(bench, first, trial)
    simulation, rough = bench.simulation(base), bench.simulation(base, samples=_ROUGHLY)
    order = screened(bench.diagnosis(base), [unit.name for unit in simulation.model.units])
    search = Search(simulation, order, rough)
    search.try_each_alone(time.monotonic() + bench.probe_s, bench.probing, as_before=True)
    yield from _narrow_down(bench, base, trial, search)


def _try_cures(bench: Workbench, base: Attempt, trial: Trial) -> Generator[Attempt, Trial, tuple[Attempt, Trial]]:
    """What costs less than fp32, where the rules point to it; and the settings to go on with."""
    simulation, original = bench.simulation(base), base.settings
    full = simulation.error_keeping(())
    found = bench.diagnosis(base)
    tensors = {node.name: node.tensor for node in found.graph}
    cures = dict(bench.quantizer.cures(base.settings, found.suggestions, tensors))
    bench.comparison = compared = simulation.compare()
    if compared["real"].error > _SATURATES * compared["simulated"].error and base.settings.get("reduce_range") is False:
        attempt = Attempt({**base.settings, "reduce_range": True}, note=f"instead of fp32: {_SEVEN_BITS}")
        try:
            gets_better = bench.real_error(attempt, simulation) <= _BETTER * compared["real"].error
        except ModelError:
            gets_better = False
        if gets_better:
            cured = yield attempt
            if bench.loss(cured) < bench.loss(trial):
                base, trial = attempt, cured
                full = bench.simulation(base).error_keeping(())
    limit = _needed_error(bench, full, bench.loss(trial))
    for what, changed in cures.items():
        # On top of the cures that were taken up before.
        changes = {name: value for name, value in changed.items() if value != original[name]}
        settings = {**base.settings, **changes}
        attempt = Attempt(settings, note=f"instead of fp32: {what}")
        try:
            error = bench.simulation(attempt).error_keeping(())
        except ModelError:
            continue
        is_everywhere = not settings.get("int16_tensors")
        if error <= _PROMISING * limit or (is_everywhere and error <= _BETTER * full):
            cured = yield attempt
            if is_everywhere and bench.loss(cured) < bench.loss(trial):
                base, trial, full = attempt, cured, error
                limit = _needed_error(bench, full, bench.loss(trial))
    bench.forget_simulations(but=base)
    return base, trial


def _narrow_down(bench: Workbench, base: Attempt, first: Trial, search: Search) -> Attempts:
    """Sets between an error of the output that is small enough and one that is too much, until the two meet."""
    if bench.is_met(first):
        return
    simulation = search.simulation
    enough, too_much = 0.0, simulation.error_keeping(())
    # A lost output tells little about small errors; healthy int8 is a better guess then, and costs one trial.
    limit = max(_needed_error(bench, too_much, bench.loss(first)), min(HEALTHY, too_much / 2))
    met: dict[tuple[str, ...], bool] = {(): False}
    while too_much > _CLOSE * enough and limit > _TINY:
        kept = tuple(search.smallest(limit) or search.most())
        if kept not in met:
            proves = partial(_log_found, bench, base, first, search, kept)
            trial = yield Attempt(base.settings, kept, _simulated_note(simulation, kept), proves)
            met[kept] = bench.is_met(trial)
            needed = _needed_error(bench, simulation.error_keeping(kept), bench.loss(trial))
        elif kept == tuple(search.most()):
            break
        if met[kept]:
            enough = max(enough, limit)
            limit = math.sqrt(enough * too_much)
        else:
            too_much = min(too_much, limit, simulation.error_keeping(kept))
            limit = math.sqrt(enough * too_much) if enough > 0 else min(needed, _LESS * too_much)
    everything = tuple(search.order)
    if not any(met.values()) and everything not in met:
        yield Attempt(base.settings, everything, "everything in fp32 that can be")


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


def _log_found(bench: Workbench, base: Attempt, trial: Trial, search: Search, kept: Sequence[str]) -> None:
    """The set that met the criterion becomes the first suggestion of the trial that has none of it in fp32."""
    full, left = search.simulation.error_keeping(()), search.simulation.error_keeping(kept)
    found = KeptSet(list(kept), left, 1 - left / full if full > 0 else 0.0)
    samples = plural(len(search.simulation.errors(())), "sample")
    how = f"simulated over {samples}; the trial with just these ops in fp32 proves it"
    bench.log_probed(trial, with_measured_sets(bench.diagnosis(base), found, {}, search.order, how))
