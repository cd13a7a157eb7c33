"""The pieces of a card. Whatever is no Html already is escaped and cut, so that no name can break out or fill the page.

Colors and fonts are the notebook's own, so that a card is light or dark as it is.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from inc_tb.records import brief, plural
from inc_tb.show.svg import Chart, svg

Mark = Literal["good", "watch", "bad", ""]
_MOST_TEXT = 400
_MOST_CODE = 1200
_FAINT = "rgba(128,128,128,.45)"
_COLORS: dict[Mark, str] = {"good": "#2f9e5f", "watch": "#c98a00", "bad": "#e5484d", "": _FAINT}
_CELL = "padding:.1em 1em .1em 0;border:0;vertical-align:top;text-align:"
_URL = "http://localhost:6006/"
"""Where TensorBoard is found unless it is told otherwise."""


class Html(str):
    """Markup, made of pieces that are escaped."""

    __slots__ = ()


def tag(name: str, *inside: str, style: str = "", most: int = _MOST_TEXT) -> Html:
    attribute = f' style="{escape(style)}"' if style else ""
    return Html(f"<{name}{attribute}>{joined(*inside, most=most)}</{name}>")


def joined(*parts: str, most: int = _MOST_TEXT) -> Html:
    return Html("".join(part if isinstance(part, Html) else escape(brief(part, most)) for part in parts))


def card(title: str, about: str, *parts: str) -> Html:
    """Everything there is about one result."""
    heading = tag("div", tag("strong", title), Html(" · ") if about else "", about)
    box = f"border:1px solid {_FAINT};border-radius:6px;padding:.7em 1em;max-width:64em;line-height:1.45;color:inherit"
    return tag("div", heading, *(part for part in parts if part), style=box)


def verdict(mark: Mark, *inside: str) -> Html:
    style = f"border-left:4px solid {_COLORS[mark]};padding-left:.7em;margin:.5em 0"
    return tag("div", *inside, style=style)


def line(*inside: str) -> Html:
    return tag("div", *inside, style="margin:.35em 0")


def marked(text: str, mark: Mark) -> Html:
    """A word with a dot of the mark's color before it: colored words are hard to read on one ground or the other."""
    return joined(tag("span", "● ", style=f"color:{_COLORS[mark]}") if mark else "", text)


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> Html:
    """`numbers` are the columns that are aligned on the right; what would be empty is not there."""
    if not rows:
        return Html()
    kept = [i for i in range(len(titles)) if any(row[i] for row in rows)]
    titles, rows = [titles[i] for i in kept], [[row[i] for i in kept] for row in rows]
    numbers = [kept.index(i) for i in numbers if i in kept]
    sides = ["right" if i in numbers else "left" for i in range(len(titles))]
    head = [tag("th", title, style=_CELL + side) for title, side in zip(titles, sides, strict=True)]
    body = [
        tag("tr", *(tag("td", cell, style=_CELL + side, most=160) for cell, side in zip(row, sides, strict=True)))
        for row in rows
    ]
    inside = tag("thead", tag("tr", *head)), tag("tbody", *body)
    scroll = "overflow-x:auto;margin:.4em 0"
    return tag("div", tag("table", *inside, style="border-collapse:collapse;margin:0;font-size:inherit"), style=scroll)


def config(label: str, code: str, whole: str) -> Html:
    """To be opened and copied; `whole` is the expression that has all of it, for one that is too long for a card."""
    if not code:
        return Html()
    code = code.encode("utf-8", "replace").decode()
    if len(code) > _MOST_CODE:
        start = code[:_MOST_CODE]
        code = f"{start.rpartition(chr(10))[0] or start}\n…"
        label += f", its beginning; all of it is {whole}"
    pre = f'<pre style="overflow-x:auto;padding:.5em;border:1px solid {_FAINT}">{escape(code)}</pre>'
    return tag("details", tag("summary", label, style="cursor:pointer"), Html(pre))


def notes(given: Sequence[str], most: int = 3) -> Html:
    more = [f"and {plural(len(given) - most, 'more note')}"] if len(given) > most else []
    return joined(*(line(tag("em", "note: "), note) for note in given[:most]), *map(line, more))


def logging(call: str) -> Html:
    """How to log what no run is known to hold."""
    code = f'with inc_tb.SummaryWriter("nc_workspace/trial-001") as w: w.{call}'
    return line(
        "To see it in TensorBoard: ", tag("code", code), ", then ", tag("code", "tensorboard --logdir nc_workspace")
    )


def address(view: str = "", run: str = "") -> str:
    """What follows TensorBoard's own address; `view` is a tab of the page, "" its first."""
    shown = {"view": view, "run": run}
    return "#quantization" + "".join(
        f"&p.quantization.{key}={quote(brief(value, 200), safe='')}" for key, value in shown.items() if value
    )


def picture(charts: Sequence[Chart], title: str) -> Html:
    return Html(f'<div style="margin:.5em 0">{svg(charts, title)}</div>') if charts else Html()


def place(logdir: Path, view: str = "", run: str = "") -> Html:
    """How to see what is logged; `view` is a tab of the page, "" its first."""
    link = f'<a href="{escape(_URL + address(view, run))}" target="_blank" rel="noopener">Quantization tab</a>'
    command = tag("code", f"tensorboard --logdir {shlex.quote(str(logdir))}")
    return line("In TensorBoard: ", command, ", then its ", Html(link), " (on this machine, at its usual port)")
