"""Entries of what people have: a diagnosis, a tuning, a run, a folder of runs."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec
from tensorboard.compat.proto.summary_pb2 import Summary

from inc_tb.errors import DataError, UsageError
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.records import Trial, brief, to_json
from inc_tb.show.page import page_of
from inc_tb.store import dashboards
from inc_tb.store.reader import Run, load, logged_runs
from inc_tb.store.remote import fetched, is_remote
from inc_tb.store.writer import SummaryWriter, whole_step
from inc_tb.trackers.tables import tables_of
from inc_tb.trackers.tracker import Entry, Point
from inc_tb.tuning.loop import Tuned

REPORT, SUGGESTION, TRIAL = "report.html", "suggestion.txt", "trial.json"
TUNING, CONFIG = "tuning.json", "config.txt"


def entries_of(what: Any, *, step: int | None = None, name: str | None = None, report: bool = True) -> list[Entry]:
    """All of them; of a tuning or a folder of runs one for each run, and one for the whole."""
    if isinstance(what, Diagnosis):
        found = [_of_diagnosis(what, None if step is None else whole_step(step), report)]
    elif step is not None:
        raise UsageError(f"step={step} was given with a {type(what).__name__}, which has steps; it is for a Diagnosis.")
    elif isinstance(what, Tuned):
        found = _of_tuning(what, report)
    elif isinstance(what, Run):
        found = _of_place(what.name, report)
    elif isinstance(what, str | PathLike):
        found = _of_place(what, report)
    else:
        raise UsageError(
            f"a {type(what).__name__} was given; expected a Diagnosis, what inc_tb.tune returned, or the place of one "
            "or several runs, such as nc_workspace."
        )
    if name is not None:
        found[-1].name = name
    return found


def of_run(name: str, run: Run, folder: Path, group: str, report: bool) -> Entry:
    """One run that was logged, in that folder."""
    entry = Entry(name, group, _points(run))
    if run.trial is not None:
        _tell_trial(entry, run.trial)
    if run.diagnoses:
        _tell_diagnosis(entry, run.diagnosis)
    if report:
        entry.files[REPORT] = page_of({name: folder}, _title(name))
    return entry


def of_trials(group: str, trials: list[Trial], folders: Mapping[str, Path], report: bool) -> Entry:
    """The whole of several runs: how their results went, trial by trial from 1 on."""
    entry = Entry(group, group)
    entry.points = [Point(step, _trial_metrics(trial)) for step, trial in enumerate(trials, start=1)]
    if trials:
        entry.settings["trials"] = len(trials)
    if report:
        entry.files[REPORT] = page_of(folders, _title(group))
    return entry


def tell_tuned(entry: Entry, tuned: Tuned) -> None:
    entry.settings.update(minimize=tuned.minimize, baseline=tuned.baseline, target=tuned.target)
    entry.tags.update(best=tuned.best.name, met=_yes_or_no(tuned.met), reason=tuned.reason)
    entry.fallback = list(tuned.best.fallback)
    entry.files[TUNING] = to_json(tuned.to_json())
    if tuned.recipe:
        entry.files[CONFIG] = tuned.recipe.encode("utf-8", "backslashreplace")


def _of_diagnosis(diagnosis: Diagnosis, step: int | None, report: bool) -> Entry:
    name = diagnosis.logged.name if diagnosis.logged is not None else Path(diagnosis.quantized).stem or "diagnosis"
    entry = Entry(brief(name), points=[Point(step, _diagnosis_metrics(diagnosis, set()), tables_of(diagnosis.ops))])
    _tell_diagnosis(entry, diagnosis)
    if report:
        with tempfile.TemporaryDirectory(prefix="inc_tb_") as folder:
            run = Path(folder, "run")
            with SummaryWriter(run) as writer:
                writer.add_diagnosis(copy.copy(diagnosis))  # which remembers where it was logged
            entry.files[REPORT] = page_of({entry.name: run}, _title(entry.name))
    return entry


def _of_tuning(tuned: Tuned, report: bool) -> list[Entry]:
    logdir = tuned.model.parent
    if not logdir.is_dir():
        raise DataError(f"{logdir}: the tuning's trials are not there any more; expected its logdir.")
    of_its_trials = {trial.name: logdir / trial.name for trial in tuned.trials}  # the logdir may hold others
    *runs, whole = _of_group(group_name(logdir), of_its_trials, report)
    tell_tuned(whole, tuned)
    return [*runs, whole]


def _of_place(given: str | PathLike[str], report: bool) -> list[Entry]:
    with _here(given) as folder:
        runs = logged_runs(folder)
        if list(runs.values()) == [folder]:
            return [of_run(next(iter(runs)), load(folder), folder, "", report)]
        return _of_group(group_name(folder), runs, report)


def _of_group(group: str, runs: Mapping[str, Path], report: bool) -> list[Entry]:
    loaded = {name: load(folder) for name, folder in runs.items()}
    entries = [of_run(name, run, runs[name], group, report) for name, run in loaded.items()]
    trials = [run.trial for run in loaded.values() if run.trial is not None]
    return [*entries, of_trials(group, trials, runs, report)]


@contextmanager
def _here(given: str | PathLike[str]) -> Iterator[Path]:
    if isinstance(given, str) and is_remote(given):
        with fetched(given) as folder:
            yield folder
    else:
        yield Path(given)


def group_name(folder: Path) -> str:
    return folder.resolve().name or "runs"


def _title(name: str) -> str:
    return f"{name}: quantization"


def _points(run: Run) -> list[Point]:
    points = {step: Point(step) for step in sorted({*run.diagnoses, *run.trials, *run.profiles})}
    begun: set[str] = set()
    for step, point in points.items():
        if step in run.diagnoses:
            point.metrics.update(_diagnosis_metrics(run.diagnoses[step], begun))
            point.tables = tables_of(run.diagnoses[step].ops)
        if step in run.trials:
            point.metrics.update(_trial_metrics(run.trials[step]))
        if step in run.profiles:
            point.metrics.update(_numbers(dashboards.profile_scalars(run.profiles[step])))
    return list(points.values())


def _diagnosis_metrics(diagnosis: Diagnosis, begun: set[str]) -> dict[str, float]:
    """What TensorBoard has as scalars, by the same names; curves that were begun go on."""
    found = _numbers(dashboards.scalars_of(diagnosis, followed=begun))
    begun.update(found)
    return found


def _numbers(scalars: list[Summary.Value]) -> dict[str, float]:
    return {value.tag: value.tensor.float_val[0] for value in scalars}


def _trial_metrics(trial: Trial) -> dict[str, float]:
    known = {"baseline": trial.baseline, "target": trial.target}
    fp32 = {f"baseline/{name}": float(number) for name, number in trial.baseline_objectives.items()}
    told = {name: float(number) for name, number in known.items() if number is not None}
    return {**dashboards.trial_numbers(trial), **told, **fp32}


def _tell_trial(entry: Entry, trial: Trial) -> None:
    entry.settings.update({name: _setting(value) for name, value in trial.config.items()})
    entry.fallback = list(trial.fallback)
    entry.files[TRIAL] = to_json(trial)
    if trial.is_met is not None:
        entry.tags["met"] = _yes_or_no(trial.is_met)


def _tell_diagnosis(entry: Entry, diagnosis: Diagnosis) -> None:
    about = {name: getattr(diagnosis, name) for name in ("reference", "quantized", "framework")}
    told: dict[str, Any] = {name: value for name, value in about.items() if value}
    if diagnosis.origin is not None:
        told.update({f"measured.{name}": _setting(value) for name, value in diagnosis.origin.settings.items()})
        told.update({f"version.{name}": version for name, version in diagnosis.origin.versions.items()})
        told.update({} if diagnosis.origin.seed is None else {"seed": diagnosis.origin.seed})
    entry.settings = {**told, "measured.samples": diagnosis.samples, **entry.settings}
    entry.tags["verdict"] = diagnosis.verdict
    if diagnosis.suggestions:
        first = diagnosis.suggestions[0]
        entry.tags["suggestion"] = first.rule
        if first.recipe:
            entry.files[SUGGESTION] = first.recipe.encode("utf-8", "backslashreplace")


def _setting(value: Any) -> Any:
    """As JSON has it; of rewrites their kinds, without the numbers that redo them, which trial.json has."""
    if isinstance(value, list) and value and all(isinstance(some, dict) and "kind" in some for some in value):
        value = [some["kind"] for some in value]
    return msgspec.json.decode(to_json(value))


def _yes_or_no(answer: bool) -> str:
    return "yes" if answer else "no"
