"""Which column --sort means: by its id, its label, or the title that Neural Compressor gives it."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import NamedTuple

from inc_tb.errors import UsageError
from inc_tb.measure.tables import ACTIVATIONS, TABLES, WEIGHTS
from inc_tb.records import Column


class Sorting(NamedTuple):
    """The columns that the two summaries are sorted by."""

    activations: str = ACTIVATIONS.sort
    weights: str = WEIGHTS.sort


def find_sorting(columns: Sequence[Column], given: str) -> Sorting:
    """Neural Compressor calls a column MSE in either table, and the names OP name: then both are sorted by theirs."""
    wanted = " ".join(given.split()).casefold()
    known = {column.name for column in columns}
    titles = [{title.casefold(): ours for title, ours in table.theirs.items()} for table in TABLES]
    if wanted not in known and any(names.get(wanted) in known for names in titles):
        activations, weights = (names.get(wanted, table.sort) for names, table in zip(titles, TABLES, strict=True))
        return Sorting(activations, weights)
    found = [c.name for c in columns if c.name == wanted] or [c.name for c in columns if c.label.casefold() == wanted]
    if len(found) > 1:
        raise UsageError(f"--sort {given}: several columns are called so, {_told(columns, found)}. Give the id of one.")
    if not found:
        raise UsageError(_unknown(columns, given, wanted))
    (name,) = found
    if name == "name":
        return Sorting(name, name)
    return Sorting(weights=name) if name.startswith(ACTIVATIONS.other) else Sorting(activations=name)


def _unknown(columns: Sequence[Column], given: str, wanted: str) -> str:
    """With the columns of whose ids, labels or titles it is a part, or that are called about so; or with all."""
    names = {column.name: column.name for column in columns}
    names |= {column.label.casefold(): column.name for column in columns}
    names |= {title.casefold(): ours for table in TABLES for title, ours in table.theirs.items() if ours in names}
    alike = [*(name for name in names if wanted and wanted in name), *difflib.get_close_matches(wanted, names, n=4)]
    there = list(dict.fromkeys(names[name] for name in alike)) or [column.name for column in columns]
    expected = "expected the id of a column, its label, or Neural Compressor's title for it"
    return f"--sort {given}: no such column; {expected}, such as {_told(columns, there)}."


def _told(columns: Sequence[Column], names: Sequence[str]) -> str:
    labels = {column.name: column.label for column in columns}
    return ", ".join(name if labels[name] == name else f"{name} ({labels[name]})" for name in names)
