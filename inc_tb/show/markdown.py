"""A report for pull requests, in Markdown: verdict, first cure with its config, worst ops, trials."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.profiling.profile import Profile
from inc_tb.records import Trial, listed, plural
from inc_tb.show.quantities import quantity, title
from inc_tb.show.verdict import Line, short_reason, trial_text, verdict_of_diagnosis, verdict_of_profile
from inc_tb.store.markdown import code, plain
from inc_tb.store.reader import Run, load

_WORST_OPS = 10
_TRIALS = 20
_COLUMNS = ("type", "sensitivity", "added_sqnr_db", "total_sqnr_db", "verdict", "reason")


def report_text(folders: Mapping[str, Path]) -> str:
    """Of one run, or of the best of several, with the trials of all."""
    runs = {name: load(folder) for name, folder in folders.items()}
    trials = [run.trial for run in runs.values() if run.trial is not None]
    name, run = _told(runs)
    lines = [f"## Quantization: {plain(name)}", ""]
    if run.trial is not None:
        lines += _told_as([Line("trial", trial_text(run.trial))])
    if run.diagnoses:
        lines += _diagnosis(run.diagnosis)
    if run.profile is not None:
        lines += _profile(run.profile)
    if len(trials) > 1:
        lines += _trials(trials)
    return "\n".join([*lines, ""]).replace("\n\n\n", "\n\n")


def _told(runs: Mapping[str, Run]) -> tuple[str, Run]:
    """The run to speak of: of the best trial, else the first with a diagnosis, else the first."""
    tried = {name: run.trial for name, run in runs.items() if run.trial is not None and run.trial.accuracy is not None}
    if tried:
        sign = -1 if next(iter(tried.values())).lower_is_better else 1
        best = max(tried, key=lambda name: (_is_met(tried[name]), sign * (tried[name].accuracy or 0.0)))
        return best, runs[best]
    name = next((name for name, run in runs.items() if run.diagnoses), next(iter(runs)))
    return name, runs[name]


def _is_met(trial: Trial) -> bool:
    if trial.accuracy is None or trial.target is None:
        return False
    return trial.accuracy <= trial.target if trial.lower_is_better else trial.accuracy >= trial.target


def _told_as(verdict: Sequence[Line]) -> list[str]:
    return [f"* **{line.label}** {plain(' '.join(line.text.split()))}" for line in verdict]


def _diagnosis(diagnosis: Diagnosis) -> list[str]:
    about = f"{code(diagnosis.quantized)} against {code(diagnosis.reference)}, {diagnosis.counts}"
    lines = [*_told_as(verdict_of_diagnosis(diagnosis)), "", about, ""]
    first = diagnosis.cure
    if first is not None:
        lines += _folded(f"Config of the first suggestion, for {next(iter(first.recipes), '')}", _fenced(first.recipe))
    lines += _worst(diagnosis)
    return [*lines, *(f"* note: {plain(note)}" for note in diagnosis.notes), ""]


def _worst(diagnosis: Diagnosis) -> list[str]:
    by, ops = diagnosis.ranked_by, diagnosis.ops
    if by is None:
        return []
    rows = [row for row in diagnosis.worst(_WORST_OPS, sort=by) if not np.isnan(ops[by][row])]
    shown = [c for c in _COLUMNS if c in ops and (ops.column(c).type == "text" or not np.isnan(ops[c][rows]).all())]
    cells = [[code(str(ops["name"][row])), *(_cell(diagnosis, column, row) for column in shown)] for row in rows]
    labels = [ops.column(column).label or column for column in shown]
    count = f"the worst {len(rows)} of {plural(ops.count, 'op')} by {ops.column(by).label}"
    return _folded(f"Worst ops: {count}", _table(["op", *labels], cells))


def _cell(diagnosis: Diagnosis, column: str, row: int) -> str:
    value = short_reason(diagnosis, row) if column == "reason" else diagnosis.ops[column][row]
    if isinstance(value, str):
        return plain(" ".join(value.split()))
    return "" if np.isnan(value) else diagnosis.ops.column(column).figure(value)


def _profile(profile: Profile) -> list[str]:
    return ["**Time**", "", *_told_as(verdict_of_profile(profile)), ""]


def _trials(trials: Sequence[Trial]) -> list[str]:
    """The best first, as far as they go."""
    known = [t for t in trials if t.accuracy is not None]
    known.sort(key=lambda t: (t.accuracy or 0.0) if t.lower_is_better else -(t.accuracy or 0.0))
    shown = known[:_TRIALS]
    names = list(dict.fromkeys(name for trial in shown for name in trial.objectives))
    rows = [
        [
            code(t.name), f"{t.accuracy:.4f}", "" if t.drop is None else f"{t.drop:+.4f}",
            *(quantity(name, t.objectives[name]) if name in t.objectives else "" for name in names),
            plain(listed(t.fallback, 3)),
        ]
        for t in shown
    ]  # fmt: skip
    count = f"the best {len(shown)} of {plural(len(trials), 'trial')}" if len(shown) < len(trials) else "best first"
    heads = ["trial", "accuracy", "drop", *(plain(title(name)) for name in names), "kept in fp32"]
    return ["", f"### Trials, {count}", "", *_table(heads, rows), ""]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows)]


def _folded(title: str, inside: Sequence[str]) -> list[str]:
    """Empty lines around, or what is inside is not read as Markdown."""
    return ["<details>", f"<summary>{plain(title)}</summary>", "", *inside, "", "</details>", ""]


def _fenced(text: str) -> list[str]:
    """Between more backticks than there are in it."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence, *text.rstrip("\n").split("\n"), fence]
