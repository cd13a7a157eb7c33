"""Two models and data in, a diagnosis out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from os import PathLike, cpu_count
from typing import Any

import numpy as np
import numpy.typing as npt

from inc_tb.capture import Adapter, Array, Pair, Role, describe, open_models
from inc_tb.data import as_batch, is_one_batch, open_data
from inc_tb.diagnosis import Diagnosis
from inc_tb.errors import DataError
from inc_tb.histogram import Histogram
from inc_tb.judge import judge
from inc_tb.merge import merged_over_ranks
from inc_tb.metrics import Measurement, channel_sqnr_db, op_table
from inc_tb.records import ChannelRow, GraphNode, HistogramRow, Op, Quantization
from inc_tb.stats import PairStats

Key = tuple[str, Role]
Progress = Callable[[int], None]
_WAITING_BYTES = 24 << 20
_LARGE_BYTES = 96 << 20
_EXACT_POWER = 22
"""Up to here powers of ten are exact as floats."""
STORED: Sequence[Role] = ("output", "weight")
"""Whose histograms and channels are kept; the others only serve the op table."""


def diagnose(
    reference: Any,
    quantized: Any,
    batches: str | PathLike[str] | Mapping[str, Array] | Array | Iterable[Any],
    *,
    memory_budget: int = 1 << 30,
    distributed: bool = False,
    progress: Progress | None = None,
) -> Diagnosis:
    """Compare a quantized model with its reference, op by op.

    Models are paths or objects; for a PyTorch model in quantization-aware training the reference may be None, which is
    the same model without its fake quantization. `batches` yields mappings from input name to array (or plain arrays
    for a model with one input); one batch by itself, or a path as for `--data`, works too. Only one batch is held,
    and its intermediate arrays are fetched in several passes where they exceed `memory_budget` bytes.
    With `distributed` every process of torch.distributed calls this with its own shard of the batches, and all get the
    diagnosis of the whole. `progress` is called with the number of samples done so far.
    """
    adapter = open_models(reference, quantized, memory_budget=memory_budget)
    if isinstance(batches, str | PathLike):
        batches = open_data(batches, adapter.inputs(), adapter.batch_size())
    elif is_one_batch(batches):
        batches = [batches]
    names = "the same without fake quantization" if reference is None else describe(reference), describe(quantized)
    return diagnose_adapted(adapter, batches, names=names, distributed=distributed, progress=progress)


def diagnose_adapted(
    adapter: Adapter,
    batches: Iterable[Any],
    *,
    names: tuple[str, str],
    distributed: bool = False,
    progress: Progress | None = None,
) -> Diagnosis:
    """The same for models that are open already; `names` are what the log calls them."""
    collected, samples = (_collect_with_others if distributed else collect)(adapter, batches, progress)
    ops = adapter.ops()
    measurements = measure(ops, collected)
    suggestions = judge(measurements, adapter.framework)
    by_name = {op.name: op for op in ops}
    chosen = {key: stats for key, stats in collected.items() if key[1] in STORED}
    return Diagnosis(
        op_table(measurements),
        suggestions,
        [histogram_row(by_name[op], role, stats) for (op, role), stats in chosen.items()],
        [channel_row(op, role, stats) for (op, role), stats in chosen.items() if stats.channels > 1],
        [GraphNode(op.name, op.type, op.inputs, op.tensor, op.module) for op in ops],
        *names,
        adapter.framework,
        samples,
        [*adapter.notes, *_notes(ops, collected)],
    )


def _notes(ops: Sequence[Op], collected: Mapping[Key, PairStats]) -> list[str]:
    """What the reader should know before believing the numbers."""
    notes = []
    if all(op.weight is None and op.activation is None for op in ops):
        notes.append("nothing is quantized in the second model; expected the fp32 model first, then the quantized one")
    worst = max((s.total("nonfinite_x") for s in collected.values()), default=0.0)
    if worst:
        notes.append(f"the fp32 model has up to {worst:.0f} NaN or infinite values in one tensor; they are left out")
    return notes


def collect(
    adapter: Adapter, batches: Iterable[Any], progress: Progress | None = None
) -> tuple[dict[Key, PairStats], int]:
    """Statistics of every pair over all batches, and the number of samples."""
    samples, is_open = 0, False
    inputs = adapter.inputs()
    if not isinstance(batches, Iterable):
        raise DataError(f"{describe(batches)} was given as data; expected batches, one batch, or a path.")
    with ThreadPoolExecutor(max_workers=cpu_count() or 1) as pool:
        collector = _Collector(pool)
        for given in batches:
            batch = as_batch(given, inputs)
            if any(array.ndim and not len(array) for array in batch.values()):
                continue  # without samples
            if not is_open:
                is_open = True
                adapter.trace(batch)
                collector.set_ops(adapter.ops())
                collector.add(adapter.weights())
            collector.add(adapter.run(batch))
            samples += next((len(array) for array in batch.values() if array.ndim), 1)
            if progress is not None:
                progress(samples)
        collector.finish()
    if not samples:
        raise DataError("the data has no samples; expected at least one batch. Check the data source.")
    return collector.collected, samples


def _collect_with_others(
    adapter: Adapter, batches: Iterable[Any], progress: Progress | None = None
) -> tuple[dict[Key, PairStats], int]:
    """Also when this process fails it says so: the others wait for it."""
    try:
        collected, samples = collect(adapter, batches, progress)
    except Exception as error:
        merged_over_ranks({}, 0, str(error) or type(error).__name__)
        raise
    return merged_over_ranks(collected, samples)


class _Collector:
    """Keeps statistics of pairs, in threads, while the models go on.

    Small arrays (a batch of one sample, a narrow layer) wait until there are enough of them to be worth a call;
    how many bytes may wait is fixed, so memory does not grow with the number of samples.
    """

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.collected: dict[Key, PairStats] = {}
        self._ops: dict[str, Op] = {}
        self._pool = pool
        self._waiting: dict[Key, list[Pair]] = {}
        self._bytes = 0
        self._running: list[Future[None]] = []

    def set_ops(self, ops: Sequence[Op]) -> None:
        self._ops = {op.name: op for op in ops}

    def add(self, pairs: Iterable[Pair]) -> None:
        for pair in pairs:
            key = pair.op, pair.role
            if key not in self.collected:
                limits = _limits(self._ops[pair.op], pair.role)
                self.collected[key] = PairStats(pair.channel_axis, limits, histograms=pair.role in STORED)
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
        can_join = len({pair.reference.shape[1:] for pair in pairs}) == 1 and pairs[0].reference.ndim > 1
        if can_join and len(pairs) > 1:
            joined = (
                np.concatenate(arrays) for arrays in zip(*((p.reference, p.quantized) for p in pairs), strict=True)
            )
            self.collected[key].update(*joined)
            return
        for pair in pairs:
            self.collected[key].update(pair.reference, pair.quantized)


def measure(ops: Sequence[Op], collected: Mapping[Key, PairStats]) -> list[Measurement]:
    """What was collected, arranged by op."""
    found = []
    compared_at = {op.name: op.compared_at for op in ops}
    for op in ops:
        sources = dict.fromkeys(compared_at[name] for name in op.inputs if compared_at[name])
        arrived = [collected[name, "output"] for name in sources if (name, "output") in collected]
        if (op.name, "input") in collected:
            arrived.append(collected[op.name, "input"])
        output, isolated = collected.get((op.name, "output")), collected.get((op.name, "isolated"))
        found.append(Measurement(op, collected.get((op.name, "weight")), output, isolated, arrived))
    return found


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


def _limits(op: Op, role: Role) -> tuple[Any, Any] | None:
    quantization = {"weight": op.weight, "output": op.activation}.get(role)
    return quantization.limits if quantization is not None else None


def _step(quantization: Quantization | None) -> float | None:
    if quantization is None or quantization.scale is None or quantization.scale.size != 1:
        return None
    return float(quantization.scale.flat[0])


def _sparse(histogram: Histogram, top: int) -> list[int]:
    counts = histogram.raised(top)
    used = np.flatnonzero(counts)
    flat: list[int] = np.stack([used, counts[used]], axis=1).ravel().tolist()
    return flat
