"""A diagnosis: the verdict, tables of ops, notes, suggestions with the config to paste."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.records import listed, plural
from inc_tb.search.comparison import Comparison
from inc_tb.show.detail import Detail
from inc_tb.show.grid import NAME_WIDTH, Name, fits, show_grid
from inc_tb.show.grid import Column as GridColumn
from inc_tb.show.names import shorten
from inc_tb.show.quantities import number
from inc_tb.show.sorting import Sorting, find_sorting
from inc_tb.show.suggestions import show_suggestions, write_suggestions
from inc_tb.show.tokens import show_tokens
from inc_tb.show.verdict import fitted_line, show_verdict, verdict_of_diagnosis
from inc_tb.store.remote import shown

_ACTIVATIONS = (
    "verdict", "sensitivity", "added_sqnr_db", "arrived_sqnr_db", "total_sqnr_db", "a_mse", "a_min", "a_max", "a_range",
    "a_rmse_lsb", "a_clipped", "a_channel_ratio", "type",
)  # fmt: skip
_WEIGHTS = (
    "w_sqnr_db", "w_mse", "w_min", "w_max", "w_mean", "w_std", "w_var", "w_range", "w_channel_ratio", "weight_dtype",
)  # fmt: skip
_NEEDED = {"verdict", "a_min", "a_max", "w_min", "w_max", "w_mean", "w_std", "w_var"}
"""And a MSE: in every terminal, as Neural Compressor's summaries have them."""
_SIDES = {"Activations summary": "compared", "Weights summary": "with weights"}
_DIGITS = (4, 3)
_NAMED = 3
NOT_COMPARED = "not_compared.txt"
_STYLES = {"bad": "bold red", "watch": "yellow", "ok": "green"}


def show_diagnosis(
    console: Console, diagnosis: Diagnosis, *, sort: str | None = None, top: int = 10,
    detail: Detail = Detail.USUAL, comparison: Mapping[str, Comparison] | None = None, next_step: str = "",
) -> None:  # fmt: skip
    """The verdict first; `comparison` is what a probe has seen at the output."""
    show_verdict(console, verdict_of_diagnosis(diagnosis, comparison, next_step))
    if detail is not Detail.QUIET:
        show_tables(console, diagnosis, sort=sort, top=top, detail=detail)


def show_tables(
    console: Console, diagnosis: Diagnosis, *, sort: str | None = None, top: int = 10,
    detail: Detail = Detail.USUAL,
) -> None:  # fmt: skip
    """All but the verdict; unless told otherwise by what ranks ops everywhere."""
    by = sort or diagnosis.ranked_by
    sorting = find_sorting(diagnosis.ops.columns, by) if by is not None else Sorting()
    _show_table(console, diagnosis, "Activations summary", _ACTIVATIONS, sorting.activations, top)
    _show_table(console, diagnosis, "Weights summary", _WEIGHTS, sorting.weights, top)
    _show_missing(console, diagnosis, detail)
    show_tokens(console, diagnosis.tokens)
    for note in diagnosis.notes:
        console.print(f"[yellow]note:[/] {escape(note)}", highlight=False)
    show_suggestions(console, diagnosis, detail)


def write_lists(folder: Path, diagnosis: Diagnosis) -> None:
    """What is too long for a screen, as files in the folder of the run: named where it is spoken of."""
    if diagnosis.suggestions:
        write_suggestions(folder, diagnosis)
    if diagnosis.missing:
        lines = [f"{name}\t{reason}\n" for name, reason in diagnosis.missing.items()]
        (folder / NOT_COMPARED).write_text("".join(lines), encoding="utf-8", errors="backslashreplace")


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
    total = diagnosis.ops.count
    count = f"{min(top, len(rows))} of {plural(total, 'op')}"
    count += f" ({len(rows)} {_SIDES[title]})" if len(rows) < total else ""
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
    text = f"{value:z.1f}" if spec.unit == "dB" else f"{value:.2%}" if spec.unit == "share" else number(value, digits)
    low, high = spec.normal or (None, None)
    outside = (low is not None and value < low) or (high is not None and value > high)
    return Text(text, "yellow" if outside else "")


def _show_missing(console: Console, diagnosis: Diagnosis, detail: Detail) -> None:
    """The reasons, most frequent first, each with some of its ops."""
    missing = diagnosis.missing
    if not missing:
        return
    of = plural(diagnosis.ops.count, "op")
    console.print(f"[yellow]{len(missing)} of {of} could not be compared[/]", highlight=False)
    reasons = Counter(missing.values())
    most = len(missing) if detail is Detail.VERBOSE else _NAMED
    for reason, count in reasons.most_common(most):
        names = [name for name, why in missing.items() if why == reason]
        told = Text(f"   {listed(names, most)}: {reason}" + (f" ({count})" if count > most else ""))
        console.print(told, highlight=False) if detail is Detail.VERBOSE else fitted_line(console, told)
    file = diagnosis.logged / NOT_COMPARED if diagnosis.logged is not None else None
    if len(missing) > _NAMED and detail is not Detail.VERBOSE:
        where = escape(shown(file)) if file is not None and file.is_file() else "--verbose"
        console.print(f"   all of them: {where}", highlight=False)
    console.print()
