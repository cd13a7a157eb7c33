"""Statistics of several processes as one: packed, sent around, merged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from inc_tb.errors import DataError
from inc_tb.frameworks.ops import Role
from inc_tb.frameworks.registry import frameworks
from inc_tb.measure.stats import PairStats

Key = tuple[str, Role]
Collected = dict[Key, PairStats]


class _Packed(msgspec.Struct, array_like=True):
    op: str
    role: Role
    channels: int
    axis: int | None
    sums: bytes
    extremes: bytes
    tops: list[int]
    counts: list[bytes]


class _Message(msgspec.Struct, array_like=True):
    samples: int
    error: str
    stats: list[_Packed]


def merged_over_ranks(collected: Mapping[Key, PairStats], samples: int, error: str = "") -> tuple[Collected, int]:
    """What all processes of torch.distributed have collected, the same in each; raises in all if one had an error."""
    own = _Message(samples, error, [_packed(key, stats) for key, stats in collected.items()])
    messages = [msgspec.msgpack.decode(data, type=_Message) for data in _gathered(msgspec.msgpack.encode(own))]
    failed = [f"rank {rank}: {message.error}" for rank, message in enumerate(messages) if message.error]
    if failed:
        raise DataError("; ".join(failed))
    found: Collected = {}
    for rank, message in enumerate(messages):
        for packed in message.stats:
            stats, key = _unpacked(packed), (packed.op, packed.role)
            if key not in found:
                found[key] = stats
            elif packed.role != "weight" or not rank:  # every process has the same weights
                found[key].merge(stats)
    for key, stats in found.items():
        if key in collected:
            stats.limits = collected[key].limits
    return found, sum(message.samples for message in messages)


def _gathered(data: bytes) -> list[bytes]:
    """What every process gives, in the order of their ranks, by a framework that knows the group."""
    found = (framework.gather_bytes(data) for framework in frameworks())
    return next(messages for messages in found if messages is not None)


def _packed(key: Key, stats: PairStats) -> _Packed:
    histograms = (stats.reference, stats.quantized, stats.error)
    return _Packed(
        *key, len(stats.sums), stats.channel_axis, stats.sums.tobytes(), stats.extremes.tobytes(),
        [h.top for h in histograms], [h.counts.tobytes() for h in histograms],
    )  # fmt: skip


def _unpacked(packed: _Packed) -> PairStats:
    stats = PairStats(packed.axis)
    stats.sums = _rows(packed.sums, packed.channels)
    stats.extremes = _rows(packed.extremes, packed.channels)
    for histogram, top, counts in zip(
        (stats.reference, stats.quantized, stats.error), packed.tops, packed.counts, strict=True
    ):
        histogram.top, histogram.counts = top, np.frombuffer(counts, np.int64).copy()
    return stats


def _rows(data: bytes, rows: int) -> npt.NDArray[Any]:
    found = np.frombuffer(data, np.float64)
    return found.reshape(rows, -1).copy() if rows else found.reshape(0, 0)
