"""Statistics of a 64 MiB float32 pair, in units of one `a.sum()` of the same array in the same run.

    python benchmarks/stats.py

Prints the whole set (all sums, per channel, three histograms) beside the obvious numpy code, for the
compiled kernel and for the numpy implementation that stands in where there is no C compiler; then the
kernel with two threads.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from inc_tb.measure import stats
from inc_tb.measure.stats import PairStats

SHAPES = {
    "one tensor": ((1 << 24,), None),
    "256 channels of 32 x 32": ((64, 256, 32, 32), 1),
    "16 channels of 512 x 512": ((4, 16, 512, 512), 1),
    "64 channels of 8 x 8": ((4096, 64, 8, 8), 1),
    "1,024 channels last": ((16384, 1024), 1),
}


class Units(NamedTuple):
    wall: float
    cpu: float
    """Of the calling thread, and the longest of those that it waits for: the clock of a machine with nothing else."""


def seconds(work: Callable[[], float | object], repeats: int = 5) -> Units:
    """`work` may return what the longest thread took."""

    def once() -> Units:
        start, own = time.perf_counter(), time.thread_time()
        longest = work()
        others = longest if isinstance(longest, float) else 0.0
        return Units(time.perf_counter() - start, time.thread_time() - own + others)

    return Units(*map(min, zip(*(once() for _ in range(repeats)), strict=True)))


def measured(repeats: int = 5) -> Iterator[tuple[str, Units, Units]]:
    """The whole set in units of a sum, by layout: on one thread, and on two."""
    for label, x, y, axis in layouts():
        unit = seconds(lambda: [x.sum()], repeats)
        found = (
            seconds(lambda: PairStats(axis, (-3, 3)).update(x, y), repeats),
            seconds(lambda: two_threads(x, y, axis), repeats),
        )
        yield (label, *(Units(some.wall / unit.wall, some.cpu / unit.cpu) for some in found))


def layouts() -> Iterator[tuple[str, np.ndarray, np.ndarray, int | None]]:
    flat = np.random.default_rng(0).standard_normal(1 << 24, dtype=np.float32)
    for kind, values in (("bell curve", flat), ("after a ReLU", np.maximum(flat, 0))):
        quantized = (np.round(values * 32) / 32).astype(np.float32)
        for name, (shape, axis) in SHAPES.items():
            yield f"{name}, {kind}", values.reshape(shape), quantized.reshape(shape), axis


def obvious(x: np.ndarray, y: np.ndarray, axis: int | None) -> None:
    a, b = x.astype(np.float64), y.astype(np.float64)
    e = a - b
    others = None if axis is None else tuple(i for i in range(x.ndim) if i != axis)
    for v in (a, b, e):
        v.sum(axis=others), (v * v).sum(axis=others), v.min(axis=others), v.max(axis=others)
    (a * b).sum(axis=others), (a * a * a).sum(axis=others), (a * a * a * a).sum(axis=others)
    np.abs(e).max(axis=others)
    ((a != 0) & (b == 0)).sum(axis=others), (a != 0).sum(axis=others), ((a < -3) | (a > 3)).sum(axis=others)
    np.isfinite(a).all(), np.isfinite(b).all()
    span = min(a.min(), b.min()), max(a.max(), b.max())
    np.histogram(a, 1024, span), np.histogram(b, 1024, span), np.histogram(e, 1024)


def two_threads(x: np.ndarray, y: np.ndarray, axis: int | None) -> float:
    """The processor's time of the longer one."""
    parts = [PairStats(axis, (-3, 3)) for _ in range(2)]

    def update(part: PairStats, mine: np.ndarray, theirs: np.ndarray) -> float:
        own = time.thread_time()
        part.update(mine, theirs)
        return time.thread_time() - own

    with ThreadPoolExecutor(2) as pool:
        longest = max(pool.map(update, parts, np.array_split(x, 2), np.array_split(y, 2)))
    parts[0].merge(parts[1])
    return longest


def main() -> None:
    print(f"{'':42}{'kernel':>8}{'2 threads':>11}{'numpy':>8}{'obvious':>9}   in units of one a.sum()")
    for (label, kernel, threaded), (_, x, y, axis) in zip(measured(), layouts(), strict=True):
        unit = seconds(lambda: [x.sum()]).cpu
        compiled, stats._kernel = stats._kernel, None
        plain = seconds(lambda: PairStats(axis, (-3, 3)).update(x, y), 2).cpu / unit
        stats._kernel = compiled
        naive = seconds(lambda: obvious(x, y, axis), 1).cpu / unit
        print(f"{label:42}{kernel.cpu:8.1f}{threaded.cpu:11.1f}{plain:8.1f}{naive:9.0f}")


if __name__ == "__main__":
    main()
