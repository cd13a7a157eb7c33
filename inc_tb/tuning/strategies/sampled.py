"""Strategies that go through what can be tried: one by one, at random, or where an optimizer expects the best."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations, islice
from typing import Any

from inc_tb.errors import UsageError
from inc_tb.records import Trial
from inc_tb.tuning.attempt import Attempt, key_of
from inc_tb.tuning.strategies.abreast import abreast
from inc_tb.tuning.strategies.space import Draws, Point, Space, opened
from inc_tb.tuning.strategies.workbench import Attempts, Workbench

_STARTS = 10
"""Points at random before an optimizer has anything to go by."""
_FAILED = 2.0
_SETTINGS = "settings"


def exhaustive(bench: Workbench) -> Attempts:
    """As Neural Compressor's, everything that can be tried; the fewest ops in fp32 first."""
    found = yield from opened(bench)
    if found is None:
        return
    space, first, _ = found
    yield from abreast(bench, _all_of(space, first))


def _all_of(space: Space, first: Point) -> Iterator[Attempt]:
    tried = {key_of(space.attempt(first))}
    for count in range(len(space.ops) + 1):
        for settings in space.settings:
            for kept in combinations(space.ops, count):
                attempt = Attempt(settings, kept)
                if key_of(attempt) not in tried:
                    tried.add(key_of(attempt))
                    yield attempt


def random(bench: Workbench) -> Attempts:
    """As Neural Compressor's: anything that can be tried, at random."""
    found = yield from opened(bench)
    if found is None:
        return
    space, first, _ = found
    draws = Draws(space, bench.random_seed, first)
    yield from abreast(bench, map(space.attempt, iter(draws.next, None)))


def tpe(bench: Workbench) -> Attempts:
    """What tree-structured Parzen estimators make of the trials so far."""
    yield from _optimized(bench, _tpe_sampler)


def bayesian(bench: Workbench) -> Attempts:
    """As Neural Compressor's: where a Gaussian process over the trials so far expects to gain most."""
    yield from _optimized(bench, _gaussian_sampler)


def check_installed(strategy: str) -> None:
    """Before any work: an optimizer loads what it needs only when it has something to go by."""
    try:
        _ask_once(_SAMPLERS[strategy])
    except ImportError as error:
        missing = getattr(error, "name", None) or "optuna"
        raise UsageError(
            f"the strategy {strategy} needs {missing}, which is not installed: pip install 'inc-tb[{strategy}]'."
        ) from error


def _optimized(bench: Workbench, sampler: Callable[[int], Any]) -> Attempts:
    """An optimizer that is told every trial, and asked for the next. Where it has nothing new, one is drawn instead."""
    found = yield from opened(bench)
    if found is None:
        return
    space, first, trial = found
    study = _Study(space, sampler(bench.random_seed))
    study.tell(first, _badness(bench, space, trial))
    draws = Draws(space, bench.random_seed, first)
    starts = list(islice(iter(draws.next, None), _STARTS))
    for point, attempt in zip(starts, abreast(bench, map(space.attempt, starts)), strict=True):
        trial = yield attempt
        study.tell(point, _badness(bench, space, trial))
    while True:
        asked = study.ask()
        following = asked if draws.is_new(asked) else draws.next()
        if following is None:
            return
        trial = yield space.attempt(following)
        study.tell(following, _badness(bench, space, trial))


def _badness(bench: Workbench, space: Space, trial: Trial) -> float:
    """Below 1 what meets the criterion, by the share of ops in fp32; else 1 and how much too much is lost."""
    if bench.is_met(trial):
        return len(trial.fallback) / max(1, len(space.ops))
    beyond, scale = bench.loss(trial) - bench.allowed, abs(trial.baseline or 0) or 1.0
    return min(_FAILED, 1 + beyond / (beyond + scale)) if beyond < float("inf") else _FAILED


class _Study:
    """A study of optuna about a space."""

    def __init__(self, space: Space, sampler: Any) -> None:
        import optuna

        choice = optuna.distributions.CategoricalDistribution
        self._space = space
        self._choices = {_SETTINGS: choice(list(range(len(space.settings))))}
        self._choices |= {f"op {at}": choice([False, True]) for at in range(len(space.ops))}
        with _quiet():
            self._study = optuna.create_study(sampler=sampler)

    def ask(self) -> Point:
        with _quiet():
            asked = self._study.ask(self._choices)
            found = Point(
                asked.params[_SETTINGS], tuple(asked.params[f"op {at}"] for at in range(len(self._space.ops)))
            )
            # What is tried is told as a trial of its own, whoever has found it.
            self._study.tell(asked, state=_state("FAIL"))
        return found

    def tell(self, point: Point, badness: float) -> None:
        import optuna

        params = {_SETTINGS: point.settings, **{f"op {at}": is_kept for at, is_kept in enumerate(point.keeps)}}
        with _quiet():
            made = optuna.trial.create_trial(params=params, distributions=self._choices, value=badness)
            self._study.add_trial(made)


def _state(name: str) -> Any:
    import optuna

    return optuna.trial.TrialState[name]


def _tpe_sampler(seed: int) -> Any:
    import optuna

    with _quiet():
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=1, multivariate=True)


def _gaussian_sampler(seed: int) -> Any:
    import optuna

    with _quiet():
        return optuna.samplers.GPSampler(seed=seed, n_startup_trials=1, deterministic_objective=True)


_SAMPLERS = {"tpe": _tpe_sampler, "bayesian": _gaussian_sampler}


def _ask_once(sampler: Callable[[int], Any]) -> None:
    study = _Study(Space([{}], ["a", "b"]), sampler(0))
    study.tell(Point(0, (False, False)), 1.0)
    study.tell(Point(0, (True, False)), 0.5)
    study.ask()


@contextmanager
def _quiet() -> Iterator[None]:
    """Neither news about studies, nor warnings about its experimental parts."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(before)
