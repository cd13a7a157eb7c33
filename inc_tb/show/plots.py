"""What `d.plot("op")` gives: the histograms and channels of one op."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import numpy as np
import numpy.typing as npt

from inc_tb.errors import UsageError
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.measure.histogram import edges
from inc_tb.records import ChannelRow, HistogramRow, listed
from inc_tb.show.svg import Chart, Range, histogram, ranges, svg

_BUCKETS = 120
_CHANNELS = 64


class Plot:
    """A picture that notebooks show, and that can be saved."""

    def __init__(self, picture: str, title: str) -> None:
        self.svg = picture
        self._title = title

    def __repr__(self) -> str:
        return f"<Plot of {self._title}; .save(path) writes it>"

    def _repr_html_(self) -> str:
        """Not as an image of its own, so that it takes the colors of the notebook."""
        return self.svg

    def save(self, path: str | PathLike[str]) -> Path:
        """As an .svg file."""
        target = Path(path)
        if target.suffix.lower() != ".svg":
            raise UsageError(f"{target}: expected a name that ends with .svg, such as {target.stem or 'op'}.svg.")
        try:
            target.write_text(self.svg, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{target}: cannot write there ({error.strerror}). Choose another place.") from error
        return target


def plot_op(diagnosis: Diagnosis, op: str) -> Plot:
    charts = [drawn(row) for row in diagnosis.histograms if row.op == op and (row.reference or row.quantized)]
    charts += [_channels(row) for row in diagnosis.channels if row.op == op and row.min]
    if not charts:
        raise UsageError(_why_none(diagnosis, op))
    return Plot(svg(charts, op), op)


def drawn(row: HistogramRow, width: int = 640, height: int = 150, count: int = _BUCKETS) -> Chart:
    """Both sides of a histogram over each other."""
    bins = edges(row.top)
    used = np.array(row.reference[::2] + row.quantized[::2])
    borders = np.linspace(bins[used.min()], bins[used.max() + 1], count + 1)
    sides = [_spread(side, bins, borders) for side in (row.reference, row.quantized)]
    title = f"{row.op} {row.role}"
    return histogram(borders.tolist(), sides[0], sides[1], title, row.limits, width=width, height=height)


def _spread(sparse: Sequence[int], bins: npt.NDArray[np.float64], borders: npt.NDArray[np.float64]) -> list[float]:
    """Counts between other borders: bins of large values are wider than these, and would leave gaps."""
    counts = np.zeros(len(bins) - 1)
    counts[np.array(sparse[::2], int)] = sparse[1::2]
    upto = np.concatenate([[0.0], np.cumsum(counts)])
    found: list[float] = np.diff(np.interp(borders, bins, upto)).tolist()
    return found


def _channels(row: ChannelRow) -> Chart:
    """The widest channels first."""
    lows, highs = (np.array([_number(v) for v in values]) for values in (row.min, row.max))
    order = np.argsort(-np.nan_to_num(highs - lows), kind="stable")[:_CHANNELS].tolist()
    shown = [Range(f"channel {i}", (lows[i], highs[i]), (_number(row.q_min[i]), _number(row.q_max[i]))) for i in order]
    of = f"{len(shown)} of {len(lows)} channels" if len(shown) < len(lows) else f"{len(lows)} channels"
    return ranges(shown, f"{row.op} {row.role}: ranges of {of}, widest first")


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _why_none(diagnosis: Diagnosis, op: str) -> str:
    names: Sequence[str] = diagnosis.ops["name"].tolist()
    if op not in names:
        alike = difflib.get_close_matches(op, names, n=3, cutoff=0.3) or names[:3]
        return f"plot({op!r}): there is no such op; expected the name of one, such as {listed(alike)}."
    why = diagnosis.missing.get(op) or diagnosis.ops.why_null("total_sqnr_db", names.index(op))
    return f"plot({op!r}): no histogram of it is known ({why or 'none was logged'}). Choose another op."
