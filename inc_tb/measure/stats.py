"""Running statistics of a pair of arrays: one pass, constant memory, exact over all batches.

Everything later (metrics, rules, records) is a function of these sums, so statistics from
several batches or workers merge without loss.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from inc_tb.errors import UsageError
from inc_tb.frameworks.arrays import as_array
from inc_tb.measure.histogram import KEYS, OCTAVES, Histogram, from_keys, keys
from inc_tb.records.rows import BINS

SUMS = (
    "count", "x", "x2", "x3", "x4", "y", "y2", "xy", "e", "e2",
    "nonzero", "flushed", "clipped", "nonfinite_x", "nonfinite_y",
)  # fmt: skip
EXTREMES = ("neg_x_min", "x_max", "neg_y_min", "y_max", "e_abs")
_SUM = {name: i for i, name in enumerate(SUMS)}
_EXTREME = {name: i for i, name in enumerate(EXTREMES)}
_BLOCK = 1 << 16

Floats = npt.NDArray[np.float64]


class PairStats:
    """Sums, extremes and histograms of a reference (x), a quantized array (y) and the error e = x - y.

    `limits` are the smallest and largest value that the quantized type can represent, one number
    for the tensor or one for each channel; reference values outside are counted as clipped.
    A pair in which either value is not finite is counted apart and left out of everything else.
    """

    def __init__(
        self,
        channel_axis: int | None = None,
        limits: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
        *,
        histograms: bool = True,
    ) -> None:
        self.channel_axis = channel_axis
        self.limits = limits
        self.with_histograms = histograms
        self.sums: Floats = np.zeros((0, len(SUMS)))
        self.extremes: Floats = np.zeros((0, len(EXTREMES)))
        self._totals: list[float] | None = None
        self.reference = Histogram()
        self.quantized = Histogram()
        self.error = Histogram()

    def update(self, reference: npt.NDArray[Any], quantized: npt.NDArray[Any]) -> None:
        x, y = _as_float(reference), _as_float(quantized)
        if x.shape != y.shape:
            raise UsageError(
                f"the reference has shape {x.shape}, the quantized array {y.shape}; both must be the same tensor"
            )
        outer, channels, inner = _layout(x.shape, self.channel_axis)
        sums, extremes = np.zeros((channels, len(SUMS))), np.full((channels, len(EXTREMES)), -np.inf)
        low, high = (_per_channel(v, channels) for v in self.limits or (-np.inf, np.inf))
        if x.size:
            use_c = _kernel is not None and x.dtype == y.dtype == np.float32
            update = _update_c if use_c else _update_numpy
            found = update(x, y, (outer, channels, inner), (low, high), sums, extremes, self.with_histograms)
            for histogram, more in zip(self._histograms(), found, strict=False):
                histogram.merge(more)
        self._add(sums, extremes)

    def merge(self, other: PairStats) -> None:
        self._add(other.sums, other.extremes)
        for mine, theirs in zip(self._histograms(), other._histograms(), strict=True):
            mine.merge(theirs)

    def total(self, name: str) -> float:
        if self._totals is None:
            self._totals = self.sums.sum(axis=0).tolist()
        return self._totals[_SUM[name]]

    def extreme(self, name: str) -> float:
        """The largest value over all channels; NaN where nothing finite was seen."""
        column = self.extremes[:, _EXTREME[name]]
        return float(column.max()) if column.size and np.isfinite(column.max()) else float("nan")

    def channel_sums(self, name: str) -> Floats:
        return self.sums[:, _SUM[name]]

    def channel_extremes(self, name: str) -> Floats:
        return self.extremes[:, _EXTREME[name]]

    @property
    def channels(self) -> int:
        """How many channels are told apart: 1 without a channel axis, or when its length varies."""
        return len(self.sums)

    def _histograms(self) -> tuple[Histogram, Histogram, Histogram]:
        return self.reference, self.quantized, self.error

    def _add(self, sums: Floats, extremes: Floats) -> None:
        self._totals = None
        if not len(sums):
            return
        if not len(self.sums):
            self.sums, self.extremes = sums.copy(), extremes.copy()
            return
        if len(sums) != len(self.sums):
            # An axis whose length varies (a sequence) has no channels: from here on there is one.
            self.channel_axis = None
            self.sums, self.extremes = _as_one_channel(self.sums, self.extremes)
            sums, extremes = _as_one_channel(sums, extremes)
        self.sums += sums
        np.maximum(self.extremes, extremes, out=self.extremes)


def _as_one_channel(sums: Floats, extremes: Floats) -> tuple[Floats, Floats]:
    return sums.sum(axis=0, keepdims=True), extremes.max(axis=0, keepdims=True)


def _as_float(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Contiguous float64 or float32; half types and integers of up to 16 bits fit float32 exactly."""
    array = as_array(array)
    if array.dtype == np.float64 or array.dtype == np.float32:
        return np.ascontiguousarray(array)
    exact_in_float32 = array.dtype.itemsize <= 2
    return np.ascontiguousarray(array, dtype=np.float32 if exact_in_float32 else np.float64)


def _layout(shape: tuple[int, ...], axis: int | None) -> tuple[int, int, int]:
    if axis is None or not shape:
        return 1, 1, int(np.prod(shape))
    axis %= len(shape)
    return int(np.prod(shape[:axis])), shape[axis], int(np.prod(shape[axis + 1 :]))


def _per_channel(values: npt.ArrayLike, channels: int) -> npt.NDArray[np.float32]:
    array = np.asarray(values, np.float32).ravel()
    return np.ascontiguousarray(np.broadcast_to(array if array.size == channels else array[:1], channels))


