"""What comes of a file or folder of another tool: the runs that are logged of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.profiling.profile import Profile
from inc_tb.records import Trial, short_repr


@dataclass
class ImportedRun:
    """What becomes one run: a trial with what is known of its ops, a diagnosis without one, or a profile."""

    __repr__ = short_repr

    name: str
    trial: Trial | None = None
    profile: Profile | None = None
    has_tensors: bool = False
    """Whether more is known of its ops than how they were configured."""
    make: Callable[[], Diagnosis | None] = lambda: None

    @cached_property
    def diagnosis(self) -> Diagnosis | None:
        """Made when it is asked for: of a long tuning only that of a new trial is."""
        return self.make()


@dataclass
class Imported:
    """One workspace, log or trace."""

    __repr__ = short_repr

    name: str
    source: Path
    runs: list[ImportedRun] = field(default_factory=list)
    ops: int = 0
    """That Neural Compressor could quantize; in a profile those that were timed."""
    baseline: float | None = None
    best: float | None = None
    """The accuracy of the best trial that meets the goal, as Neural Compressor has it."""
    notes: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    """Of the notes, those about files of it that cannot be read."""

    @property
    def trials(self) -> list[Trial]:
        return [run.trial for run in self.runs if run.trial is not None]

    def note_unread(self, reasons: Iterable[str]) -> None:
        told = list(reasons)
        self.notes += told
        self.unread += told

    def to_json(self) -> dict[str, Any]:
        """What `inc-tb import --json` prints of it."""
        told = {"name": self.name, "source": str(self.source), "trials": len(self.trials), "ops": self.ops}
        return {**told, "baseline": self.baseline, "best": self.best, "notes": self.notes}
