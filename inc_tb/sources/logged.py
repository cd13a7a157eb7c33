"""What was imported, written as runs; what is in the log already is left as it is."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

import numpy as np

from inc_tb.errors import IncTbError
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.records import Trial
from inc_tb.sources.imported import Imported, ImportedRun
from inc_tb.store.eventfile import event_files
from inc_tb.store.hold import IMPORTING, held_alone
from inc_tb.store.reader import load
from inc_tb.store.workspace import put_tables_above
from inc_tb.store.writer import SummaryWriter

_AS_STORED = 1e-5
"""Relative: most columns are stored as float32."""

_WAITS_S = 60.0


def log_runs(
    imported: Imported, logdir: Path, name: str | None = None, known: Collection[str] = ()
) -> list[ImportedRun]:
    """Write what is not there yet, below `logdir` and the name of what was imported; the runs that are new.

    The same workspace goes where it went before, so that importing it again adds what has come since. Another one of
    that name gets a number. Runs that are `known` to be there are not looked at. An import beside another one waits for
    it, and finds what that has written.
    """
    with held_alone(logdir, IMPORTING, wait_s=_WAITS_S):
        return _log_new(imported, logdir, name, known)


def _log_new(imported: Imported, logdir: Path, name: str | None, known: Collection[str]) -> list[ImportedRun]:
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
    if new:
        last = new[-1][0]
        told = next((run for run in reversed(imported.runs) if run.has_tensors), last)
        put_tables_above(folder / last.name, logdir, told.diagnosis)
    return [run for run, _ in new]


def _state(folder: Path, run: ImportedRun) -> Literal["free", "same", "incomplete", "other"]:
    """Of a run's folder: "incomplete" is this very run before its tensors were dumped."""
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
