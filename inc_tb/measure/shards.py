"""Statistics of several processes as one: packed, sent around, merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from inc_tb.errors import DataError
from inc_tb.frameworks.ops import Role
from inc_tb.frameworks.registry import frameworks
from inc_tb.measure.by_sample import SampleIds, Samples, SampleSums, in_turns
from inc_tb.measure.previews import Ranked
from inc_tb.measure.stats import PairStats

Key = tuple[str, Role]
Collected = dict[Key, PairStats]


@dataclass
class Shard:
    """What was measured of some samples, or of all of them."""

    stats: Collected = field(default_factory=dict)
    samples: int = 0
    by_sample: Samples = field(default_factory=Samples)


class _Packed(msgspec.Struct, array_like=True):
    op: str
    role: Role
    channels: int
    axis: int | None
    sums: bytes
    extremes: bytes
    tops: list[int]
    counts: list[bytes]


class _PackedSums(msgspec.Struct, array_like=True):
    op: str
    role: Role
    most: int
    power: bytes
    error: bytes
    is_lost: bool


class _Message(msgspec.Struct, array_like=True):
    samples: int
    error: str
    stats: list[_Packed]
    batches: list[int] = []
    ids: bytes = b""
    total: int = 0
    outputs: list[str] = []
    sums: list[_PackedSums] = []
    previews: list[Ranked] = []


def merged_over_ranks(own: Shard, error: str = "") -> Shard:
    """What all processes of torch.distributed have collected, the same in each; raises in all if one had an error."""
    messages = [msgspec.msgpack.decode(data, type=_Message) for data in _gathered(packed(own, error))]
    failed = [f"rank {rank}: {message.error}" for rank, message in enumerate(messages) if message.error]
    if failed:
        raise DataError("; ".join(failed))
    return merged([_shard(message) for message in messages])


def packed(shard: Shard, error: str = "") -> bytes:
    own = shard.by_sample
    sums = [
        _PackedSums(*key, found.most, found.power.tobytes(), found.error.tobytes(), key in own.lost)
        for key, found in own.sums.items()
    ]
    stats = [_packed(key, stats) for key, stats in shard.stats.items()]
    told = own.batches, own.ids.first, own.ids.total, sorted(own.outputs)
    return msgspec.msgpack.encode(_Message(shard.samples, error, stats, *told, sums, own.previews.worst))


def unpacked(data: bytes) -> Shard:
    return _shard(msgspec.msgpack.decode(data, type=_Message))


def merged(shards: Sequence[Shard]) -> Shard:
    """All of them as one, in the order in which they are given."""
    found: Collected = {}
    for place, shard in enumerate(shards):
        for key, stats in shard.stats.items():
            if key not in found:
                found[key] = stats
            elif key[1] != "weight" or not place:  # every process has the same weights
                found[key].merge(stats)
    return Shard(found, sum(shard.samples for shard in shards), in_turns([shard.by_sample for shard in shards]))


def _gathered(data: bytes) -> list[bytes]:
    """What every process gives, in the order of their ranks, by a framework that knows the group."""
    found = (framework.gather_bytes(data) for framework in frameworks())
    return next(messages for messages in found if messages is not None)


def _shard(message: _Message) -> Shard:
    own = Samples(SampleIds(message.ids, message.total), message.batches, outputs=set(message.outputs))
    own.previews.worst = message.previews
    for sums in message.sums:
        key = sums.op, sums.role
        own.sums[key] = SampleSums(sums.most, *(np.frombuffer(b, np.float32) for b in (sums.power, sums.error)))
        if sums.is_lost:
            own.lost.add(key)
    return Shard({(one.op, one.role): _unpacked(one) for one in message.stats}, message.samples, own)


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
