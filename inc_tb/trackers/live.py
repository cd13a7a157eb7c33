"""Trials into a tracker as they end, while a tuning goes on."""

from __future__ import annotations

import warnings
from os import PathLike
from pathlib import Path
from typing import Any

from inc_tb.errors import IncTbError, UsageError, reading
from inc_tb.records import Trial
from inc_tb.search.journal import Journal
from inc_tb.store.reader import load
from inc_tb.trackers.entries import group_name, of_run, of_trials, tell_tuned
from inc_tb.trackers.log import opened
from inc_tb.trackers.tracker import Entry, Sent
from inc_tb.tuning.loop import Tuned

JOURNAL = "trackers.jsonl"
"""Beside the trials: what was sent, so that a tuning that is resumed sends no trial twice."""


class LiveLog:
    """`inc_tb.tune(…, logdir="nc_workspace", progress=inc_tb.LiveLog("mlflow", "nc_workspace"))`.

    Each trial is a run of the tracker as soon as it ends. A tracker that fails meanwhile does not stop the tuning: that
    is a warning, and what could not be sent is tried again with the next trial, and by `finish`.
    """

    def __init__(
        self, tracker: Any, logdir: str | PathLike[str] = "nc_workspace", *, project: str | None = None
    ) -> None:
        self._tracker = opened(tracker, project)
        self._told = tracker if isinstance(tracker, str) else type(self._tracker).__name__
        self._logdir = Path(logdir)
        self._trials: dict[str, Trial] = {}
        self._journal: Journal | None = None
        self._warned: set[str] = set()

    def __call__(self, trial: Trial, is_best: bool) -> None:
        self._trials[trial.name] = trial
        try:
            self._send()
        except IncTbError as error:
            if str(error) not in self._warned:
                self._warned.add(str(error))
                warnings.warn(f"{error} It is tried again after the next trial.", stacklevel=2)

    def finish(self, tuned: Tuned | None = None) -> list[Sent]:
        """What could not be sent before, and the whole; with what `tune` returned it tells how it ended."""
        found = self._send()
        group = group_name(self._logdir)
        folders = {name: self._logdir / name for name in self._trials}
        whole = of_trials(group, list(self._trials.values()), folders, report=True)
        if tuned is not None:
            tell_tuned(whole, tuned)
        return [*found, self._put(whole)]

    def _send(self) -> list[Sent]:
        """Trials that were not sent yet; the journal begins after the first one, for a logdir is empty before."""
        if self._journal is None:
            self._journal = Journal(self._logdir / JOURNAL)
        known = {line.get("trial") for line in self._journal if line.get("tracker") == self._told}
        found = []
        for name in (name for name in self._trials if name not in known):
            folder = self._logdir / name
            found.append(self._put(of_run(name, load(folder), folder, group_name(self._logdir), report=True)))
            self._journal.add({"tracker": self._told, "trial": name, "id": found[-1].id})
        return found

    def _put(self, entry: Entry) -> Sent:
        """A tracker of the user's own may raise anything."""
        with reading(UsageError, f"tracker {self._told}", "cannot be logged to", "Check it."):
            return self._tracker.put(entry)
