"""Trials: a line as each ends, a table of all, and what a tuning has found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from inc_tb.records import Trial, plural
from inc_tb.search.comparison import Comparison
from inc_tb.show.detail import Detail
from inc_tb.show.grid import Column, Lists, Name, show_grid
from inc_tb.show.profiles import show_benchmark
from inc_tb.show.quantities import quantity, title
from inc_tb.show.recipes import show_recipe
from inc_tb.show.verdict import figure, show_verdict, verdict_of_tuning
from inc_tb.tuning.objectives import LATENCY
from inc_tb.tuning.standings import FP32

if TYPE_CHECKING:
    from inc_tb.tuning.loop import Tuned

NO_GAIN = {
    True: "int8 does not pay here: no model that was tried and meets the criterion takes less time than fp32, by more "
    "than what is noise (5 %).",
    False: "int8 does not pay here: no model that was tried takes less time than fp32, by more than what is noise "
    "(5 %).",
}
"""By whether any meets the criterion."""

_MOST_TRIALS = 20


def show_trials(console: Console, trials: Sequence[Trial]) -> None:
    console.print("[bold]Trials[/]")
    objectives = list(dict.fromkeys(name for trial in trials for name in trial.objectives))
    columns = [
        Column("accuracy", "", [Text("" if t.accuracy is None else f"{t.accuracy:.4f}") for t in trials]),
        Column("drop", "", [Text("" if t.drop is None else f"{t.drop:+.4f}", _style(t)) for t in trials]),
    ]
    for name in objectives:
        cells = [Text(quantity(name, t.objectives[name]) if name in t.objectives else "") for t in trials]
        columns.append(Column(title(name), "", cells))
    kept = Lists("kept in fp32", [trial.fallback for trial in trials])
    show_grid(console, "trial", [Name(trial.name) for trial in trials], columns, kept)


def _style(trial: Trial) -> str:
    return {True: "green", False: "red", None: "white"}[trial.is_met]


def show_trial(console: Console, trial: Trial, is_best: bool) -> None:
    """One line as soon as a trial has ended."""
    accuracy = "no accuracy" if trial.accuracy is None else f"{trial.accuracy:.4f}"
    drop = "" if trial.drop is None else f" (drop {trial.drop:+.4f})"
    kept = f"{plural(len(trial.fallback), 'op') if trial.fallback else 'no op'} in fp32"
    told = [kept] if trial.fallback or trial.config else []  # a log alone says neither
    told += [f"{trial.int8_macs:.0%} of the multiplications in int8"] if trial.int8_macs is not None else []
    told += [f"{trial.objectives[LATENCY]:.3g} ms"] if LATENCY in trial.objectives else []
    told += [f"{trial.wall_s:.1f} s"] if trial.wall_s is not None else []
    note = f"  [dim]{escape('; '.join(trial.notes))}[/]" if trial.notes else ""
    mark = " [green]best so far[/]" if is_best and trial.accuracy is not None else ""
    console.print(f"{escape(trial.name)}  {accuracy}{drop}  {', '.join(told)}{mark}{note}", highlight=False)


def show_tuned(console: Console, tuned: Tuned, detail: Detail = Detail.USUAL) -> None:
    show_verdict(console, verdict_of_tuning(tuned))
    if detail is Detail.QUIET:
        return
    shown = tuned.trials if detail is Detail.VERBOSE or len(tuned.trials) <= _MOST_TRIALS else _chosen(tuned)
    show_trials(console, shown)
    if len(shown) < len(tuned.trials):
        console.print(f"The best and the last of {len(tuned.trials)}; all of them are in the log.\n", highlight=False)
    plain = tuned.all_int8
    show_comparison(console, tuned.comparison, f"all int8 ({plain.name})" if plain is not None else "all int8")
    show_choice(console, tuned)
    if tuned.benchmark:
        show_benchmark(console, tuned.benchmark, f": fp32 against {tuned.best.name} as int8")
    told = {name: value for name, value in tuned.best.config.items() if value not in ("", []) and name != "rewrites"}
    settings = ", ".join(f"{name}={value}" for name, value in told.items())
    console.print(f"Settings: {escape(settings)}", highlight=False)
    for rewrite in tuned.best.config.get("rewrites") or ():
        console.print(f"Rewritten in fp32: {escape(rewrite['because'])}", highlight=False)
    if tuned.recipe:
        show_recipe(console, tuned.recipe)
    console.print(
        f"{plural(tuned.quantizations, 'quantization')}, {plural(tuned.evaluations, 'evaluation')}, "
        f"{plural(tuned.simulations, 'subset')} simulated, {tuned.wall_s:.1f} s.",
        highlight=False,
    )


def _chosen(tuned: Tuned) -> list[Trial]:
    """Of many trials the best one and the last ones, in their order."""
    last = {trial.name for trial in tuned.trials[-(_MOST_TRIALS - 1) :]}
    return [trial for trial in tuned.trials if trial.name in last or trial.name == tuned.best.name]


def show_choice(console: Console, tuned: Tuned) -> None:
    """What of fp32, all int8 and the trials is worth a choice, and what each costs."""
    every = {trial.name: trial for trial in tuned.trials}
    plain = tuned.all_int8
    named = dict.fromkeys([FP32, *([plain.name] if plain else []), *tuned.front, tuned.best.name])
    objectives = list(tuned.baseline_objectives)
    table = Table(title="To choose from", title_justify="left", title_style="bold", header_style="bold")
    for head in ("", "accuracy", "multiplications in int8", *(title(name) for name in objectives), ""):
        table.add_column(head, justify="left" if not head else "right")
    for name in named:
        trial = every.get(name)
        accuracy = tuned.baseline if trial is None else trial.accuracy
        share = 0.0 if trial is None else trial.int8_macs
        costs = tuned.baseline_objectives if trial is None else trial.objectives
        marks = [
            "the best" * (name == tuned.best.name), "all int8" * (plain is not None and name == plain.name),
            "nothing is better in both" * (name in tuned.front),
        ]  # fmt: skip
        table.add_row(
            escape(name), figure(accuracy), "–" if share is None else f"{share:.0%}",
            *(quantity(key, costs[key]) if key in costs else "–" for key in objectives), ", ".join(filter(None, marks)),
        )  # fmt: skip
    console.print(table)
    if tuned.int8_pays is False:
        console.print(NO_GAIN[tuned.met], highlight=False)


def show_comparison(console: Console, comparison: Mapping[str, Comparison], of_what: str = "") -> None:
    """fp32, simulated and real side by side; nothing where nothing was simulated."""
    if not comparison:
        return
    about = f"Output of {of_what} against fp32" if of_what else "Output against fp32"
    table = Table(title=about, title_justify="left", title_style="bold", header_style="bold")
    table.add_column("")
    for form in comparison:
        table.add_column(form, justify="right")
    rows = {"error": "error / signal", "agreement": "same top-1", "divergence": "KL, nats", "cosine": "cosine"}
    for name, label in rows.items():
        values = [getattr(found, name) for found in comparison.values()]
        if any(value is not None for value in values):
            table.add_row(label, *("–" if value is None else f"{value:.4g}" for value in values))
    console.print(table)
