"""Suggestions: a line each and the config of the first; all of them, with reasons and configs, in a file."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from inc_tb.advise.configs import is_setting
from inc_tb.frameworks.patterns import exact_patterns
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.records import Suggestion, listed, plural
from inc_tb.show.detail import Detail
from inc_tb.show.grid import is_free
from inc_tb.show.recipes import show_recipe
from inc_tb.show.verdict import action, fitted_line, measured
from inc_tb.store.remote import shown

FILE = "suggestions.txt"
_LINES = 5
_CONFIG_LINES = 24
_NAMES_WIDTH = 36


def show_suggestions(console: Console, diagnosis: Diagnosis, detail: Detail = Detail.USUAL) -> None:
    suggestions = diagnosis.suggestions
    if not suggestions:
        style = "green" if diagnosis.is_healthy else "yellow"
        console.print(f"[{style}]No suggestions:[/] {diagnosis.why_no_suggestion}.\n")
        return
    if detail is Detail.VERBOSE:
        _show_all(console, diagnosis)
        return
    console.print(f"[bold]Suggestions[/]: {len(suggestions)}, worst first")
    for suggestion in suggestions[:_LINES]:
        width = None if is_free(console) else _NAMES_WIDTH
        is_instead = is_setting(diagnosis.framework, diagnosis.ops, suggestion)
        gains = [] if is_instead else measured(suggestion)
        told = [action(diagnosis, suggestion, width), suggestion.rule.replace("_", " "), *gains]
        fitted_line(console, Text(f"{suggestion.rank:>2}. ", "bold").append(" · ".join(told), "default not bold"))
    _show_config(console, suggestions[0])
    _tell_the_rest(console, diagnosis)
    console.print()


def write_suggestions(folder: Path, diagnosis: Diagnosis) -> None:
    """All of them into the folder of their run, as --verbose shows them."""
    with (folder / FILE).open("w", encoding="utf-8", errors="backslashreplace") as file:
        _show_all(Console(file=file, width=100_000), diagnosis)


def _show_config(console: Console, first: Suggestion) -> None:
    lines = first.recipe.rstrip("\n").splitlines()
    if not lines:
        return
    cut = len(lines) > _CONFIG_LINES
    what = f", its first lines of {len(lines)}" if cut else ""
    console.print(f"Config of the first, for {next(iter(first.recipes))}{what}:", highlight=False)
    show_recipe(console, "\n".join([*lines[: _CONFIG_LINES - 1], "…"] if cut else lines))


def _tell_the_rest(console: Console, diagnosis: Diagnosis) -> None:
    """Where all of them are: in a file if there is a run, else by an option."""
    count = len(diagnosis.suggestions)
    written = diagnosis.logged is not None and (diagnosis.logged / FILE).is_file()
    where = escape(shown(diagnosis.logged / FILE)) if diagnosis.logged is not None and written else "--verbose"
    whose = "The reason" if count == 1 else f"The reasons and configs of all {count}"
    console.print(f"{whose}: {where}", highlight=False, soft_wrap=True)


def _show_all(console: Console, diagnosis: Diagnosis) -> None:
    console.print(f"[bold]Suggestions[/] ({len(diagnosis.suggestions)}, worst first)")
    for s in diagnosis.suggestions:
        console.print(f"[bold]{s.rank}. {s.rule.replace('_', ' ')}[/]: {escape(s.because)}.", highlight=False)
        is_instead = is_setting(diagnosis.framework, diagnosis.ops, s)
        for told in measured(s):
            how = "measured with these ops in fp32 instead" if is_instead else "measured"
            console.print(f"   {how}: {told}", highlight=False)
        keep = "instead of keeping" if is_instead else "keep"
        ops = listed(exact_patterns(s.ops, diagnosis.ops["name"].tolist())) if s.pattern else listed(s.ops)
        count = f" ({plural(len(s.ops), 'op')})" if s.pattern else ""
        console.print(f"   {keep} in fp32: [bold]{escape(ops)}[/]{count}", highlight=False)
        show_recipe(console, s.recipe)
    console.print()
