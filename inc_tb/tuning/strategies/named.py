"""Strategies by their names, from files of the user, and as objects."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from functools import partial
from os import PathLike
from typing import Any

from inc_tb.data import load_function, split_function
from inc_tb.errors import IncTbError, UsageError
from inc_tb.tuning.attempt import Attempt
from inc_tb.tuning.strategies.probe import probe
from inc_tb.tuning.strategies.sampled import bayesian, check_installed, exhaustive, random, tpe
from inc_tb.tuning.strategies.stepwise import auto, basic, conservative, mse, mse_v2
from inc_tb.tuning.strategies.workbench import Attempts, Strategy, Workbench

STRATEGIES: Mapping[str, Strategy] = {
    "probe": probe, "auto": auto, "basic": basic, "bayesian": bayesian, "conservative": conservative,
    "exhaustive": exhaustive, "mse": mse, "mse_v2": mse_v2, "random": random, "tpe": tpe,
}  # fmt: skip
_OPTIMIZERS = ("bayesian", "tpe")


def find_strategy(given: str | PathLike[str] | Strategy) -> tuple[str, Strategy]:
    """By its name, from file.py:function, or as it is; with the name by which a history knows it."""
    if callable(given):
        named = given if hasattr(given, "__qualname__") else type(given)  # an object that can be called
        name = f"{named.__module__}.{named.__qualname__}"
        return name, partial(_guarded, name, given)
    if isinstance(given, str) and given in STRATEGIES:
        if given in _OPTIMIZERS:
            check_installed(given)
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
