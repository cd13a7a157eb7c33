"""What to try next: one generator a strategy.

It yields attempts and is sent what came of each. To add one: write the generator and give it to `inc_tb.tune`, name
it on the command line, or put it into STRATEGIES. It must depend on nothing but the trials it was sent and what the
bench measures, so that a tuning can be resumed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any, Protocol

from inc_tb.advise.effects import KeptSet, with_measured_sets
from inc_tb.data import load_function, split_function
from inc_tb.errors import IncTbError, ModelError, UsageError
from inc_tb.frameworks.protocols import Quantizer
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.records import Trial
from inc_tb.search.probe import screened
from inc_tb.search.simulation import Comparison, Simulation
from inc_tb.search.smallest import HEALTHY, Search
from inc_tb.tuning.attempt import Attempt

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


Attempts = Generator[Attempt, Trial, None]
Strategy = Callable[["Workbench"], Attempts]


class Workbench(Protocol):
    """What a strategy may ask."""

    quantizer: Quantizer
    probe_s: float
    """Seconds for the simulation."""
    probing: Callable[[int, int], None] | None
    comparison: dict[str, Comparison]

    @property
    def allowed(self) -> float:
        """How much accuracy may be lost."""
        ...

    def loss(self, trial: Trial) -> float:
        """How much is lost against fp32."""
        ...

    def is_met(self, trial: Trial) -> bool: ...

    def quantized(self, attempt: Attempt) -> Any: ...

    def units(self, attempt: Attempt) -> list[str]:
        """What can be kept in fp32, without simulating anything."""
        ...

    def diagnosis(self, attempt: Attempt) -> Diagnosis: ...

    def simulation(self, attempt: Attempt, samples: int = ...) -> Simulation: ...

    def forget_simulations(self, but: Attempt) -> None:
        """Each holds a model of its own."""
        ...

    def real_error(self, attempt: Attempt, simulation: Simulation) -> float:
        """Of a really quantized model's results, on the samples of the simulation."""
        ...

    def log_probed(self, trial: Trial, diagnosis: Diagnosis) -> None:
        """The diagnosis of a trial once more, with what the simulation has found out since."""
        ...


def probe(bench: Workbench) -> Attempts:
    """Searches in the simulated model, and confirms with real quantizations.

    Accuracy falls as the error of the output grows. The trials so far therefore tell about which error is needed, and
    the smallest set that gets there in the simulation is tried next.
    """
    first = Attempt(bench.quantizer.settings)
    trial = yield first
    others = iter(() if _is_made(bench, first) else bench.quantizer.variants())
    while not _is_made(bench, first) and (settings := next(others, None)) is not None:
        first = Attempt(settings)
        trial = yield first
    if not _is_made(bench, first):
        return
    base, trial = yield from _try_cures(bench, first, trial)
    simulation, rough = bench.simulation(base), bench.simulation(base, samples=_ROUGHLY)
    order = screened(bench.diagnosis(base), [unit.name for unit in simulation.model.units])
    search = Search(simulation, order, rough)
    search.measure(time.monotonic() + bench.probe_s, bench.probing, as_before=True)
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


def _is_made(bench: Workbench, attempt: Attempt) -> bool:
    """Whether the tool can quantize so; the accuracy may be no number all the same."""
    try:
        bench.quantized(attempt)
    except ModelError:
        return False
    return True


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
    how = f"simulated over {len(search.simulation.errors(()))} samples; the trial with just these ops in fp32 proves it"
    bench.log_probed(trial, with_measured_sets(bench.diagnosis(base), found, {}, search.order, how))


def basic(bench: Workbench) -> Attempts:
    """As Neural Compressor's: other settings for all ops, then each op alone in fp32, then the best together."""
    base = yield from _best_settings(bench)
    singles: list[tuple[float, str]] = []
    for op in _ops(bench, base):
        trial = yield Attempt(base.settings, (op,))
        singles.append((bench.loss(trial), op))
    yield from _accumulated(base, [op for _, op in sorted(singles)])


def mse(bench: Workbench) -> Attempts:
    """As Neural Compressor's: the same, with the ops in the order of their mean squared error."""
    base = yield from _best_settings(bench)
    found = bench.diagnosis(base)
    names = [str(found.ops["name"][row]) for row in found.worst(sort="a_inc_mse")]
    ops = set(_ops(bench, base))
    order = [name for name in names if name in ops]
    for op in order:
        yield Attempt(base.settings, (op,))
    yield from _accumulated(base, order)


def mse_v2(bench: Workbench) -> Attempts:
    """As Neural Compressor's: of all ops, the one whose fp32 brings the output closest joins the set, and so on."""
    base = Attempt(bench.quantizer.settings)
    yield base
    simulation = bench.simulation(base)
    kept: list[str] = []
    left = _ops(bench, base)
    while left:
        errors = {op: _real_error(bench, Attempt(base.settings, (*kept, op)), simulation) for op in left}
        best = min(left, key=lambda op: errors[op])
        kept.append(best)
        left.remove(best)
        yield Attempt(base.settings, tuple(kept))


def _real_error(bench: Workbench, attempt: Attempt, simulation: Simulation) -> float:
    try:
        return bench.real_error(attempt, simulation)
    except ModelError:
        return math.inf


def _best_settings(bench: Workbench) -> Generator[Attempt, Trial, Attempt]:
    attempts = [Attempt(bench.quantizer.settings), *(Attempt(s) for s in bench.quantizer.variants())]
    losses = []
    for attempt in attempts:
        trial = yield attempt
        losses.append(bench.loss(trial))
    return attempts[losses.index(min(losses))]


def _accumulated(base: Attempt, order: Sequence[str]) -> Attempts:
    for count in range(2, len(order) + 1):
        yield Attempt(base.settings, tuple(order[:count]))


def _ops(bench: Workbench, base: Attempt) -> list[str]:
    return bench.units(base)


STRATEGIES: Mapping[str, Strategy] = {"probe": probe, "basic": basic, "mse": mse, "mse_v2": mse_v2}


def find_strategy(given: str | PathLike[str] | Strategy) -> tuple[str, Strategy]:
    """By its name, from file.py:function, or as it is; with the name by which a history knows it."""
    if callable(given):
        named = given if hasattr(given, "__qualname__") else type(given)  # an object that can be called
        name = f"{named.__module__}.{named.__qualname__}"
        return name, partial(_guarded, name, given)
    if isinstance(given, str) and given in STRATEGIES:
        return given, STRATEGIES[given]
    if isinstance(given, str | PathLike) and ".py:" in str(given):
        path, function = split_function(given)
        name = f"{path.absolute()}:{function}"
        return name, partial(_guarded, name, load_function(path, function))
    raise UsageError(f"strategy {given!r} was given; expected one of {', '.join(STRATEGIES)}, or file.py:function.")


def _guarded(name: str, strategy: Strategy, bench: Workbench) -> Attempts:
    """What the user's own strategy wants to try; what is wrong with it is told in one line."""
    try:
        attempts: Any = strategy(bench)
        if not isinstance(attempts, Generator):
            raise UsageError(f"the strategy {name} gives a {type(attempts).__name__}; expected a generator function.")
        attempt = next(attempts)
        while isinstance(attempt, Attempt):
            trial = yield attempt
            attempt = attempts.send(trial)
        raise UsageError(f"the strategy {name} yields a {type(attempt).__name__}; expected inc_tb.Attempt.")
    except StopIteration:
        return
    except IncTbError:
        raise
    except Exception as error:  # the user's own code may raise anything
        raise UsageError(f"the strategy {name} failed: {type(error).__name__}: {error}.") from error
