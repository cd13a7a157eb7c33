"""A diagnosis: tables of ops, notes, suggestions with the config to paste."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from inc_tb.advise.configs import is_setting
from inc_tb.frameworks.patterns import exact_patterns
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.records import listed, plural
from inc_tb.show.grid import NAME_WIDTH, Name, fits, show_grid
from inc_tb.show.grid import Column as GridColumn
from inc_tb.show.names import shorten
from inc_tb.show.recipes import show_recipe
from inc_tb.show.sorting import find_sorting
from inc_tb.show.tokens import show_tokens

_ACTIVATIONS = (
    "verdict", "sensitivity", "added_sqnr_db", "arrived_sqnr_db", "total_sqnr_db", "a_mse", "a_min", "a_max", "a_range",
    "a_rmse_lsb", "a_clipped", "a_channel_ratio", "type",
)  # fmt: skip
_WEIGHTS = (
    "w_sqnr_db", "w_mse", "w_min", "w_max", "w_mean", "w_std", "w_var", "w_range", "w_channel_ratio", "weight_dtype",
)  # fmt: skip
_NEEDED = {"verdict", "a_min", "a_max", "w_min", "w_max", "w_mean", "w_std", "w_var"}
"""And a MSE: in every terminal, as Neural Compressor's summaries have them."""
_DIGITS = (4, 3)
_STYLES = {"bad": "bold red", "watch": "yellow", "ok": "green"}


def show_diagnosis(console: Console, diagnosis: Diagnosis, *, sort: str = "added_sqnr_db", top: int = 10) -> None:
    sorting = find_sorting(diagnosis.ops.columns, sort)
    _show_table(console, diagnosis, "Activations summary", _ACTIVATIONS, sorting.activations, top)
    _show_table(console, diagnosis, "Weights summary", _WEIGHTS, sorting.weights, top)
    _show_missing(console, diagnosis, top)
    show_tokens(console, diagnosis.tokens)
    for note in diagnosis.notes:
        console.print(f"[yellow]note:[/] {escape(note)}", highlight=False)
    _show_suggestions(console, diagnosis)


def _show_suggestions(console: Console, diagnosis: Diagnosis, top: int = 5) -> None:
    suggestions = diagnosis.suggestions
    if not suggestions:
        console.print(
            f"[{'green' if diagnosis.is_healthy else 'yellow'}]No suggestions:[/] {diagnosis.why_no_suggestion}.\n"
        )
        return
    console.print(f"[bold]Suggestions[/] ({len(suggestions)}, worst first)")
    for s in suggestions[:top]:
        console.print(f"[bold]{s.rank}. {s.rule.replace('_', ' ')}[/]: {escape(s.because)}.", highlight=False)
        for effect in (e for e in s.effects if e.basis == "measured"):
            value = f"{effect.value:.1%}" if effect.unit == "share" else f"{effect.value:,.1f} {effect.unit}"
            console.print(f"   measured: {value} {effect.label}", highlight=False)
        keep = "instead of keeping" if is_setting(diagnosis.framework, diagnosis.ops, s) else "keep"
        ops = listed(exact_patterns(s.ops, diagnosis.ops["name"].tolist())) if s.pattern else listed(s.ops)
        count = f" ({plural(len(s.ops), 'op')})" if s.pattern else ""
        console.print(f"   {keep} in fp32: [bold]{escape(ops)}[/]{count}", highlight=False)
        show_recipe(console, s.recipe)
    if len(suggestions) > top:
        console.print(f"   and {len(suggestions) - top} more in the log and with --json")
    console.print()


def _show_table(
    console: Console, diagnosis: Diagnosis, title: str, columns: Sequence[str], sort: str, top: int
) -> None:
    """What is needed, what is sorted by, and as many of the others as fit."""
    mse = _mse_of(diagnosis, "w" if columns is _WEIGHTS else "a")
    rows = [i for i in diagnosis.worst(sort=sort) if not math.isnan(diagnosis.ops[mse][i])]
    if not rows:
        return
    by = diagnosis.ops.column(sort)
    order = "worst first by" if by.better or sort == "verdict" else "by"
    count = f"{min(top, len(rows))} of {plural(len(rows), 'op')}"
    console.print(f"[bold]{title}[/]: {count}, {order} {by.label}", highlight=False)
    empty = {"sensitivity"} if np.isnan(diagnosis.ops["sensitivity"]).all() else set()
    told = [mse if column.endswith("_mse") else column for column in columns if column not in empty or column == sort]
    chosen = [column for column in told if column in diagnosis.ops]  # records of before lack the newest columns
    chosen += [] if sort in (*chosen, "name") else [sort]
    for digits in _DIGITS:
        shown = [_column(diagnosis, c, rows[:top], digits, c in (*_NEEDED, mse, sort)) for c in chosen]
        if fits(console, shown):
            break
    show_grid(console, "op", [_name(diagnosis, i) for i in rows[:top]], shown)


def _mse_of(diagnosis: Diagnosis, side: str) -> str:
    """The mean squared difference; where nothing but Neural Compressor's own number is known, that."""
    own = f"{side}_mse"
    return f"{side}_inc_mse" if np.isnan(diagnosis.ops[own]).all() else own


def _column(diagnosis: Diagnosis, name: str, rows: Sequence[int], digits: int, is_needed: bool) -> GridColumn:
    spec = diagnosis.ops.column(name)
    cells = [_cell(diagnosis, name, row, digits) for row in rows]
    return GridColumn(spec.label, spec.unit, cells, is_needed)


def _name(diagnosis: Diagnosis, row: int) -> Name:
    """With the module of the user's own model beside a name that an exporter made up."""
    name = str(diagnosis.ops["name"][row])
    module = str(diagnosis.ops["module"][row]) if "module" in diagnosis.ops else ""
    return Name(name, aside="" if not module or module in name else f" ({module})")


def _cell(diagnosis: Diagnosis, column: str, row: int, digits: int) -> Text:
    value = diagnosis.ops[column][row]
    if isinstance(value, str):
        return Text(shorten(value, NAME_WIDTH), _STYLES.get(value, ""))
    if math.isnan(value):
        return Text("–", "dim")
    spec = diagnosis.ops.column(column)
    text = f"{value:.1f}" if spec.unit == "dB" else f"{value:.2%}" if spec.unit == "share" else f"{value:.{digits}g}"
    low, high = spec.normal or (None, None)
    outside = (low is not None and value < low) or (high is not None and value > high)
    return Text(text, "yellow" if outside else "")


def _show_missing(console: Console, diagnosis: Diagnosis, top: int) -> None:
    missing = diagnosis.missing
    if not missing:
        return
    console.print(f"[yellow]{plural(len(missing), 'op')} could not be compared[/]", highlight=False)
    for name, reason in list(missing.items())[:top]:
        console.print(f"   {escape(name)}: {escape(reason)}", highlight=False)
    rest = len(missing) - top
    console.print(f"   and {rest} more in the log and with --json\n" if rest > 0 else "", highlight=False)
