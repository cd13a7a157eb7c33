"""Trials that workers carry out side by side, in the order in which one process would have done them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from inc_tb.data import load_function, split_function
from inc_tb.engines.engine import Engine, Sent
from inc_tb.engines.models import from_anywhere, open_model
from inc_tb.records import Trial
from inc_tb.tuning.attempt import Attempt, key_of
from inc_tb.tuning.criterion import Criterion
from inc_tb.tuning.objectives import Evaluate, Objectives
from inc_tb.tuning.quantizers import find_quantizer
from inc_tb.tuning.runner import TrialRunner
from inc_tb.tuning.tried import Tried

_NOWHERE = "inc_tb_logs_nothing"
"""A worker's runner gives back what is to be logged."""


class Asked(NamedTuple):
    """Of a tuning, as it was given: what decides how a trial comes out."""

    model: Any
    calibration: Any
    evaluate: str | PathLike[str] | Evaluate
    criterion: Criterion
    quantizer: Any
    objectives: Objectives
    samples: int | None
    diagnosis_samples: int
    profile_runs: int
    random_seed: int
    minimize: str | None


class Carried(NamedTuple):
    """What came of a trial in a worker, and what it took."""

    tried: Tried
    quantizations: int
    evaluations: int


class TrialsElsewhere:
    """`is_known` says of a key whether its trial is in the history."""

    def __init__(self, engine: Engine, asked: Asked, runner: TrialRunner, is_known: Callable[[str], bool]) -> None:
        self._engine, self._runner, self._is_known = engine, runner, is_known
        self._shared = engine.share(_sendable(asked), "what the tuning was given")
        self._running: dict[str, Future[Any]] = {}
        runner.width = engine.width

    def carry_out(self, attempt: Attempt, name: str) -> Trial:
        """With those that are known to follow; one that stands alone where its strategy wants to see its model."""
        for one in (attempt, *attempt.then) if attempt.then else ():
            key = key_of(one)
            if key not in self._running and not self._is_known(key):
                self._running[key] = self._begun(one)
        future = self._running.pop(key_of(attempt), None)
        if future is None:
            return self._runner.carry_out(attempt, name)
        carried: Carried = self._engine.result(future)
        self._runner.count(carried.quantizations, carried.evaluations)
        return carried.tried.logged(self._runner.logdir / name)

    def _begun(self, attempt: Attempt) -> Future[Any]:
        runner = self._runner
        plain = Attempt(dict(attempt.settings), attempt.keep, attempt.note)
        return self._engine.submit(
            carry_out, self._shared, plain, runner.baseline, dict(runner.baseline_objectives), runner.known_units(plain)
        )

    def forget(self) -> None:
        """What the strategy has not come to."""
        for future in self._running.values():
            future.cancel()


def carry_out(
    sent: Sent, attempt: Attempt, baseline: float, objectives: Mapping[str, float], units: Sequence[str]
) -> Carried:
    """In a worker."""
    runner = sent.opened(_opened)
    runner.set_baseline(baseline, objectives)
    runner.know_units(attempt, units)
    before = runner.quantizations, runner.evaluations
    tried = runner.tried(attempt)
    return Carried(tried, runner.quantizations - before[0], runner.evaluations - before[1])


def _opened(asked: Asked) -> TrialRunner:
    model, evaluate = open_model(asked.model), asked.evaluate
    return TrialRunner(
        model, asked.calibration, evaluate if callable(evaluate) else load_function(*split_function(evaluate)),
        asked.criterion, quantizer=find_quantizer(asked.quantizer, model), objectives=asked.objectives,
        logdir=Path(tempfile.gettempdir(), _NOWHERE), samples=asked.samples, probe_s=0,
        diagnosis_samples=asked.diagnosis_samples, profile_runs=asked.profile_runs, probing=None,
        random_seed=asked.random_seed, minimize=asked.minimize,
    )  # fmt: skip


def _sendable(asked: Asked) -> Asked:
    """With places that are found from any folder."""
    places = ("model", "calibration", "evaluate", "quantizer")
    objectives = asked.objectives
    if not isinstance(objectives, Mapping):
        objectives = [from_anywhere(one) if ".py:" in str(one) else one for one in objectives]
    return asked._replace(**{name: from_anywhere(getattr(asked, name)) for name in places}, objectives=objectives)
