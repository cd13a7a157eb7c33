"""Tables in the terminal: numbers are whole, further columns come where there is room, and names give way.

Where nobody looks through a window of some width, as in a file or a pipe, names are whole, too.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from inc_tb.records import listed
from inc_tb.show.names import shorten, shortened

NAME_WIDTH = 24
"""Before a name gets less than this, columns that are not needed go."""
_LEAST = 12
_HEAD_LINES = 3


class Name(NamedTuple):
    """The head of a row."""

    text: str
    more: str = ""
    """Always behind it."""
    aside: str = ""
    """Behind it where there is room."""
    style: str = ""


class Column(NamedTuple):
    label: str
    unit: str
    cells: Sequence[Text]
    is_needed: bool = True
    is_text: bool = False

    @property
    def width(self) -> int:
        """As narrow as the cells and the words are, with a head of few lines."""
        width = max(map(len, [*self.label.split(), self.unit, *(cell.plain for cell in self.cells)]))
        while len(textwrap.wrap(self.label, width)) > _HEAD_LINES:
            width += 1
        return width

    @property
    def head(self) -> list[Text]:
        lines = [Text(line, "bold") for line in textwrap.wrap(self.label, self.width)]
        return [*lines, Text(self.unit, "bold dim")] if self.unit else lines


class Lists(NamedTuple):
    """The last column: of each row some names."""

    label: str
    rows: Sequence[Sequence[str]]


def room_for_names(console: Console, columns: Sequence[Column]) -> int:
    """Beside the columns that are needed."""
    return console.width - sum(column.width + 1 for column in columns if column.is_needed)


def fits(console: Console, columns: Sequence[Column]) -> bool:
    """Whether names keep enough room beside the columns that are needed."""
    return is_free(console) or room_for_names(console, columns) >= NAME_WIDTH


def show_grid(
    console: Console, label: str, names: Sequence[Name], columns: Sequence[Column], last: Lists | None = None
) -> None:
    longest = max((len(name.text + name.more + name.aside) for name in names), default=0)
    room = room_for_names(console, columns)
    spare = room - max(len(label), min(longest, NAME_WIDTH)) - (NAME_WIDTH if last is not None else 0)
    shown = []
    for column in columns:
        spare -= 0 if column.is_needed else column.width + 1
        if column.is_needed or spare >= 0:
            shown.append(column)
        else:
            spare += column.width + 1
    left = console.width - sum(column.width + 1 for column in shown)
    width = longest if is_free(console) else min(longest, max(left, _LEAST))
    width = max(width, len(label))
    heads, rows = _head(label, width, shown), _rows(names, width, shown)
    if last is not None:
        within = None if is_free(console) else max(left - width - 1, NAME_WIDTH)
        heads[-1].append(f" {last.label}", "bold")
        for line, listing in zip(rows, last.rows, strict=True):
            line.append(f" {listed_within(listing, within)}")
    for line in (*heads, *rows):
        line.rstrip()
        console.print(line, no_wrap=True, overflow="ignore", crop=False, highlight=False)
    console.print()


def is_free(console: Console) -> bool:
    """Whether no width is known: neither of a terminal, nor from COLUMNS, nor told."""
    return console._width is None and not console.is_terminal


def _head(label: str, width: int, columns: Sequence[Column]) -> list[Text]:
    """From the bottom up."""
    heads = [column.head for column in columns]
    lines = []
    for back in range(max(map(len, heads), default=1), 0, -1):
        line = Text((label if back == 1 else "").ljust(width), "bold")
        for column, head in zip(columns, heads, strict=True):
            line.append_text(_padded(head[-back] if back <= len(head) else Text(), column))
        lines.append(line)
    return lines


def _rows(names: Sequence[Name], width: int, columns: Sequence[Column]) -> list[Text]:
    behind = [n.more + (n.aside if len(n.text + n.more + n.aside) <= width else "") for n in names]
    texts = shortened([name.text for name in names], width - max(map(len, (n.more for n in names)), default=0))
    lines = []
    for i, name in enumerate(names):
        text = name.text if len(name.text + behind[i]) <= width else texts[i]
        line = Text((text + behind[i]).ljust(width), name.style)
        for column in columns:
            line.append_text(_padded(column.cells[i], column))
        lines.append(line)
    return lines


def _padded(cell: Text, column: Column) -> Text:
    found = cell.copy()
    found.align("left" if column.is_text else "right", column.width)
    return Text(" ").append_text(found)


def listed_within(names: Sequence[str], width: int | None) -> str:
    """All of a few; else, in so many characters, one and how many more there are."""
    found = listed(names)
    if width is None or len(found) <= width or not names:
        return found
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return shorten(names[0], max(_LEAST, width - len(more))) + more
