"""What has come of it in five lines at most: what is lost, where, why, what cures it, what to do next.

Terminal, Markdown and cards say the same. Each line is known from what was measured, or it is not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.text import Text

from inc_tb.advise.configs import is_setting, recipes_for
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.profiling.profile import Profile, speedup
from inc_tb.records import Effect, Suggestion, Trial, listed, plural
from inc_tb.search.simulation import Comparison
from inc_tb.show.quantities import duration

_LABEL_WIDTH = 6


class Line(NamedTuple):
    label: str
    """lost, where, why, cure, next; or trial, time."""
    text: str


def verdict_of_diagnosis(
    diagnosis: Diagnosis, comparison: Mapping[str, Comparison] | None = None, next_step: str = ""
) -> list[Line]:
    """`comparison` is what a probe has seen at the output."""
    first = diagnosis.suggestions[0] if diagnosis.suggestions else None
    lines = [Line("lost", _lost(diagnosis, comparison or {}))]
    if first is not None:
        lines += [
            Line("where", where(diagnosis, first)), Line("why", f"{first.rule.replace('_', ' ')}: {first.because}"),
            Line("cure", action(diagnosis, first) + _gain(first)),
        ]  # fmt: skip
    elif diagnosis.is_healthy:
        lines = [Line("ok", f"{diagnosis.why_no_suggestion}; {lines[0].text}")]
    else:
        lines.append(Line("why", diagnosis.why_no_suggestion))
    return [line for line in [*lines, Line("next", next_step)] if line.text]


def verdict_of_profile(profile: Profile, next_step: str = "") -> list[Line]:
    """How fast, and what takes the time."""
    total, sides, rows = profile.total, profile.sides, profile.by_time()
    times = [f"{side} {duration(us)}" for side in sides if (us := getattr(total, f"{side}_us")) is not None]
    ratio = speedup(total)
    if total.differs is False:
        times.append("the two cannot be told apart")
    elif total.differs and ratio is not None:
        times.append(f"int8 is {ratio:.2f} times as fast" if ratio >= 1 else f"int8 is {1 / ratio:.2f} times slower")
    lines = [Line("time", ", ".join(times) + " a run" * (len(times) == 1))] if times else []
    if rows:
        worst = [f"{row.op or 'outside of all ops'} {share:.0%}" for row, share, _ in rows[:3]]
        lines.append(Line("where", f"{', '.join(worst)} of the time in {sides[-1]}"))
    slower = [row for row in profile.rows if row.op and row.differs and (row.difference_us or 0) > 0]
    if slower:
        slower.sort(key=lambda row: -(row.difference_us or 0))
        lost = duration(sum(row.difference_us or 0 for row in slower))
        named = listed([row.op for row in slower], 2)
        lines.append(Line("why", f"{plural(len(slower), 'op is', 'ops are')} slower in int8, by {lost}: {named}"))
    return [line for line in [*lines, Line("next", next_step)] if line.text]


def where(diagnosis: Diagnosis, suggestion: Suggestion) -> str:
    others = len(diagnosis.suggestions) - 1
    more = f"; {plural(others, 'more suggestion')}" if others else ""
    return f"{listed(suggestion.ops, 3)} ({len(suggestion.ops)} of {plural(diagnosis.ops.count, 'op')}){more}"


def action(diagnosis: Diagnosis, suggestion: Suggestion, most: int = 3) -> str:
    """What to do, action first."""
    if is_setting(diagnosis.framework, diagnosis.ops, suggestion):
        tool = next(iter(suggestion.recipes), "")
        labels = [f.recipe.label for f in recipes_for(diagnosis.framework, diagnosis.ops) if f.recipe.tool == tool]
        return f"set {labels[0]}" if labels else "change a setting"
    return f"keep {listed(suggestion.ops, most)} in fp32"


def short_reason(diagnosis: Diagnosis, row: int) -> str:
    """Why an op is judged so; where a suggestion says it, which."""
    told = str(diagnosis.ops["reason"][row]) if "reason" in diagnosis.ops else ""
    ranks = [s.rank for s in diagnosis.suggestions if told and s.because.startswith(told)]
    return f"suggestion {ranks[0]}" if ranks else told


def measured(suggestion: Suggestion) -> list[str]:
    """What following it was seen to give and to cost."""
    return [effect_text(effect) for effect in suggestion.effects if effect.basis == "measured"]


def effect_text(effect: Effect) -> str:
    value = f"{effect.value:.1%}" if effect.unit == "share" else f"{effect.value:,.1f} {effect.unit}"
    return f"{value} {effect.label}"


def trial_text(trial: Trial) -> str:
    accuracy = "no accuracy" if trial.accuracy is None else f"accuracy {trial.accuracy:.4f}"
    drop = "" if trial.drop is None or trial.baseline is None else f", fp32 {trial.baseline:.4f} ({trial.drop:+.4f})"
    return f"{trial.name}: {accuracy}{drop}"


def show_verdict(console: Console, lines: list[Line]) -> None:
    """A line of the terminal each, as far as there are lines; in files and pipes all of it."""
    is_free = console._width is None and not console.is_terminal
    for label, told in lines:
        text = Text(label.ljust(_LABEL_WIDTH), "bold").append(f" {' '.join(told.split())}", "default not bold")
        if not is_free:
            text.truncate(console.width, overflow="ellipsis")
        console.print(text, no_wrap=True, overflow="ignore", crop=False, highlight=False)
    console.print()


def _lost(diagnosis: Diagnosis, comparison: Mapping[str, Comparison]) -> str:
    real = comparison.get("real")
    if real is not None:
        same = "" if real.agreement is None else f"; {real.agreement:.1%} of the decisions are the same"
        return f"error / signal {real.error:.3g} at the output{same}"
    totals = diagnosis.ops["total_sqnr_db"] if "total_sqnr_db" in diagnosis.ops else np.array([])
    known = np.flatnonzero(~np.isnan(totals))
    if not known.size:
        return diagnosis.verdict
    last = str(diagnosis.ops["name"][known[-1]])
    return f"{totals[known[-1]]:.1f} dB signal to noise are left at {last}, the last op that was compared"


def _gain(suggestion: Suggestion) -> str:
    found = measured(suggestion)
    return f": {', '.join(found)} (measured)" if found else ""
