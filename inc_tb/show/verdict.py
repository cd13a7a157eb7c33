"""What has come of it in five lines at most: what is lost, where, why, what cures it, what to do next.

Terminal, Markdown and cards say the same. Each line is known from what was measured, or it is not there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.console import Console
from rich.text import Text

from inc_tb.advise.configs import is_setting, recipes_for
from inc_tb.advise.effects import share_text
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.profiling.profile import Profile, speedup
from inc_tb.records import Effect, Suggestion, Trial, listed, plural
from inc_tb.search.comparison import Comparison
from inc_tb.show.grid import is_free, listed_within
from inc_tb.show.names import shortened
from inc_tb.show.quantities import duration, number, quantity, title

if TYPE_CHECKING:
    from inc_tb.tuning.loop import Tuned

_LABEL_WIDTH = 6
_NAME_WIDTHS = (32, 24, 16, 12)
_CLAUSES = (", ", "; ", " (", ". ")
_NO_SHARE = 0.0005
"""What would be written as 0.0 %."""
_STYLES = {"ok": "bold green", "met": "bold green", "missed": "bold red", "lost": "bold red"}


class Line(NamedTuple):
    label: str
    """lost, where, why, cure, next; or trial, time."""
    text: str
    names: Sequence[str] = ()
    """Those in the text, which give way where there is little room."""


def verdict_of_diagnosis(
    diagnosis: Diagnosis, comparison: Mapping[str, Comparison] | None = None, next_step: str = ""
) -> list[Line]:
    """`comparison` is what a probe has seen at the output."""
    cure = diagnosis.cure
    lines = [Line("lost", _lost(diagnosis, comparison or {}))]
    if cure is not None:
        lines += [
            Line("where", where(diagnosis, cure), cure.ops),
            Line("why", f"{cure.rule.replace('_', ' ')}: {cure.because}", diagnosis.ops["name"].tolist()),
            Line("cure", _cure(diagnosis, cure)),
        ]  # fmt: skip
    elif diagnosis.is_healthy:
        lines = [Line("ok", f"{diagnosis.why_no_suggestion}; {lines[0].text}"), *_faster(diagnosis)]
    else:
        lines += [Line("why", diagnosis.why_no_suggestion), *_faster(diagnosis)]
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
        count = plural(len(slower), "op takes", "ops take")
        lines.append(Line("why", f"{count} {lost} longer in the quantized model: {named}"))
    return [line for line in [*lines, Line("next", next_step)] if line.text]


def verdict_of_tuning(tuned: Tuned) -> list[Line]:
    """Whether the criterion holds, with what, what that costs, and where the model is: where to go on from."""
    best = tuned.best
    holds = "The criterion holds" if tuned.met else "The criterion does not hold"
    figures = f"{best.name} has {figure(best.accuracy)} (fp32 {figure(tuned.baseline)}, wanted {figure(tuned.target)})"
    costs = [_cost(best, name) for name in best.objectives]
    costs += [f"{best.int8_macs:.0%} of the multiplications in int8"] if best.int8_macs is not None else []
    costs += ["int8 does not pay"] if tuned.int8_pays is False else []
    lines = [
        Line("met" if tuned.met else "missed", f"{holds}: {figures}"),
        Line("why", tuned.reason),
        Line("kept", f"Kept in fp32: {listed(best.fallback, 12) or 'nothing'}"),
        Line("costs", ", ".join(costs)),
        Line("model", str(tuned.model) if tuned.model.exists() else ""),
    ]
    return [line for line in lines if line.text]


def _cost(trial: Trial, name: str) -> str:
    """Beside fp32's, where that was measured, too."""
    fp32 = trial.baseline_objectives.get(name)
    beside = f" (fp32 {quantity(name, fp32)})" if fp32 is not None else ""
    return f"{title(name)} {quantity(name, trial.objectives[name])}{beside}"


def where(diagnosis: Diagnosis, suggestion: Suggestion) -> str:
    others = len(diagnosis.suggestions) - 1
    more = f" ({plural(others, 'more suggestion')} below)" if others else ""
    return f"{len(suggestion.ops)} of {plural(diagnosis.ops.count, 'op')}: {listed(suggestion.ops, 3)}{more}"


def action(diagnosis: Diagnosis, suggestion: Suggestion, width: int | None = None) -> str:
    """What to do, action first; names in so many characters."""
    if is_setting(diagnosis.framework, diagnosis.ops, suggestion):
        tool = next(iter(suggestion.recipes), "")
        labels = [f.recipe.label for f in recipes_for(diagnosis.framework, diagnosis.ops) if f.recipe.tool == tool]
        return f"set {labels[0]}" if labels else "change a setting"
    return f"keep {listed_within(suggestion.ops, width)} in fp32"


