"""Where the time goes: one model, or two that are run in turn so that noise hits both alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from os import PathLike
from typing import Any

from inc_tb.advise.given import refuse_swapped
from inc_tb.data import as_batch, is_one_batch, open_data
from inc_tb.errors import DataError, ModelError, UsageError
from inc_tb.frameworks.models import name_twins, open_timer, read_graph, read_inputs
from inc_tb.frameworks.ops import Array, Batch, Input
from inc_tb.frameworks.protocols import Timer
from inc_tb.frameworks.registry import describe, framework_of
from inc_tb.profiling.benchmark import benchmark, speed_of
from inc_tb.profiling.noise import LEAST_BLOCKS
from inc_tb.profiling.profile import Profile
from inc_tb.profiling.timetable import Side, Timed, tabulate
from inc_tb.profiling.undisturbed import cleaned_up, undisturbed
from inc_tb.records import GraphNode, ProfileRow

Progress = Callable[[int, int], None]
MOST_BATCHES = 8
MOST_BLOCKS = 10
LEAST_RUNS = 5
"""In a block, where there are enough runs for blocks that can be compared."""
_APART = 0.15
_COARSE = 10
"""Times of fewer ticks of the clock than this are rough."""


def profile(
    model: Any,
    batches: str | PathLike[str] | Mapping[str, Array] | Array | Iterable[Any],
    *,
    quantized: Any = None,
    warmup: int = 3,
    runs: int = 50,
    threads: int | None = None,
    batch_sizes: Sequence[int] = (),
    progress: Progress | None = None,
) -> Profile:
    """Measure the time of each op, as the model ships: with the runtime's own profiler and its optimizations.

    With `quantized` both models are opened and run in turn, several times over, so that the difference of each op can
    be told from noise. `batches` as for `diagnose`; the first few are held and run again and again, and one run is one
    batch, so that a batch of one sample gives latencies. The first `warmup` runs after each opening do not count.
    Without `threads` the runtime decides. `batch_sizes` are those for which latency and throughput of whole runs are
    measured besides, of the samples at hand, again and again where there are fewer. `progress` is called with the runs
    done and those there will be.
    """
    sizes = (("batch_sizes", size, 1) for size in batch_sizes)
    for name, given, least in (("warmup", warmup, 0), ("runs", runs, 1), ("threads", threads, 1), *sizes):
        if given is not None and given < least:
            raise UsageError(f"{name}={given} was given; expected a whole number from {least} on.")
    framework_of(model).require("open_timer")
    held = _hold(batches, read_inputs(model))
    twins = name_twins(model, quantized, held[0]) if quantized is not None else {}
    models = [model] if quantized is None else [model, quantized]
    timed = [Timed() for _ in models]
    blocks = _blocks(runs)
    with cleaned_up():
        for block, share in enumerate(blocks):
            order = list(range(len(models)))[:: -1 if block % 2 else 1]
            timers: dict[int, Timer] = {}
            with ExitStack() as closing:  # what was changed last is restored first, also when a run fails
                for i in order:  # which is opened first decides where its buffers lie
                    timers[i] = open_timer(models[i], held[0], threads, like=model)
                    closing.callback(timed[i].add, timers[i], share, is_last=block == len(blocks) - 1)
                if len(timers) > 1 and timers[0].is_quantized and not timers[1].is_quantized:
                    refuse_swapped((describe(model), describe(quantized)))
                with undisturbed():
                    _run_block(timers, timed, held, warmup, share, order)
            if progress is not None:
                progress(sum(blocks[: block + 1]), runs)
    sides: list[Side] = ["fp32", "int8"] if len(models) > 1 else ["int8" if timed[0].is_quantized else "fp32"]
    by_side = dict(zip(sides, timed, strict=True))
    rows, total = tabulate(by_side, twins, blocks)
    names = {side: describe(m) for side, m in zip(sides, models, strict=True)}
    samples = _samples_in(held)
    others = [size for size in dict.fromkeys(batch_sizes) if size != samples]
    with cleaned_up():
        speeds = benchmark(
            dict(zip(sides, models, strict=True)), held, others, runs=runs, warmup=warmup, threads=threads
        )
    if samples is not None:
        speeds.append(speed_of(samples, {side: found.plain for side, found in by_side.items()}, total.differs))
    return Profile(
        rows, total, names.get("fp32", ""), names.get("int8", ""), framework_of(model).name, runs, threads,
        samples, {side: found.overhead for side, found in by_side.items()},
        {side: found.accounted_us / getattr(total, f"{side}_us") for side, found in by_side.items()},
        list(dict.fromkeys([*_notes(rows, by_side), *_few(len(models), len(blocks))])), _graph_of(model),
        [s._replace(model=side) for side, found in by_side.items() for s in found.slices],
        {f"{side}.{name}": data for side, found in by_side.items() for name, data in found.traces.items()},
        sorted(speeds, key=lambda speed: speed.batch_size),
    )  # fmt: skip


def _samples_in(held: Sequence[Batch]) -> int | None:
    """Of each batch; None where they differ."""
    found = {next((len(array) for array in batch.values() if array.ndim), 1) for batch in held}
    return found.pop() if len(found) == 1 else None


def _hold(batches: Any, inputs: Sequence[Input]) -> list[Batch]:
    if isinstance(batches, str | PathLike):
        batches = open_data(batches, inputs, 1)
    elif is_one_batch(batches):
        batches = [batches]
    if not isinstance(batches, Iterable):
        raise DataError(f"{describe(batches)} was given as data; expected batches, one batch, or a path.")
    held: list[Batch] = []
    for given in batches:
        batch = as_batch(given, inputs)
        if all(len(array) for array in batch.values() if array.ndim):
            held.append(batch)
        if len(held) == MOST_BATCHES:
            break
    if not held:
        raise DataError("the data has no samples; expected at least one batch. Check the data source.")
    return held


def _blocks(runs: int) -> list[int]:
    """How many runs there are after each opening of the models."""
    count = max(1, min(MOST_BLOCKS, max(runs // LEAST_RUNS, min(runs // 2, LEAST_BLOCKS))))
    return [runs // count + (i < runs % count) for i in range(count)]


def _run_block(
    timers: Mapping[int, Timer], timed: Sequence[Timed], batches: Sequence[Batch], warmup: int, runs: int,
    order: list[int],
) -> None:  # fmt: skip
    """Both models with each batch, in turns as to which comes first; once as it ships and once with the profiler."""
    prepared = {i: [timer.prepare(batch) for batch in batches] for i, timer in timers.items()}
    before = len(timed[0].plain)
    for run in range(-warmup, runs):
        for is_profiled in (False, True):
            for i in order:
                work = timers[i].run_profiled if is_profiled else timers[i].run
                took = 1e6 * work(prepared[i][(before + run) % len(batches)])
                if run >= 0:
                    (timed[i].profiled if is_profiled else timed[i].plain).append(took)
        order.reverse()


def _notes(rows: Sequence[ProfileRow], timed: Mapping[Side, Timed]) -> Iterator[str]:
    """What the reader should know before believing the numbers."""
    for side, found in timed.items():
        yield from found.notes
        itself = [getattr(row, f"{side}_us") or 0.0 for row in rows if row.op]
        times = [*itself, *(row.convert_us for row in rows if side == "int8")]
        if sum(times) < (1 - _APART) * found.accounted_us:
            yield (
                f"the machine was busy: the medians of the {side} ops add up to {sum(times) / found.accounted_us:.0%} "
                "of what the ops of one run take together. Measure again when it is idle, or with one thread"
            )
        rough = sum(time for time in times if time < _COARSE * found.resolution_us)
        if rough > sum(times) / 2:
            yield (
                f"most time of the {side} model is in ops of under {_COARSE * found.resolution_us:g} µs, where the "
                f"profiler's clock has {found.resolution_us:g} µs: larger batches give better numbers"
            )


def _few(models: int, blocks: int) -> list[str]:
    if models == 1 or blocks >= LEAST_BLOCKS:
        return []
    return [f"too few runs to tell differences from noise; {2 * LEAST_BLOCKS} are the least, 50 are good"]


def _graph_of(model: Any) -> list[GraphNode]:
    try:
        return read_graph(model)
    except ModelError:  # PyTorch models without a graph of their own
        return []
