"""A diagnosis: tables of ops, notes, suggestions with the config to paste."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Sequence

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table

from inc_tb.errors import UsageError
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.records import listed
from inc_tb.show.widths import COLUMN_WIDTH, NAME_WIDTH, cut

ACTIVATION_COLUMNS = (
    "verdict", "sensitivity", "added_sqnr_db", "arrived_sqnr_db", "total_sqnr_db", "a_min", "a_max", "a_rmse_lsb",
    "a_clipped", "a_channel_ratio", "a_mse", "type",
)  # fmt: skip
WEIGHT_COLUMNS = ("w_sqnr_db", "w_min", "w_max", "w_mean", "w_std", "w_var", "w_channel_ratio", "w_mse", "weight_dtype")
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
    room = max(2, (console.width - NAME_WIDTH) // COLUMN_WIDTH)
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
    name_width = max(NAME_WIDTH, console.width - len(kept) * (COLUMN_WIDTH + 1) - 1)
    table.add_column("op", no_wrap=True, max_width=name_width)
    for column in kept:
        spec = diagnosis.ops.column(column)
        unit = f"\n[dim]{spec.unit}[/]" if spec.unit else ""
        table.add_column(f"{spec.label}{unit}", justify="right", max_width=COLUMN_WIDTH)
    for i in rows[:top]:
        name = cut(_shown_name(diagnosis, i), name_width)
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


def _show_missing(console: Console, diagnosis: Diagnosis, top: int) -> None:
    missing = diagnosis.missing
    if not missing:
        return
    console.print(f"[yellow]{len(missing)} ops could not be compared[/]", highlight=False)
    for name, reason in list(missing.items())[:top]:
        console.print(f"   {escape(name)}: {escape(reason)}", highlight=False)
    rest = len(missing) - top
    console.print(f"   and {rest} more in the log and with --json\n" if rest > 0 else "", highlight=False)
