"""Everything that can be imported: found, read, and logged as runs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from inc_tb.capture import read_graph
from inc_tb.diagnosis import Diagnosis
from inc_tb.errors import DataError, IncTbError
from inc_tb.importers.neural_compressor.dump import FOLDER
from inc_tb.importers.neural_compressor.history import place_of, read_log
from inc_tb.importers.neural_compressor.trials import number_of
from inc_tb.importers.neural_compressor.workspace import (
    HISTORY,
    TABLES,
    Imported,
    ImportedRun,
    find_workspaces,
    read_workspace,
    tells_trials,
)
from inc_tb.importers.profiles import EXPECTED, find_profiles, import_profile
from inc_tb.records import GraphNode, Trial
from inc_tb.timing import Profile

REGISTRY = Path(".neural_compressor", "neural_insights", "config.json")
"""Below the home folder: where Neural Insights kept what it was to show."""
_OF_TRACES = (".gz", ".json")
_ENDINGS = (*_OF_TRACES, ".trace", ".pt", ".log", ".txt")
_AS_STORED = 1e-5
"""Relative: most columns are stored as float32."""
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
    if not path.exists():
        raise DataError(f"{path}: is not there; {_EXPECTED}. Check the path.")
    if not path.is_dir():
        if path.name in (HISTORY, *TABLES):
            return [Source(path.parent, _name(path.parent), True)]
        return [Source(path, _name(path), tells_trials(path))]
    path = path.parent if path.name == FOLDER else path
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


def read_all(sources: Sequence[Source], graph: Sequence[GraphNode] = ()) -> list[Imported]:
    """What cannot be read does not stop the others: it has no runs, and a note says why."""
    found = []
    for source in sources:
        try:
            found.append(read_source(source, graph))
        except DataError as error:
            if len(sources) == 1:
                raise
            found.append(Imported(source.name, source.path, notes=[str(error)]))
    if not any(imported.runs for imported in found):
        raise DataError(f"none of the {len(found)} that were found can be imported. The first: {found[0].notes[0]}")
    return found


def read_source(source: Source, graph: Sequence[GraphNode] = ()) -> Imported:
    try:
        return _read(source, graph)
    except IncTbError:
        raise
    except Exception as error:  # files of others may hold anything
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise DataError(f"{source.path}: cannot be imported ({what}); expected what the tool writes.") from error


def _read(source: Source, graph: Sequence[GraphNode]) -> Imported:
    if not source.is_workspace:
        profile = _profile(source.path)
        ops = sum(bool(row.op) for row in profile.rows)
        return Imported(source.name, source.path, [ImportedRun("", profile=profile)], ops, notes=profile.notes)
    if source.path.is_file():
        return _of_log(source)
    found = read_workspace(source.path, source.name, graph)
    baseline, accuracy = source.accuracy
    if not found.trials and accuracy is not None:
        trial = Trial(
            "trial", accuracy, baseline, notes=["accuracy as Neural Insights has it; the config is not known"]
        )
        run = next((run for run in found.runs if run.has_tensors), None)
        if run is None:
            found.runs.append(ImportedRun("trial", trial))
        else:
            run.trial = trial
        found.baseline = baseline
    if not found.runs and any(note.startswith(str(source.path)) for note in found.notes):  # it tells all of a file
        raise DataError(" ".join(note for note in found.notes if note.startswith(str(source.path))))
    if not found.runs:
        raise DataError(f"{source.path}: {' '.join(found.notes)} {_EXPECTED[0].upper()}{_EXPECTED[1:]}.")
    return found


def _profile(path: Path) -> Profile:
    try:
        return import_profile(path)
    except DataError as error:
        if path.is_dir() or path.suffix in _OF_TRACES:
            raise
        raise DataError(
            f"{path}: is neither a trace nor a log of a tuning; {_EXPECTED}. Give the folder that the tool wrote to."
        ) from error


def log_runs(
    imported: Imported, logdir: Path, name: str | None = None, known: Collection[str] = ()
) -> list[ImportedRun]:
    """Write what is not there yet, below `logdir` and the name of what was imported; the runs that are new.

    The same workspace goes where it went before, so that importing it again adds what has come since. Another one of
    that name gets a number. Runs that are `known` to be there are not looked at.
    """
    wanted, count = imported.name if name is None else name, 1
    folder = logdir / wanted
    states = ["same" if run.name in known else _state(folder / run.name, run) for run in imported.runs]
    while "other" in states:
        count += 1
        folder = logdir / f"{wanted}-{count}"
        states = [_state(folder / run.name, run) for run in imported.runs]
    imported.name = str(folder.relative_to(logdir))
    new = [(run, state) for run, state in zip(imported.runs, states, strict=True) if state != "same"]
    for run, state in new:
        _log(folder / run.name, run, without_trial=state == "incomplete")
    return [run for run, _ in new]


def import_workspace(
    path: str | os.PathLike[str], logdir: str | os.PathLike[str] | None = None, *, model: Any = None
) -> list[Imported]:
    """What Neural Compressor, or a profiler, has left at or below a path; with a `logdir` also as runs there.

    One `Imported` for each workspace, with its trials, diagnoses and profiles as `runs`; one that cannot be read has
    none, and a note. `model` is the fp32 model, by path or as an object, for workspaces that do not say which op reads
    which.
    """
    found = read_all(find_sources(Path(path)), read_graph(model) if model is not None else ())
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
    if told(there.trial) != told(run.trial) or _contradicts(there.trial, run.trial):
        return "other"
    known = list(there.diagnoses.values())
    if run.diagnosis is None or not known:
        return "same" if run.diagnosis is None else "incomplete"
    return _compared(known[-1], run.diagnosis)


def told(trial: Trial | None) -> Any:
    """What does not change when more becomes known about a trial."""
    return trial and (trial.name, trial.accuracy, trial.baseline, trial.fallback, trial.objectives)


def _contradicts(there: Trial | None, now: Trial | None) -> bool:
    """Whether a setting is another one; some are known only when a tuning has ended."""
    return there is not None and now is not None and any(there.config.get(k, v) != v for k, v in now.config.items())


def _compared(there: Diagnosis, now: Diagnosis) -> Literal["same", "incomplete", "other"]:
    """Whether numbers have come since, or are others."""
    if there.ops["name"].tolist() != now.ops["name"].tolist():
        return "other"
    numbers = [column.name for column in now.ops.columns if column.type != "text" and column.name in there.ops]
    before, after = (np.array([table[name] for name in numbers], float) for table in (there.ops, now.ops))
    in_both = ~(np.isnan(before) | np.isnan(after))
    is_equal = np.allclose(before[in_both], after[in_both], rtol=_AS_STORED)
    if bool(there.samples) == bool(now.samples) and not is_equal:
        return "other"
    return "incomplete" if np.isnan(before).sum() > np.isnan(after).sum() else "same"


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
