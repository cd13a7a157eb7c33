"""The card of a run that was read back."""

from __future__ import annotations

from pathlib import Path

from inc_tb.records import brief
from inc_tb.show.cards.diagnoses import diagnosis_parts, models
from inc_tb.show.cards.pieces import Html, card, line, place, tag, verdict
from inc_tb.show.cards.profiles import profile_parts
from inc_tb.show.cards.trials import trial_line
from inc_tb.store.reader import Run


def run_card(run: Run) -> str:
    """What is newest of each kind."""
    trial, profile, folder = run.trial, run.profile, Path(run.name)
    parts: list[Html] = [trial_line(trial)] if trial is not None else []
    view = "" if run.diagnoses else "trials"
    if run.diagnoses:
        parts += [
            line(tag("strong", "Diagnosis"), " · ", models(run.diagnosis)),
            *diagnosis_parts(run.diagnosis, "run"),
        ]
        view = "suggestions" if run.suggestions else ""
    if profile is not None:
        parts += [line(tag("strong", "Profile")), *profile_parts(profile)]
        view = view if run.diagnoses else "profile"
    if not parts:
        parts = [verdict("watch", "The run holds no diagnosis, no trial and no profile.")]
    return card("Run", brief(run.name, 120), *parts, place(folder.parent, view, folder.name))
