"""The trials of a tuning on disk: what was asked, the baseline, and every trial as it ends."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from inc_tb.errors import DataError, UsageError, reading
from inc_tb.records import Trial, plural
from inc_tb.search.journal import Journal

FILE = "tuning.jsonl"
_UNTOLD = {"random_seed": 0, "minimize": "ops", "rewrite": False}
"""What older tunings do not tell, as it was for them."""


class _Given(msgspec.Struct, omit_defaults=True):
    """Where the model and the data of a tuning came from, as far as these were places."""

    model: str | None = None
    calibration: str | None = None
    samples: int | None = None


class _Line(msgspec.Struct):
    about: dict[str, Any] = {}
    given: _Given = msgspec.field(default_factory=_Given)
    key: str = ""
    trial: Trial | None = None
    baseline: float | None = None
    objectives: dict[str, float] = {}
    """Of fp32, beside its accuracy."""
    saved: str = ""


def _read(line: dict[str, Any], path: Path) -> _Line:
    with reading(DataError, path, "is damaged", "Start anew with another --logdir."):
        found = msgspec.convert(line, _Line)
        if found.trial is not None and not found.key:
            raise ValueError("a trial without a key")
    return found


class History:
    """`about` is what must be the same when a tuning goes on; `given` is where its model and data came from."""

    def __init__(self, logdir: Path, about: Mapping[str, Any], given: Mapping[str, Any], *, resume: bool) -> None:
        self._journal = Journal(logdir / FILE)
        lines = [_read(line, logdir / FILE) for line in self._journal]
        asked = msgspec.json.decode(msgspec.json.encode({"version": 1, **about}))
        self._header: dict[str, Any] | None = None
        if not lines:
            there = sorted(path.name for path in logdir.glob("trial-*"))
            if there and not (logdir / FILE).exists():
                raise UsageError(
                    f"{logdir} holds runs already that a tuning would replace ({there[0]}). Give another --logdir."
                )
            self._header = {"about": asked, "given": dict(given)}
        elif not resume:
            trials = plural(sum(line.trial is not None for line in lines), "trial")
            raise UsageError(
                f"{logdir} holds a tuning with {trials} already. Go on with it with --resume (resume=True), or "
                "give another --logdir."
            )
        elif {**_UNTOLD, **(before := lines[0].about)} != {**_UNTOLD, **asked}:
            before = {**_UNTOLD, **before}
            differs = [name for name in asked if before.get(name) != asked[name]]
            raise UsageError(
                f"{logdir} holds a tuning that differs in {' and '.join(differs)}; expected the same as before. "
                "Give the same arguments to resume it, or another --logdir."
            )
        self._trials = {line.key: line.trial for line in lines if line.trial is not None}
        self.baseline: float | None = next((line.baseline for line in lines if line.baseline is not None), None)
        self.baseline_objectives = next((line.objectives for line in lines if line.baseline is not None), {})
        self.saved = next((line.saved for line in reversed(lines) if line.saved), "")

    def trial(self, key: str) -> Trial | None:
        return self._trials.get(key)

    def set_baseline(self, accuracy: float, objectives: Mapping[str, float]) -> None:
        self.baseline, self.baseline_objectives = accuracy, dict(objectives)
        if self._header is not None:
            self._journal.add(self._header)
            self._header = None
        self._journal.add({"baseline": accuracy, "objectives": self.baseline_objectives})

    def next_name(self) -> str:
        return f"trial-{len(self._trials) + 1:03d}"

    def mark_saved(self, name: str) -> None:
        """That the best model on disk is this trial's."""
        self.saved = name
        self._journal.add({"saved": name})

    def add(self, key: str, trial: Trial) -> None:
        self._trials[key] = trial
        self._journal.add({"key": key, "trial": msgspec.to_builtins(trial)})


def find_trial(logdir: Path, name: str) -> tuple[Trial, dict[str, Any]]:
    """A trial of a tuning by its name, and where the tuning's model and data came from."""
    lines = [_read(line, logdir / FILE) for line in Journal(logdir / FILE)]
    if not lines:
        raise DataError(f"{logdir}: holds no tuning; expected a folder that inc-tb tune has written ({FILE}).")
    trials = {line.trial.name: line.trial for line in lines if line.trial is not None}
    if name not in trials:
        close = difflib.get_close_matches(name, trials, n=3) or list(trials)[-3:]
        raise UsageError(
            f"{name}: no such trial in {logdir}; expected one of its {len(trials)}, such as {', '.join(close)}."
        )
    return trials[name], msgspec.to_builtins(lines[0].given)
