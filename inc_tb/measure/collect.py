"""Batches through both models, and statistics of every pair of arrays, while the models go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from os import cpu_count
from typing import Any

import numpy as np

from inc_tb.data import as_batch
from inc_tb.errors import DataError, OutOfMemoryError
from inc_tb.frameworks.boundary import reading_models
from inc_tb.frameworks.ops import Array, Batch, Op, Pair, Role
from inc_tb.frameworks.protocols import Adapter
from inc_tb.frameworks.registry import describe
from inc_tb.measure.by_sample import Samples
from inc_tb.measure.op_table import Measurement
from inc_tb.measure.previews import Previews
from inc_tb.measure.shards import Key, Shard, merged_over_ranks
from inc_tb.measure.stats import PairStats
from inc_tb.measure.tokens import TokenWatch

Progress = Callable[[int], None]
Check = Callable[[Sequence[Op], Batch], None]
_WAITING_BYTES = 12 << 20
_LARGE_BYTES = 48 << 20
_SMALL_BYTES = 128 << 10
"""Of an array that is rather copied beside others than given to a call of its own."""
STORED: Sequence[Role] = ("output", "weight")
"""Whose histograms and channels are kept; the others only serve the op table."""


def collect(
    adapter: Adapter,
    batches: Iterable[Any],
    progress: Progress | None = None,
    check: Check | None = None,
    watch: TokenWatch | None = None,
    previews: Previews | None = None,
) -> Shard:
    """Statistics of every pair over all batches, and what is known of single samples.

    `check` is given the ops and the first batch, before anything is run but for tracing; `watch` sees every pair.
    What the worst samples look like is kept where `previews` are given that want it.
    """
    try:
        return _collect(
            adapter, batches, progress, check, watch or TokenWatch(), Samples(previews=previews or Previews())
        )
    except MemoryError as error:
        raise OutOfMemoryError(
            f"there is not enough memory to compare the arrays of one batch ({error}). Give this process more memory, "
            "or allow it less at once with --memory."
        ) from error


def _collect(
    adapter: Adapter, batches: Iterable[Any], progress: Progress | None, check: Check | None, watch: TokenWatch,
    by_sample: Samples,
) -> Shard:  # fmt: skip
    samples, is_open = 0, False
    inputs = adapter.inputs()
    if not isinstance(batches, Iterable):
        raise DataError(f"{describe(batches)} was given as data; expected batches, one batch, or a path.")
    with ThreadPoolExecutor(max_workers=cpu_count() or 1) as pool:
        collector = _Collector(pool, by_sample)
        for given in batches:
            batch = as_batch(given, inputs)
            if any(array.ndim and not len(array) for array in batch.values()):
                continue  # without samples
            size = next((len(array) for array in batch.values() if array.ndim), 1)
            with reading_models():
                if not is_open:
                    is_open = True
                    adapter.trace(batch)
                    if check is not None:
                        check(adapter.ops(), batch)
                    collector.set_ops(adapter.ops())
                    watch.set_ops(adapter.ops())
                    collector.add(adapter.weights())
                by_sample.begin(batch, size)
                collector.add(watch.of_batch(batch, adapter.run(batch)))
                by_sample.end()
            samples += size
            if progress is not None:
                progress(samples)
        collector.finish()
    if not samples:
        raise DataError("the data has no samples; expected at least one batch. Check the data source.")
    return Shard(collector.collected, samples, by_sample)


def collect_with_others(
    adapter: Adapter, batches: Iterable[Any], progress: Progress | None = None, check: Check | None = None,
    previews: Previews | None = None,
) -> Shard:  # fmt: skip
    """The same over the shards of all processes. Also when this process fails it says so: the others wait for it."""
    try:
        own = collect(adapter, batches, progress, check, previews=previews)
    except Exception as error:
        merged_over_ranks(Shard(), str(error) or type(error).__name__)
        raise
    return merged_over_ranks(own)


class _Collector:
    """Keeps statistics of pairs, in threads, while the models go on.

    Small arrays (a batch of one sample, a narrow layer) wait until there are enough of them to be worth a call;
    how many bytes may wait is fixed, so memory does not grow with the number of samples.
    """

    def __init__(self, pool: ThreadPoolExecutor, by_sample: Samples) -> None:
        self.collected: dict[Key, PairStats] = {}
        self._by_sample = by_sample
        self._ops: dict[str, Op] = {}
        self._pool = pool
        self._waiting: dict[Key, list[Pair]] = {}
        self._bytes = 0
        self._running: list[Future[None]] = []

    def set_ops(self, ops: Sequence[Op]) -> None:
        self._ops = {op.name: op for op in ops}
        self._by_sample.set_ops(ops)

    def add(self, pairs: Iterable[Pair]) -> None:
        for pair in pairs:
            key = pair.op, pair.role
            if key not in self.collected:
                limits = _limits(self._ops[pair.op], pair.role)
                self.collected[key] = PairStats(pair.channel_axis, limits, histograms=pair.role in STORED)
            self._by_sample.see(pair)
            self._waiting.setdefault(key, []).append(pair)
            self._bytes += pair.reference.nbytes + pair.quantized.nbytes
            if self._bytes > _WAITING_BYTES:
                self._start()

    def finish(self) -> None:
        self._start()
        self._wait()

    def _start(self) -> None:
        self._wait()  # a pair's statistics are brought up to date by one thread at a time
        self._running = [self._pool.submit(self._update, key, pairs) for key, pairs in self._waiting.items()]
        is_large = self._bytes > _LARGE_BYTES
        self._waiting, self._bytes = {}, 0
        if is_large:
            self._wait()  # two such heaps at once would be much of what the models themselves take

    def _wait(self) -> None:
        for update in self._running:
            update.result()
        self._running = []

    def _update(self, key: Key, pairs: Sequence[Pair]) -> None:
        first = pairs[0].reference
        can_join = first.ndim > 1 and len({pair.reference.shape[1:] for pair in pairs}) == 1
        if can_join and len(pairs) > 1 and first.nbytes < _SMALL_BYTES:
            joined = (
                np.concatenate(arrays) for arrays in zip(*((p.reference, p.quantized) for p in pairs), strict=True)
            )
            self._add(key, *joined)
            return
        for pair in pairs:
            self._add(key, pair.reference, pair.quantized)

    def _add(self, key: Key, reference: Array, quantized: Array) -> None:
        self.collected[key].update(reference, quantized)
        self._by_sample.add(key, reference, quantized)


def by_op(ops: Sequence[Op], collected: Mapping[Key, PairStats]) -> list[Measurement]:
    """What was collected, arranged by op."""
    found = []
    compared_at = {op.name: op.compared_at for op in ops}
    reads: dict[str, list[str]] = {op.name: [] for op in ops}
    for op in ops:
        reads[op.compared_at or op.name] += op.inputs
    for op in ops:
        # What its parts read as well, but not what they read from each other.
        found_at = dict.fromkeys(compared_at[name] for name in reads[op.name])
        sources = [name for name in found_at if name and name != op.name]
        arrived = [collected[name, "output"] for name in sources if (name, "output") in collected]
        if (op.name, "input") in collected:
            arrived.append(collected[op.name, "input"])
        output, isolated = collected.get((op.name, "output")), collected.get((op.name, "isolated"))
        found.append(Measurement(op, collected.get((op.name, "weight")), output, isolated, arrived))
    return found


def _limits(op: Op, role: Role) -> tuple[Any, Any] | None:
    quantization = {"weight": op.weight, "output": op.activation}.get(role)
    return quantization.limits if quantization is not None else None
