"""Diagnoses and trials for the terminal."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table

from inc_tb.diagnosis import Diagnosis
from inc_tb.errors import UsageError
from inc_tb.records import ProfileRow, Suggestion, Trial, listed
from inc_tb.simulation import Comparison
from inc_tb.timing import Profile, speedup
from inc_tb.tune import Tuned

ACTIVATION_COLUMNS = (
    "verdict", "sensitivity", "added_sqnr_db", "arrived_sqnr_db", "total_sqnr_db", "a_min", "a_max", "a_rmse_lsb",
    "a_clipped", "a_channel_ratio", "a_mse", "type",
)  # fmt: skip
WEIGHT_COLUMNS = ("w_sqnr_db", "w_min", "w_max", "w_mean", "w_std", "w_var", "w_channel_ratio", "w_mse", "weight_dtype")
_COLUMN_WIDTH = 11
_NAME_WIDTH = 24
_TYPE_WIDTH = 18
_SLOWED = 0.15
"""By a profiler, as a share; more is worth a word."""
_STYLES = {"bad": "bold red", "watch": "yellow", "ok": "green"}


def show_diagnosis(console: Console, diagnosis: Diagnosis, *, sort: str = "added_sqnr_db", top: int = 10) -> None:
    check_column(diagnosis.ops, sort)
    weight_sort = sort if sort.startswith("w_") else "w_sqnr_db"
    activation_sort = "added_sqnr_db" if sort.startswith("w_") else sort
    _show_table(console, diagnosis, "Activations summary", ACTIVATION_COLUMNS, activation_sort, top)
    _show_table(console, diagnosis, "Weights summary", WEIGHT_COLUMNS, weight_sort, top)
    _show_missing(console, diagnosis, top)
    for note in diagnosis.notes:
        console.print(f"[yellow]note:[/] {escape(note)}", highlight=False)
    _show_suggestions(console, diagnosis)


def _show_suggestions(console: Console, diagnosis: Diagnosis, top: int = 5) -> None:
    suggestions = diagnosis.suggestions
    if not suggestions:
        why = "no op adds more error than int8 usually does" if diagnosis.is_measured else "no op could be measured"
        console.print(f"[{'green' if diagnosis.is_measured else 'yellow'}]No suggestions:[/] {why}.\n")
        return
    console.print(f"[bold]Suggestions[/] ({len(suggestions)}, worst first)")
    for s in suggestions[:top]:
        console.print(f"[bold]{s.rank}. {s.rule.replace('_', ' ')}[/]: {escape(s.because)}.", highlight=False)
        for effect in (e for e in s.effects if e.basis == "measured"):
            value = f"{effect.value:.1%}" if effect.unit == "share" else f"{effect.value:,.1f} {effect.unit}"
            console.print(f"   measured: {value} {effect.label}", highlight=False)
        console.print(f"   keep in fp32: [bold]{escape(listed(s.ops))}[/]", highlight=False)
        console.print(Padding(Syntax(s.recipe, "python", word_wrap=True, background_color="default"), (0, 0, 0, 3)))
    if len(suggestions) > top:
        console.print(f"   and {len(suggestions) - top} more in the log and with --json")
    console.print()


def show_trials(console: Console, trials: Sequence[Trial]) -> None:
    table = Table(title="Trials", title_justify="left", title_style="bold", header_style="bold")
    objectives = list(dict.fromkeys(name for trial in trials for name in trial.objectives))
    for name in ("trial", "accuracy", "drop", *objectives, "kept in fp32"):
        table.add_column(name, justify="left" if name in ("trial", "kept in fp32") else "right")
    for trial in trials:
        others = [f"{trial.objectives[name]:.4g}" if name in trial.objectives else "" for name in objectives]
        accuracy = "" if trial.accuracy is None else f"{trial.accuracy:.4f}"
        drop = "" if trial.drop is None else f"[{_style(trial)}]{trial.drop:+.4f}[/]"
        table.add_row(escape(trial.name), accuracy, drop, *others, escape(listed(trial.fallback)))
    console.print(table)


def _style(trial: Trial) -> str:
    if trial.accuracy is None or trial.target is None:
        return "white"
    is_met = trial.accuracy <= trial.target if trial.lower_is_better else trial.accuracy >= trial.target
    return "green" if is_met else "red"


def show_trial(console: Console, trial: Trial, is_best: bool) -> None:
    """One line as soon as a trial has ended."""
    accuracy = "no accuracy" if trial.accuracy is None else f"{trial.accuracy:.4f}"
    drop = "" if trial.drop is None else f" (drop {trial.drop:+.4f})"
    kept = f"{len(trial.fallback) or 'no'} op{'s' * (len(trial.fallback) > 1)} in fp32"
    told = [kept] if trial.fallback or trial.config else []  # a log alone says neither
    told += [f"{trial.wall_s:.1f} s"] if trial.wall_s is not None else []
    note = f"  [dim]{escape('; '.join(trial.notes))}[/]" if trial.notes else ""
    mark = " [green]best so far[/]" if is_best and trial.accuracy is not None else ""
    console.print(f"{escape(trial.name)}  {accuracy}{drop}  {', '.join(told)}{mark}{note}", highlight=False)


def show_tuned(console: Console, tuned: Tuned) -> None:
    console.print()
    show_trials(console, tuned.trials)
    show_comparison(console, tuned.comparison)
    best = tuned.best
    style, verdict = ("green", "The criterion holds") if tuned.met else ("red", "The criterion does not hold")
    console.print(
        f"[{style}]{verdict}[/]: {escape(best.name)} has {_number(best.accuracy)} (fp32 {_number(tuned.baseline)}, "
        f"wanted {_number(tuned.target)}). {escape(tuned.reason[:1].upper() + tuned.reason[1:])}.",
        highlight=False,
    )
    settings = ", ".join(f"{name}={value}" for name, value in best.config.items() if value not in ("", []))
    console.print(f"Settings: {escape(settings)}", highlight=False)
    console.print(f"Kept in fp32: [bold]{escape(listed(best.fallback, 12)) or 'nothing'}[/]", highlight=False)
    if tuned.recipe:
        console.print(Padding(Syntax(tuned.recipe, "python", word_wrap=True, background_color="default"), (0, 0, 0, 3)))
    where = f"The model is [bold]{escape(str(tuned.model))}[/]. " if tuned.model.exists() else ""
    console.print(
        f"{where}{tuned.quantizations} quantizations, {tuned.evaluations} evaluations, {tuned.simulations} subsets "
        f"simulated, {tuned.wall_s:.1f} s.",
        highlight=False,
    )


def show_profile(console: Console, profile: Profile, top: int = 20) -> None:
    """Nodes sorted by total execution time, with share and cumulative share; as many columns as fit."""
    sides, rows = profile.sides, profile.by_time()
    last = sides[-1]
    console.print(
        f"[bold]Profiling summary[/]: {min(top, len(rows))} of {len(rows)} rows, by time in {last}", highlight=False
    )
    cells: dict[str, Callable[[ProfileRow, float, float], str]] = {}
    if "fp32" in sides:
        cells["fp32"] = lambda row, _, __: _us(row.fp32_us)
    if "int8" in sides:
        cells["int8"] = lambda row, _, __: _us(row.int8_us)
    if len(sides) > 1:
        cells["change"] = lambda row, _, __: _gap(row)
    cells["share"] = lambda _, share, __: f"{share:.1%}"
    cells["cumulative"] = lambda _, __, upto: f"{upto:.1%}"
    if last == "int8":
        cells["conversion"] = lambda row, _, __: _us(row.convert_us or None)
    cells[f"{last} p95"] = lambda row, _, __: _us(getattr(row, f"{last}_p95_us"))
    room = max(5, (console.width - _NAME_WIDTH - _TYPE_WIDTH) // _COLUMN_WIDTH)
    shown = dict(list(cells.items())[:room])
    table = Table(header_style="bold", padding=(0, 1, 0, 0), box=None)
    name_width = max(_NAME_WIDTH, console.width - len(shown) * (_COLUMN_WIDTH + 1) - _TYPE_WIDTH - 2)
    table.add_column("op", no_wrap=True, max_width=name_width)
    table.add_column("type", no_wrap=True, max_width=_TYPE_WIDTH)
    for label in shown:
        unit = "" if label in ("share", "cumulative") else "\n[dim]µs[/]"
        table.add_column(f"{label}{unit}", justify="right", no_wrap=True)
    for row, share, upto in rows[:top]:
        name = f"{row.op} +{len(row.ops)}" if row.ops else row.op
        op = escape(_cut(name, name_width)) if row.op else "[dim]outside of all ops[/]"
        table.add_row(op, escape(row.type), *(cell(row, share, upto) for cell in shown.values()))
    console.print(table, "")
    _show_totals(console, profile, sides)
    for note in profile.notes:
        console.print(f"[yellow]note:[/] {escape(note)}", highlight=False)
    console.print()


def _show_totals(console: Console, profile: Profile, sides: Sequence[str]) -> None:
    total = profile.total
    for side in sides:
        median, p95 = getattr(total, f"{side}_us"), getattr(total, f"{side}_p95_us")
        if median is None:
            continue
        rate = f", {profile.samples * 1e6 / median:,.0f} samples/s" if profile.samples and median else ""
        slower = f"; the profiler adds {profile.overhead[side]:.0%}" if side in profile.overhead else ""
        slower += ", so times of short ops are rough" if profile.overhead.get(side, 0.0) > _SLOWED else ""
        parts = f"; ops take {profile.accounted[side]:.0%} of it" if side in profile.accounted else ""
        tail = "" if p95 is None else f" (p95 {_us(p95)})"
        console.print(f"{side}: {_us(median)} µs a run{tail}{rate}{parts}{slower}", highlight=False)
    if total.differs is not None and total.low_us is not None and total.high_us is not None:
        console.print(_verdict(total), highlight=False)


def show_prices(console: Console, suggestions: Sequence[Suggestion]) -> None:
    """What each suggestion costs or gains in time."""
    for s in suggestions:
        for effect in (e for e in s.effects if e.unit == "µs"):
            verb, style = ("saves", "green") if effect.kind == "recovers" else ("costs", "yellow")
            price = f"[{style}]{verb} {_us(effect.value)} µs a run[/]" if effect.value else "takes as long"
            console.print(
                f"Suggestion {s.rank}, {s.rule.replace('_', ' ')}: keeping {escape(listed(s.ops))} in fp32 {price} "
                f"({escape(effect.how)}).",
                highlight=False,
            )


def _verdict(total: ProfileRow) -> str:
    interval = f"int8 - fp32 is between {total.low_us:+.1f} and {total.high_us:+.1f} µs (95 %)"
    if not total.differs:
        return f"[yellow]The two models cannot be told apart[/]: {interval}."
    ratio = speedup(total) or 1.0
    if (ratio < 1) != ((total.difference_us or 0.0) > 0):  # medians and undisturbed runs disagree
        return f"[yellow]int8 and fp32 take about as long[/]: {interval}."
    word = (
        f"[green]int8 is {ratio:.2f} times as fast[/]"
        if ratio >= 1
        else f"[red]int8 is {1 / ratio:.2f} times slower[/]"
    )
    return f"{word}: {interval}."


def _us(value: float | None) -> str:
    return "[dim]–[/]" if value is None else f"{value:,.1f}"


def _gap(row: ProfileRow) -> str:
    if row.difference_us is None:
        return "[dim]–[/]"
    if not row.differs:
        return "[dim]noise[/]"
    return f"[{'red' if row.difference_us > 0 else 'green'}]{row.difference_us:+,.1f}[/]"


def show_comparison(console: Console, comparison: Mapping[str, Comparison]) -> None:
    """fp32, simulated and real side by side; nothing where nothing was simulated."""
    if not comparison:
        return
    table = Table(title="Output against fp32", title_justify="left", title_style="bold", header_style="bold")
    table.add_column("")
    for form in comparison:
        table.add_column(form, justify="right")
    rows = {"error": "error / signal", "agreement": "same top-1", "divergence": "KL, nats"}
    for name, label in rows.items():
        values = [getattr(found, name) for found in comparison.values()]
        if any(value is not None for value in values):
            table.add_row(label, *("–" if value is None else f"{value:.4g}" for value in values))
    console.print(table)


def _number(value: float | None) -> str:
    return "no number" if value is None else f"{value:.6g}"


def check_column(columns: Collection[str], name: str) -> None:
    if name not in columns:
        close = difflib.get_close_matches(name, columns, n=3) or list(columns)
        raise UsageError(
            f"--sort {name}: no such column; expected a column of the op table such as {', '.join(close)}."
        )


def _show_table(
    console: Console, diagnosis: Diagnosis, title: str, columns: Sequence[str], sort: str, top: int
) -> None:
    """As many of the columns as fit, the one that is sorted by among them."""
    room = max(2, (console.width - _NAME_WIDTH) // _COLUMN_WIDTH)
    empty = {"sensitivity"} if np.isnan(diagnosis.ops["sensitivity"]).all() else set()
    chosen = [c for c in columns if c != sort and c not in empty][: room - 1]
    kept = [c for c in columns if c in chosen or c == sort]
    kept += [] if sort in (*kept, "name") else [sort]
    measured = "w_mse" if columns is WEIGHT_COLUMNS else "a_mse"
    rows = [i for i in diagnosis.worst(sort=sort) if not math.isnan(diagnosis.ops[measured][i])]
    if not rows:
        return
    by = diagnosis.ops.column(sort)
    order = "worst first by" if by.better or sort == "verdict" else "by"
    console.print(f"[bold]{title}[/]: {min(top, len(rows))} of {len(rows)} ops, {order} {by.label}", highlight=False)
    table = Table(header_style="bold", padding=(0, 1, 0, 0), box=None)
    name_width = max(_NAME_WIDTH, console.width - len(kept) * (_COLUMN_WIDTH + 1) - 1)
    table.add_column("op", no_wrap=True, max_width=name_width)
    for column in kept:
        spec = diagnosis.ops.column(column)
        unit = f"\n[dim]{spec.unit}[/]" if spec.unit else ""
        table.add_column(f"{spec.label}{unit}", justify="right", max_width=_COLUMN_WIDTH)
    for i in rows[:top]:
        name = _cut(_shown_name(diagnosis, i), name_width)
        table.add_row(escape(name), *(_cell(diagnosis, column, i) for column in kept))
    console.print(table, "")


def _shown_name(diagnosis: Diagnosis, row: int) -> str:
    """With the module of the user's own model beside a name that an exporter made up."""
    name = str(diagnosis.ops["name"][row])
    module = str(diagnosis.ops["module"][row]) if "module" in diagnosis.ops else ""
    return name if not module or module in name else f"{name} ({module})"


