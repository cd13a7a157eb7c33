"""What came of an attempt, wherever it was carried out, and its run in TensorBoard."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.profiling.profile import Profile
from inc_tb.records import Trial


class Tried(NamedTuple):
    trial: Trial
    """Without a name."""
    diagnosis: Diagnosis | None = None
    profile: Profile | None = None

    def logged(self, folder: Path) -> Trial:
        """As the run of this folder, after which the trial is called."""
        from inc_tb.store.writer import SummaryWriter

        self.trial.name = folder.name
        if folder.exists():  # of a trial that was cut off before the history had it
            shutil.rmtree(folder)
        with SummaryWriter(folder, whole=True) as writer:
            if self.diagnosis is not None:
                writer.add_diagnosis(self.diagnosis if self.profile is None else self.profile.join(self.diagnosis))
            if self.profile is not None:
                writer.add_profile(self.profile)
            writer.add_trial(self.trial)
        return self.trial
