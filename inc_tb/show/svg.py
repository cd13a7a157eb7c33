"""Charts as SVG: no scripts, nothing from elsewhere, text in the color of what is around, names escaped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from inc_tb.records import brief
from inc_tb.show.quantities import number

REFERENCE, QUANTIZED, LIMIT = "#3b82f6", "#e8590c", "#868e96"
_FONT = "font-family:system-ui,sans-serif;font-size:11px"


class Chart(NamedTuple):
    """What is drawn, in the coordinates of its own upper left corner."""

    width: int
    height: int
    body: str


def svg(charts: Sequence[Chart], title: str) -> str:
    """One below the other; it stands on its own, and inside of a page."""
    width, height, parts = max(chart.width for chart in charts), 0, []
    for chart in charts:
        parts.append(f'<g transform="translate(0,{height})">{chart.body}</g>')
        height += chart.height
    head = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    named = f"<title>{_words(title)}</title>"
    return f'<svg {head} role="img" style="{_FONT};max-width:100%;height:auto">{named}{"".join(parts)}</svg>'


def text(x: float, y: float, words: str, *, anchor: str = "start", color: str = "currentColor") -> str:
    return f'<text x="{x:.4g}" y="{y:.4g}" text-anchor="{anchor}" fill="{color}">{_words(words)}</text>'


def histogram(
    edges: Sequence[float], reference: Sequence[float], quantized: Sequence[float], title: str,
    limits: tuple[float, float] | None = None, *, width: int = 640, height: int = 150,
) -> Chart:  # fmt: skip
    """Two over each other, counts on a logarithmic scale; `limits` are the ends of what can be represented."""
    top, bottom = 22, height - 18
    low, high = edges[0], edges[-1]
    most = max(map(_height, (*reference, *quantized)), default=0.0) or 1.0

    def across(value: float) -> float:
        return width * (value - low) / ((high - low) or 1.0)

    def outline(counts: Sequence[float]) -> str:
        """Only where there is something: a line along the ground says nothing."""
        path = f"M0 {bottom}"
        for start, end, count in zip(edges, edges[1:], counts, strict=False):
            path += f"V{bottom - (bottom - top) * _height(count) / most:.0f}H{across(end):.1f}" if end > start else ""
        return f"{path}V{bottom}Z"

    body = text(0, 12, title)
    body += f'<path d="{outline(reference)}" fill="{REFERENCE}" fill-opacity=".45"/>'
    body += f'<path d="{outline(quantized)}" fill="none" stroke="{QUANTIZED}"/>'
    for limit in (value for value in limits or () if low < value < high):
        body += f'<path d="M{across(limit):.1f} {top}V{bottom}" stroke="{LIMIT}" stroke-dasharray="3 3"/>'
    body += text(0, height - 5, number(low, 3)) + text(width, height - 5, number(high, 3), anchor="end")
    legend = text(width - 70, 12, "fp32", anchor="end", color=REFERENCE)
    return Chart(width, height, body + legend + text(width, 12, "quantized", anchor="end", color=QUANTIZED))


class Range(NamedTuple):
    name: str
    reference: tuple[float, float]
    quantized: tuple[float, float]


def ranges(given: Sequence[Range], title: str, *, width: int = 640, height: int = 130) -> Chart:
    """A bar from the least to the largest value of each, the quantized one inside of the reference's."""
    top, bottom = 22, height - 18
    known = [value for one in given for value in (*one.reference, *one.quantized) if math.isfinite(value)]
    low, high = min([0.0, *known]), max([0.0, *known])
    step = width / max(1, len(given))

    def down(value: float) -> float:
        return bottom - (bottom - top) * (value - low) / ((high - low) or 1.0)

    body = text(0, 12, title)
    for i, one in enumerate(given):
        for (least, largest), share, color in ((one.reference, 0.8, REFERENCE), (one.quantized, 0.3, QUANTIZED)):
            if math.isfinite(least) and math.isfinite(largest):
                x, y, tall = step * (i + (1 - share) / 2), down(largest), max(1.0, down(least) - down(largest))
                body += (
                    f'<path d="M{x:.1f} {y:.1f}h{step * share:.1f}v{tall:.1f}h{-step * share:.1f}Z" fill="{color}"/>'
                )
    body += text(0, height - 5, given[0].name) + text(width, height - 5, given[-1].name, anchor="end")
    return Chart(width, height, body)


class Bar(NamedTuple):
    name: str
    values: Sequence[float | None]
    """Of the reference and of the quantized model, or of one of them."""
    told: str


def bars(given: Sequence[Bar], title: str, *, width: int = 480) -> Chart:
    """A row each, with a bar for each value and what is told behind them."""
    most = max([value for bar in given for value in bar.values if value] or [1.0])
    left, room, row = 150, width - 150 - 110, 26
    body = text(0, 12, title)
    for i, bar in enumerate(given):
        y = 22 + i * row
        body += text(left - 6, y + 13, brief(bar.name, 22), anchor="end")
        for j, (value, color) in enumerate(zip(bar.values, (REFERENCE, QUANTIZED), strict=False)):
            body += f'<path d="M{left} {y + 1 + 9 * j}h{room * (value or 0) / most:.1f}v8H{left}Z" fill="{color}"/>'
        body += text(width, y + 13, bar.told, anchor="end")
    return Chart(width, 26 + row * len(given), body)


class Point(NamedTuple):
    x: float
    y: float
    name: str
    is_marked: bool = False


def scatter(given: Sequence[Point], title: str, x_told: tuple[str, str], *, level: float | None = None,
            width: int = 480, height: int = 150) -> Chart:  # fmt: skip
    """Points with their names on hover, and a level to reach; `x_told` are the ends of the axis."""
    top, bottom, left = 24, height - 22, 8
    ys = [point.y for point in given] + ([level] if level is not None else [])
    low_x, high_x, low, high = min(p.x for p in given), max(p.x for p in given), min(ys), max(ys)

    def down(value: float) -> float:
        return bottom - (bottom - top) * (value - low) / ((high - low) or 1.0)

    body = text(0, 12, title)
    if level is not None:
        body += f'<path d="M0 {down(level):.1f}H{width}" stroke="{LIMIT}" stroke-dasharray="3 3"/>'
    for point in given:
        x = left + (width - 2 * left) * (point.x - low_x) / ((high_x - low_x) or 1.0)
        radius, color = (5, QUANTIZED) if point.is_marked else (3.5, REFERENCE)
        body += f'<circle cx="{x:.1f}" cy="{down(point.y):.1f}" r="{radius}" fill="{color}">'
        body += f"<title>{_words(point.name)}</title></circle>"
    ends = text(0, height - 5, x_told[0]) + text(width, height - 5, x_told[1], anchor="end")
    return Chart(width, height, body + ends)


def _height(count: float) -> float:
    return math.log10(1 + count)


def _words(words: str) -> str:
    return escape(brief(words, 160))