def _cell(diagnosis: Diagnosis, column: str, row: int) -> str:
    value = diagnosis.ops[column][row]
    if isinstance(value, str):
        return f"[{_STYLES[value]}]{value}[/]" if value in _STYLES else escape(value)
    if math.isnan(value):
        return "[dim]–[/]"
    spec = diagnosis.ops.column(column)
    text = f"{value:.1f}" if spec.unit == "dB" else f"{value:.2%}" if spec.unit == "share" else f"{value:.4g}"
    if spec.normal is None:
        return text
    low, high = spec.normal
    outside = (low is not None and value < low) or (high is not None and value > high)
    return f"[yellow]{text}[/]" if outside else text


def _cut(name: str, width: int) -> str:
    """The end of a name tells more than its beginning."""
    return name if len(name) <= width else "…" + name[-(width - 1) :]


def _show_missing(console: Console, diagnosis: Diagnosis, top: int) -> None:
    missing = diagnosis.missing
    if not missing:
        return
    console.print(f"[yellow]{len(missing)} ops could not be compared[/]", highlight=False)
    for name, reason in list(missing.items())[:top]:
        console.print(f"   {escape(name)}: {escape(reason)}", highlight=False)
    rest = len(missing) - top
    console.print(f"   and {rest} more in the log and with --json\n" if rest > 0 else "", highlight=False)
