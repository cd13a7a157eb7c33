"""Everything that can be imported: found, read, and logged as runs."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from inc_tb.errors import DataError, IncTbError
from inc_tb.importers.neural_compressor.history import place_of, read_log
from inc_tb.importers.neural_compressor.trials import number_of
from inc_tb.importers.neural_compressor.workspace import (
    HISTORY,
    Imported,
    ImportedRun,
    find_workspaces,
    read_workspace,
    tells_trials,
)
from inc_tb.importers.profiles import EXPECTED, find_profiles, import_profile
from inc_tb.records import Trial

REGISTRY = Path(".neural_compressor", "neural_insights", "config.json")
"""Below the home folder: where Neural Insights kept what it was to show."""
_ENDINGS = (".gz", ".json", ".trace", ".pt", ".log", ".txt")
_EXPECTED = f"expected a workspace of Neural Compressor ({HISTORY}, activations_table.csv, …), {EXPECTED}"


class Source(NamedTuple):
    """A file or folder to import, and what its runs are called."""

    path: Path
    name: str
    is_workspace: bool
    accuracy: tuple[float | None, float | None] = (None, None)
    """Of fp32 and of the quantized model, as Neural Insights has it."""


def find_sources(path: Path) -> list[Source]:
    """At or below a path, named as the folders below it are."""
    if not path.is_dir():
        if path.name == HISTORY:
            return [Source(path.parent, _name(path.parent), True)]
        return [Source(path, _name(path), path.is_file() and tells_trials(path))]
    spaces = list(find_workspaces(path))
    profiles = [found for found in find_profiles(path) if found not in spaces and found.parent not in spaces]
    if not spaces and not profiles:
        raise DataError(f"{path}: holds nothing to import; {_EXPECTED}. Give the folder that the tool wrote to.")
    named = {space: _name(path) if space == path else str(space.relative_to(path)) for space in spaces}
    return [
        *(Source(space, _storable(name), True) for space, name in named.items()),
        *(Source(profile, _name(profile), False) for profile in profiles),
    ]


class _Accuracy(msgspec.Struct):
    baseline_accuracy: Any = None
    optimized_accuracy: Any = None


class _Workload(msgspec.Struct):
    workload_location: str | None = None
    workload_name: str | None = None
    accuracy_data: _Accuracy | None = None


class _Registry(msgspec.Struct):
    workloads: list[_Workload] = []


def find_registered(home: Path) -> list[Source]:
    """The workspaces that Neural Insights knew and that are still there."""
    path = home / REGISTRY
    try:
        known = msgspec.json.decode(path.read_bytes(), type=_Registry).workloads
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); expected the registry of Neural Insights. Give the folder of "
            "the workspace instead."
        ) from error
    except msgspec.DecodeError as error:
        raise DataError(
            f"{path}: is not the registry of Neural Insights ({error}); expected its config.json."
        ) from error
    found = []
    for workload in known:
        folder = Path(workload.workload_location or "")
        if workload.workload_location and folder.is_dir():
            numbers = workload.accuracy_data or _Accuracy()
            told = number_of(numbers.baseline_accuracy), number_of(numbers.optimized_accuracy)
            with suppress(DataError):  # one that is empty
                found += [source._replace(accuracy=told) for source in find_sources(folder) if source.path == folder]
    if not found:
        raise DataError(f"{path}: none of its {len(known)} workspaces is there any more; expected at least one.")
    return found


def read_source(source: Source, model: Any = None) -> Imported:
    try:
        return _read(source, model)
    except IncTbError:
        raise
    except Exception as error:  # files of others may hold anything
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise DataError(f"{source.path}: cannot be imported ({what}); expected what the tool writes.") from error


def _read(source: Source, model: Any) -> Imported:
    if not source.is_workspace:
        profile = import_profile(source.path)
        ops = sum(bool(row.op) for row in profile.rows)
        return Imported(source.name, source.path, [ImportedRun("", profile=profile)], ops, notes=profile.notes)
    if source.path.is_file():
        return _of_log(source)
    found = read_workspace(source.path, source.name, model)
    baseline, accuracy = source.accuracy
    if not found.trials and accuracy is not None:
        trial = Trial(
            "trial", accuracy, baseline, notes=["accuracy as Neural Insights has it; the config is not known"]
        )
        run = next((run for run in found.runs if run.diagnosis is not None), None)
        if run is None:
            found.runs.append(ImportedRun("trial", trial))
        else:
            run.trial = trial
        found.baseline = baseline
    if not found.runs:
        raise DataError(f"{source.path}: {' '.join(found.notes)} {_EXPECTED[0].upper()}{_EXPECTED[1:]}.")
    return found


def log_runs(imported: Imported, logdir: Path, name: str | None = None) -> list[ImportedRun]:
    """Write what is not there yet, below `logdir` and the name of what was imported; the runs that are new.

    The same workspace goes where it went before, so that importing it again adds what has come since. Another one of
    that name gets a number.
    """
    wanted, count = imported.name if name is None else name, 1
    folder = logdir / wanted
    while "other" in (states := [_state(folder / run.name, run) for run in imported.runs]):
        count += 1
        folder = logdir / f"{wanted}-{count}"
    imported.name = str(folder.relative_to(logdir))
    new = [(run, state) for run, state in zip(imported.runs, states, strict=True) if state != "same"]
    for run, state in new:
        _log(folder / run.name, run, without_trial=state == "incomplete")
    return [run for run, _ in new]


def import_workspace(
    path: str | os.PathLike[str], logdir: str | os.PathLike[str] | None = None, *, model: Any = None
) -> list[Imported]:
    """What Neural Compressor, or a profiler, has left at or below a path; with a `logdir` also as runs there.

    One `Imported` for each workspace, with its trials, diagnoses and profiles as `runs`. `model` is the fp32 model, by
    path or as an object, for workspaces that do not say which op reads which.
    """
    found = [read_source(source, model) for source in find_sources(Path(path))]
    for imported in found if logdir is not None else ():
        log_runs(imported, Path(logdir or ""))
    return found


def _of_log(source: Source) -> Imported:
    found = Imported(source.name, source.path)
    for number, session in enumerate(read_log(source.path), start=1):
        found.runs += [ImportedRun(place_of(number) + attempt.name, attempt.trial) for attempt in session.attempts]
        found.baseline, found.best = session.goal.baseline, session.best
    found.notes = list(dict.fromkeys(note for trial in found.trials for note in trial.notes))
    return found


def _state(folder: Path, run: ImportedRun) -> Literal["free", "same", "incomplete", "other"]:
    """Of a run's folder: "incomplete" is this very run before its tensors were dumped."""
    from inc_tb.eventfile import event_files
    from inc_tb.events import load

    if not event_files(folder):
        return "free" if run.name or not folder.exists() else "other"
    try:
        there = load(folder)
    except IncTbError:
        return "other"
    if run.profile is not None:
        return "same" if there.profile is not None and there.profile.rows == run.profile.rows else "other"
    if _told(there.trial) != _told(run.trial):
        return "other"
    if run.diagnosis is None or not run.diagnosis.samples:
        return "same"
    known = [diagnosis for diagnosis in there.diagnoses.values() if diagnosis.samples]
    if not known:
        return "incomplete"
    return "same" if known[-1].ops["name"].tolist() == run.diagnosis.ops["name"].tolist() else "other"


def _told(trial: Trial | None) -> Any:
    """What does not change when more becomes known about a trial."""
    return trial and (trial.name, trial.accuracy, trial.baseline, trial.fallback, trial.objectives)


def _log(folder: Path, run: ImportedRun, *, without_trial: bool) -> None:
    from inc_tb.events import SummaryWriter

    is_new = not folder.exists()
    try:
        with SummaryWriter(folder, whole=True) as writer:
            if run.diagnosis is not None:
                writer.add_diagnosis(run.diagnosis)
            if run.trial is not None and not without_trial:
                writer.add_trial(run.trial)
            if run.profile is not None:
                writer.add_profile(run.profile)
    except BaseException:  # a full disk, Ctrl-C: half a run is none
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _name(path: Path) -> str:
    name = path.resolve().name
    while not path.is_dir() and name.endswith(_ENDINGS):
        name = name.rpartition(".")[0]
    return _storable(name)


def _storable(name: str) -> str:
    return name.encode("utf-8", "replace").decode().strip(".") or "imported"
