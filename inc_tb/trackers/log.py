"""`inc_tb.log_to`: what was found, into a tracker."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

from inc_tb.data import load_function, split_function
from inc_tb.errors import IncTbError, UsageError
from inc_tb.trackers.entries import entries_of
from inc_tb.trackers.tracker import TRACKERS, Sent, Tracker


def log_to(
    tracker: Any,
    what: Any,
    *,
    project: str | None = None,
    name: str | None = None,
    step: int | None = None,
    report: bool = True,
) -> list[Sent]:
    """Log a diagnosis, a tuning or runs to a tracker, and return where each is.

    `tracker` is "mlflow" or "wandb", or one of these modules: then it goes where the tracker logs to by itself, and one
    diagnosis or run into the tracker's run that is active, if there is one. "mlflow:http://host:5000" and
    "wandb:team/project" name a place. A run of theirs, or an object that fulfils `Tracker` (inc_tb.trackers.tracker),
    will do as well, also as "file.py:function" that returns one. `what` is a Diagnosis, what `tune` returned, a Run, or
    the place of a run or of a folder of runs: these become one run each, and one more for the whole. `project` is
    MLflow's experiment or the project of W&B; `name` that of the run, or of the whole. `step` belongs to a diagnosis.
    The HTML `report` is the largest of the artifacts.
    """
    found = opened(tracker, project)
    entries = entries_of(what, step=step, name=name, report=report)
    return [found.put(entry) for entry in entries]


def opened(tracker: Any, project: str | None = None) -> Tracker:
    """By its name, its module, one of its runs, or as it is."""
    if isinstance(tracker, str) and ".py:" in tracker:
        tracker = _made(tracker)
    kind, given = _kind(tracker)
    if kind in TRACKERS:
        module, _, of_class = TRACKERS[kind].partition(":")
        made: Tracker = getattr(import_module(module), of_class)(given, project)
        return made
    if isinstance(tracker, str | ModuleType) or not callable(getattr(tracker, "put", None)):
        shown = tracker if isinstance(tracker, str) else getattr(tracker, "__name__", f"a {type(tracker).__name__}")
        raise UsageError(
            f"tracker {shown}: is not known; expected one of {', '.join(TRACKERS)}, with a place behind it as in "
            "mlflow:http://host:5000, or file.py:function that returns one of yours."
        )
    if project is not None:
        raise UsageError(f"project={project} was given with a tracker of yours; expected it to know its own.")
    own: Tracker = tracker
    return own


def _kind(tracker: Any) -> tuple[str, Any]:
    """The name of a tracker, and what it is told: a place, or a run of its own."""
    if isinstance(tracker, str):
        kind, _, place = tracker.partition(":")
        return kind, place
    if isinstance(tracker, ModuleType):
        return tracker.__name__, ""
    return ("", "") if hasattr(tracker, "put") else (type(tracker).__module__.partition(".")[0], tracker)


def _made(given: str) -> Any:
    path, function = split_function(given)
    try:
        return load_function(path, function)()
    except IncTbError:
        raise
    except Exception as error:  # the user's own code may raise anything
        raise UsageError(f"{given} failed: {type(error).__name__}: {error}. It must return a tracker.") from error
