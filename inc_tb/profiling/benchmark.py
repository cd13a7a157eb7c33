"""How long one model or two take for batches of several sizes: latency and throughput, as they ship."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
import numpy as np

from inc_tb.errors import IncTbError
from inc_tb.frameworks.models import open_timer
from inc_tb.frameworks.ops import Batch
from inc_tb.frameworks.protocols import Timer
from inc_tb.profiling.noise import difference
from inc_tb.profiling.undisturbed import undisturbed

_BLOCK = 5
"""Runs after each opening."""


class Speed(msgspec.Struct, omit_defaults=True):
    """Medians of whole runs with so many samples; of one model or of both."""

    batch_size: int
    fp32_us: float | None = None
    int8_us: float | None = None
    fp32_p95_us: float | None = None
    int8_p95_us: float | None = None
    fp32_samples_per_s: float | None = None
    int8_samples_per_s: float | None = None
    speedup: float | None = None
    differs: bool | None = None
    """Whether the two times can be told apart from noise."""
    note: str = ""
    """Why there are no times."""


def as_told(speeds: Sequence[Speed]) -> list[dict[str, Any]]:
    """As JSON has them: every number that there is, and null for one that there is not."""
    return [{name: getattr(speed, name) for name in Speed.__struct_fields__} for speed in speeds]


def speed_of(batch_size: int, times: Mapping[str, Sequence[float]], differs: bool | None = None) -> Speed:
    """From runs in µs of the sides "fp32" and "int8"."""
    found = Speed(batch_size, differs=differs)
    for side, of_side in times.items():
        median = float(np.median(of_side))
        setattr(found, f"{side}_us", median)
        setattr(found, f"{side}_p95_us", float(np.percentile(of_side, 95)))
        setattr(found, f"{side}_samples_per_s", 1e6 * batch_size / median if median else None)
    if found.fp32_us is not None and found.int8_us:
        found.speedup = found.fp32_us / found.int8_us
    return found


def benchmark(
    models: Mapping[str, Any], held: Sequence[Batch], batch_sizes: Sequence[int], *, runs: int, warmup: int,
    threads: int | None, seconds: float | None = None,
) -> list[Speed]:  # fmt: skip
    """`models` by side; each size until the runs, or with fewer of them the `seconds`, are over."""
    found = []
    for size in batch_sizes:
        batch = batch_of(held, size)
        try:
            found.append(_measured(models, batch, size, runs, warmup, threads, seconds))
        except IncTbError as error:  # many models take one size only
            found.append(Speed(size, note=str(error)))
    return found


def batch_of(held: Sequence[Batch], size: int) -> Batch:
    """So many samples, again and again the same where there are fewer; what has no axis stays as it is."""
    shapes = {name: array.shape[1:] for name, array in held[0].items()}
    alike = [b for b in held if {name: array.shape[1:] for name, array in b.items()} == shapes]
    made = {}
    for name, first in held[0].items():
        rows = np.concatenate([batch[name] for batch in alike]) if first.ndim else first
        made[name] = np.ascontiguousarray(rows[np.arange(size) % len(rows)]) if first.ndim else first
    return made


def _measured(
    models: Mapping[str, Any], batch: Batch, size: int, runs: int, warmup: int, threads: int | None,
    seconds: float | None,
) -> Speed:  # fmt: skip
    blocks: dict[str, list[list[float]]] = {side: [] for side in models}
    like, began = next(iter(models.values())), time.monotonic()
    for place, share in enumerate(_shares(runs)):
        order = list(models)[:: -1 if place % 2 else 1]
        with ExitStack() as closing:
            timers: dict[str, Timer] = {}
            for side in order:
                timers[side] = open_timer(models[side], batch, threads, like=like)
                closing.callback(timers[side].close)
            with undisturbed():
                for side, block in _run_in_turn(timers, batch, warmup, share).items():
                    blocks[side].append(block)
        if seconds is not None and time.monotonic() - began > seconds:
            break
    series = {side: [np.array(runs_of_block) for runs_of_block in of_side] for side, of_side in blocks.items()}
    interval = difference(*series.values()) if len(series) > 1 else None
    times = {side: [t for runs_of_block in of_side for t in runs_of_block] for side, of_side in blocks.items()}
    return speed_of(size, times, None if interval is None else interval.differs)


def _shares(runs: int) -> Iterator[int]:
    """How many runs there are after each opening."""
    while runs > 0:
        yield min(runs, _BLOCK)
        runs -= _BLOCK


def _run_in_turn(timers: Mapping[str, Timer], batch: Batch, warmup: int, runs: int) -> dict[str, list[float]]:
    prepared = {side: timer.prepare(batch) for side, timer in timers.items()}
    times: dict[str, list[float]] = {side: [] for side in timers}
    order = list(timers)
    for run in range(-warmup, runs):
        for side in order:
            took = 1e6 * timers[side].run(prepared[side])
            if run >= 0:
                times[side].append(took)
        order.reverse()
    return times
