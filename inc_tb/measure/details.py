"""What is stored of one pair besides its numbers: its histograms, and its channels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from inc_tb.frameworks.ops import Op, Quantization, Role
from inc_tb.measure.collect import STORED
from inc_tb.measure.histogram import Histogram
from inc_tb.measure.metrics import channel_sqnr_db
from inc_tb.measure.shards import Collected
from inc_tb.measure.stats import PairStats
from inc_tb.records import ChannelRow, GraphNode, HistogramRow

_EXACT_POWER = 22
"""Up to here powers of ten are exact as floats."""


def details_of(ops: Sequence[Op], collected: Collected) -> tuple[list[HistogramRow], list[ChannelRow], list[GraphNode]]:
    """Histograms, channels and the graph of a diagnosis."""
    by_name = {op.name: op for op in ops}
    chosen = {key: stats for key, stats in collected.items() if key[1] in STORED}
    return (
        [histogram_row(by_name[op], role, stats) for (op, role), stats in chosen.items()],
        [channel_row(op, role, stats) for (op, role), stats in chosen.items() if stats.channels > 1],
        [GraphNode(op.name, op.type, list(op.inputs), op.tensor, op.module, op.statement) for op in ops],
    )


def histogram_row(op: Op, role: Role, stats: PairStats) -> HistogramRow:
    top = max(stats.reference.top, stats.quantized.top)
    quantization = op.weight if role == "weight" else op.activation
    limits = quantization.limits if quantization is not None else None
    return HistogramRow(
        op.name, role, top, _sparse(stats.reference, top), _sparse(stats.quantized, top),
        stats.error.top, _sparse(stats.error, stats.error.top),
        (float(np.min(limits[0])), float(np.max(limits[1]))) if limits is not None else None,
        _step(quantization),
    )  # fmt: skip


def channel_row(op: str, role: Role, stats: PairStats) -> ChannelRow:
    columns = [
        -stats.channel_extremes("neg_x_min"), stats.channel_extremes("x_max"),
        -stats.channel_extremes("neg_y_min"), stats.channel_extremes("y_max"), channel_sqnr_db(stats),
    ]  # fmt: skip
    return ChannelRow(op, role, *map(_or_none, columns))


def _or_none(values: npt.NDArray[np.float64]) -> list[float | None]:
    """Seven digits, which is what the arrays had, and half of the space in the log."""
    known = np.isfinite(values)
    numbers = np.where(known, values, 0.0)
    with np.errstate(divide="ignore"):
        after_point = 6 - np.floor(np.log10(np.abs(numbers)))
    exact = np.abs(after_point) <= _EXACT_POWER  # zero, and what is too small or large to care
    after_point = np.where(exact, after_point, 0)
    up, down = 10.0 ** np.maximum(after_point, 0), 10.0 ** np.maximum(-after_point, 0)
    rounded = np.where(exact, np.round(numbers * up / down) / up * down, numbers).tolist()
    return [v if k else None for v, k in zip(rounded, known.tolist(), strict=True)]


def _step(quantization: Quantization | None) -> float | None:
    if quantization is None or quantization.scale is None or quantization.scale.size != 1:
        return None
    return float(quantization.scale.flat[0])


def _sparse(histogram: Histogram, top: int) -> list[int]:
    counts = histogram.raised(top)
    used = np.flatnonzero(counts)
    flat: list[int] = np.stack([used, counts[used]], axis=1).ravel().tolist()
    return flat