def _faster(diagnosis: Diagnosis) -> list[Line]:
    """Where nothing is to be cured: what would save time all the same."""
    first = next(iter(diagnosis.suggestions), None)
    return [] if first is None else [Line("faster", _cure(diagnosis, first, action(diagnosis, first, 36)), first.ops)]


def _cure(diagnosis: Diagnosis, suggestion: Suggestion, keep: str = "") -> str:
    """The line above has the names."""
    if is_setting(diagnosis.framework, diagnosis.ops, suggestion):
        guess = next((e for e in suggestion.effects if e.what == "error" and e.basis == "estimated"), None)
        # One clause: where there is little room it goes as a whole, and no estimate stays that is not called so.
        told = f", which by estimate {effect_text(guess)}" if guess is not None else ""
        return action(diagnosis, suggestion) + told
    found = measured(suggestion)
    gain = f": {', '.join(found)}" if found else ""
    return (keep or f"keep {'it' if len(suggestion.ops) == 1 else 'them'} in fp32") + gain


def short_reason(diagnosis: Diagnosis, row: int) -> str:
    """Why an op is judged so; where a suggestion says it, which."""
    told = str(diagnosis.ops["reason"][row]) if "reason" in diagnosis.ops else ""
    ranks = [s.rank for s in diagnosis.suggestions if told and s.because.startswith(told)]
    return f"suggestion {ranks[0]}" if ranks else told


def measured(suggestion: Suggestion) -> list[str]:
    """What following it was seen to give and to cost."""
    return [effect_text(effect) for effect in suggestion.effects if effect.basis == "measured"]


def effect_text(effect: Effect) -> str:
    if effect.what in ("error", "noise"):
        of = "the error" if effect.what == "error" else "the added noise"
        if abs(effect.value) < _NO_SHARE:
            return f"removes none of {of}"
        is_gain = effect.value > 0
        return f"removes {share_text(effect.value)} of {of}" if is_gain else f"adds {-effect.value:.1%} to {of}"
    if effect.what == "time":
        return f"{'saves' if effect.kind == 'recovers' else 'costs'} {duration(effect.value)} a run"
    return f"{number(effect.value)} {effect.unit} {effect.label}"


def trial_text(trial: Trial) -> str:
    accuracy = "no accuracy" if trial.accuracy is None else f"accuracy {trial.accuracy:.4f}"
    if trial.drop is None or trial.baseline is None:
        return f"{trial.name}: {accuracy}"
    return f"{trial.name}: {accuracy}, fp32 {trial.baseline:.4f} (drop {trial.drop:.4f})"


def show_verdict(console: Console, lines: list[Line]) -> None:
    for label, told, names in lines:
        head = Text(label.ljust(_LABEL_WIDTH), _STYLES.get(label, "bold"))
        text = " ".join(told.split())
        if not is_free(console):
            text = _within(text, console.width - _LABEL_WIDTH - 1, names)
        fitted_line(console, head.append(f" {text}", "default not bold"))
    console.print()


def _within(text: str, width: int, names: Sequence[str]) -> str:
    """Names give way first, then whole clauses from the end, as far as the first one has room."""
    mine = sorted((name for name in names if name in text), key=len, reverse=True)
    for room in _NAME_WIDTHS:
        if len(text) <= width:
            return text
        for name, short in zip(mine, shortened(mine, room), strict=True):
            text = text.replace(name, short)
        mine = shortened(mine, room)
    while len(text) > width and (cut := max(text.rfind(mark) for mark in _CLAUSES)) > width // 3:
        text = text[:cut]
    return text


def fitted_line(console: Console, text: Text) -> None:
    """One line of the terminal, whatever that cuts; in files and pipes all of it."""
    if not is_free(console):
        text.truncate(console.width, overflow="ellipsis")
    console.print(text, no_wrap=True, overflow="ignore", crop=False, highlight=False)


def _lost(diagnosis: Diagnosis, comparison: Mapping[str, Comparison]) -> str:
    if diagnosis.tokens is not None:
        told = f"KL divergence {number(diagnosis.tokens.kl, 3)} nats a token"
        return f"{told}, the same first choice {diagnosis.tokens.same_top1:.1%}"
    real = comparison.get("real")
    if real is not None:
        same = "" if real.agreement is None else f"; {real.agreement:.1%} of the decisions are the same"
        return f"error / signal {real.error:.3g} at the output{same}"
    totals = diagnosis.ops["total_sqnr_db"] if "total_sqnr_db" in diagnosis.ops else np.array([])
    known = np.flatnonzero(~np.isnan(totals))
    if not known.size:
        return diagnosis.verdict
    last = str(diagnosis.ops["name"][known[-1]])
    return f"{totals[known[-1]]:.1f} dB signal to noise are left at {last}, the last op compared"


def figure(value: float | None) -> str:
    return "no number" if value is None else f"{value:.6g}"