def _update_numpy(
    x: npt.NDArray[Any],
    y: npt.NDArray[Any],
    layout: tuple[int, int, int],
    limits: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]],
    sums: Floats,
    extremes: Floats,
    histograms: bool,
) -> list[Histogram]:
    """The definition of every sum, for all dtypes; in blocks that stay in the cache."""
    x, y = x.reshape(layout), y.reshape(layout)
    tables = np.zeros((3, KEYS), np.int64)
    bounded = bool(np.isfinite(limits[0]).any() or np.isfinite(limits[1]).any())
    for at in _blocks(layout):
        channel = at[1]
        a, b = x[at].astype(np.float64), y[at].astype(np.float64)
        total = _Reducer(a.shape)
        finite_pairs = np.isfinite(a) & np.isfinite(b)
        good = None if finite_pairs.all() else finite_pairs
        if good is not None:
            sums[channel, _SUM["nonfinite_x"]] += total(~np.isfinite(a))
            sums[channel, _SUM["nonfinite_y"]] += total(~np.isfinite(b))
            a, b = np.where(good, a, 0.0), np.where(good, b, 0.0)
        e = a - b
        a2 = a * a
        nonzero = a != 0
        terms = {
            "x": a, "x2": a2, "x3": a2 * a, "x4": a2 * a2, "y": b, "y2": b * b, "xy": a * b, "e": e, "e2": e * e,
            "nonzero": nonzero, "flushed": nonzero & (b == 0),
        }  # fmt: skip
        if bounded:
            low, high = (limit[channel, None] for limit in limits)
            clipped = (a < low) | (a > high)
            terms["clipped"] = clipped if good is None else clipped & good
        for name, term in terms.items():
            sums[channel, _SUM[name]] += total(term)
        sums[channel, _SUM["count"]] += a.shape[0] * a.shape[2] if good is None else total(good)
        for i, (term, sign) in enumerate(((a, -1), (a, 1), (b, -1), (b, 1), (np.abs(e), 1))):
            finite = term if good is None else np.where(good, term, -sign * np.inf)
            highest = sign * (finite.max(axis=2).max(axis=0) if sign > 0 else finite.min(axis=2).min(axis=0))
            extremes[channel, i] = np.maximum(extremes[channel, i], highest)
        for table, term in zip(tables, (a, b, e) if histograms else (), strict=False):
            values = term.ravel() if good is None else term[good]
            table += np.bincount(keys(_to_float32(values)), minlength=KEYS)
    return [from_keys(table) for table in tables] if histograms else []


class _Reducer:
    """Sums of an [outer, channels, inner] block per channel, as a matrix product: several times faster than sum()."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.ones = np.ones(shape[2])

    def __call__(self, term: npt.NDArray[Any]) -> Floats:
        term = term if term.dtype == np.float64 else term.astype(np.float64)
        rows = term[:, :, 0] if self.shape[2] == 1 else term.reshape(-1, self.shape[2]) @ self.ones
        result: Floats = rows.reshape(self.shape[:2]).sum(axis=0)
        return result


def _blocks(layout: tuple[int, int, int]) -> Iterator[tuple[slice, slice, slice]]:
    outer, channels, inner = layout
    step_inner = min(inner, _BLOCK)
    step_channels = max(1, min(channels, _BLOCK // step_inner))
    step_outer = max(1, _BLOCK // (step_inner * step_channels))
    for o in range(0, outer, step_outer):
        for c in range(0, channels, step_channels):
            for i in range(0, inner, step_inner):
                yield slice(o, o + step_outer), slice(c, c + step_channels), slice(i, i + step_inner)


def _to_float32(values: Floats) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):
        small = values.astype(np.float32)
    largest = np.finfo(np.float32).max
    return small if np.isfinite(small).all() else np.clip(small, -largest, largest)


def _update_c(
    x: npt.NDArray[np.float32],
    y: npt.NDArray[np.float32],
    layout: tuple[int, int, int],
    limits: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]],
    sums: Floats,
    extremes: Floats,
    histograms: bool,
) -> list[Histogram]:
    counts, tops = np.zeros((3, BINS), np.int64), np.zeros(3, np.int32)
    arrays = [ctypes.c_void_p(array.ctypes.data) for array in (x, y, *limits, sums, extremes, tops)]
    where = ctypes.c_void_p(counts.ctypes.data if histograms else None)
    _kernel(*arrays[:2], *map(ctypes.c_int64, layout), *arrays[2:-1], where, arrays[-1])
    if not histograms:
        return []
    return [Histogram(max(int(top), OCTAVES), row) for top, row in zip(tops, counts, strict=True)]


def energies(x: npt.NDArray[Any], y: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Of each row the sum of x squared, and of x - y squared."""
    if _energies is None or x.dtype != np.float32 or y.dtype != np.float32:
        e = x - y
        return np.einsum("ij,ij->i", x, x), np.einsum("ij,ij->i", e, e)
    x, y = np.ascontiguousarray(x), np.ascontiguousarray(y)
    found = np.empty((2, len(x)))
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (x, y, *found)]
    _energies(*pointers[:2], *map(ctypes.c_int64, x.shape), *pointers[2:])
    return found[0], found[1]


def _load(name: str) -> Any:
    """A compiled twin of what is here; absent where the package was built without a C compiler."""
    library = Path(__file__).with_name("_stats.so")
    if not library.exists():
        return None
    try:
        function = getattr(ctypes.CDLL(str(library)), name)
    except (OSError, AttributeError):  # built for another machine, or from an older source
        return None
    function.restype = None
    return function


_kernel, _energies = _load("inc_tb_update"), _load("inc_tb_energies")
