"""What quantizing any subset of a model does to its outputs, on a fixed set of samples.

The error of a sample is the squared difference of its scores to fp32, relative to how much the scores vary between
samples; of a model the mean over samples. 0 is fp32, 1 is an output that says nothing any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from inc_tb.data import cut, digest, take
from inc_tb.errors import OutOfMemoryError
from inc_tb.frameworks.feeds import count_rows
from inc_tb.frameworks.ops import Array
from inc_tb.frameworks.protocols import Outputs, Switchable
from inc_tb.frameworks.registry import named
from inc_tb.search.journal import Journal

Errors = npt.NDArray[np.float64]
"""One number a sample."""
WORST = 1e9
"""Instead of infinity, where an output is not finite."""
_RESAMPLES = 1000


@dataclass
class Comparison:
    """How far the outputs of one form of the model are from fp32's."""

    error: float
    agreement: float | None = None
    """Share of the same top-1 decisions, where the output has classes."""
    divergence: float | None = None
    """Kullback-Leibler divergence from fp32's distribution, in nats, where the output is one."""


class Simulation:
    """Evaluates subsets, remembers them, and counts what that took."""

    def __init__(self, model: Switchable, batches: Iterable[Any], *, samples: int = 32) -> None:
        self.model = model
        self.batches = take(batches, samples, model.inputs)
        self._data = digest(self.batches)
        model.trace(self.batches[0])
        self.notes: list[str] = []
        outputs = self._first_outputs()
        self.scores = [[np.asarray(a) for a in out.scores] for out in outputs]
        self.results = [[np.asarray(a) for a in out.results] for out in outputs]
        self._power = [_power([batch[i] for batch in self.scores]) for i in range(len(self.scores[0]))]
        self._known: dict[frozenset[str], Errors] = {frozenset(): np.zeros(self._samples())}
        self._journal: Journal | None = None
        self._place = {name: i for i, name in enumerate(self._places())}
        self.evaluations = 0
        self.progress: Callable[[], None] | None = None
        """Called after every evaluation."""
        known = named(model.framework)
        self._channels_last = known is not None and known.channels_last
        self._sites_of: dict[str, list[str]] = {}
        for site in model.sites:
            for unit in site.units:
                self._sites_of.setdefault(unit, []).append(site.name)

    def _first_outputs(self) -> list[Outputs]:
        """Where memory runs out, in smaller batches, which are kept."""
        try:
            return [self.model.run(batch, ()) for batch in self.batches]
        except (MemoryError, OutOfMemoryError):
            size = max(count_rows(batch) for batch in self.batches)
            smaller = [part for batch in self.batches for part in cut(batch, max(1, size // 2), self.model.inputs)]
            if len(smaller) == len(self.batches):
                raise
        self.batches = smaller
        self.notes = [f"memory ran out with {size} samples at once; the output was probed with {size // 2} at once"]
        return self._first_outputs()

    def remember(self, journal: Journal, about: str) -> None:
        """Keep what is found in a file, and take from it what an earlier run over the same models and data found."""
        names = list(self._place)
        mark = {"version": 1, "about": about, "data": self._data, "sites": names}
        lines = list(journal)
        if not lines or lines[0] != mark:
            journal.clear()
            journal.add(mark)
            lines = [mark]
        for line in lines[1:]:
            self._known[frozenset(names[i] for i in line["on"])] = np.array(line["errors"])
        self._journal = journal

    def errors(self, on: Collection[str]) -> Errors:
        """With these sites rounded."""
        key = frozenset(on)
        if key not in self._known:
            pairs = zip(self.batches, self.scores, strict=True)
            found = [self._batch_errors(self.model.run(batch, key).scores, own) for batch, own in pairs]
            self._known[key] = np.concatenate(found)
            self.evaluations += 1
            if self._journal is not None:
                self._journal.add({"on": sorted(self._place[n] for n in key), "errors": self._known[key].tolist()})
            if self.progress is not None:
                self.progress()
        return self._known[key]

    def _places(self) -> list[str]:
        return [name for site in self.model.sites for name in (site.name, site.instead) if name]

    def error(self, on: Collection[str]) -> float:
        return float(self.errors(on).mean())

    def is_known(self, on: Collection[str]) -> bool:
        return frozenset(on) in self._known

    def sites_of(self, unit: str) -> list[str]:
        """What is rounded when only this unit is quantized."""
        return self._sites_of.get(unit, [])

    def sites_without(self, kept: Collection[str]) -> frozenset[str]:
        """What is rounded when all units but these are quantized."""
        given = frozenset(kept)
        on = {site.name for site in self.model.sites if not site.units <= given}
        on.update(s.instead for s in self.model.sites if s.instead and s.units <= given and not s.is_spared(given))
        return frozenset(on)

    def error_keeping(self, units: Collection[str]) -> float:
        return self.error(self.sites_without(units))

    def compare(self) -> dict[str, Comparison]:
        """fp32, the simulation with everything on, and the quantized model itself with its fused kernels."""
        everything = [site.name for site in self.model.sites]
        forms = {
            "fp32": self.results,
            "simulated": [self.model.run(batch, everything).results for batch in self.batches],
            "real": [self.model.run_real(batch) for batch in self.batches],
        }
        return {name: self.compared(results) for name, results in forms.items()}

    def compared(self, results: Sequence[Sequence[Array]]) -> Comparison:
        found = Comparison(float(np.concatenate(list(self._result_errors(results))).mean()))
        pairs = [
            (mine, theirs)
            for own, other in zip(self.results, results, strict=True)
            for mine, theirs in zip(own, other, strict=True)
            if self._class_axis(mine) is not None and mine.shape == theirs.shape
        ]
        if pairs:
            same = [np.argmax(a, self._class_axis(a)) == np.argmax(b, self._class_axis(a)) for a, b in pairs]
            found.agreement = float(np.concatenate([s.ravel() for s in same]).mean())
        if pairs and all(_is_distribution(a, self._class_axis(a)) for a, _ in pairs):
            found.divergence = float(np.concatenate([_divergence(a, b, self._class_axis(a)) for a, b in pairs]).mean())
        return found

    def _class_axis(self, array: Array) -> int | None:
        """Where the classes of a result are: of images where their channels are, else at the end."""
        if array.dtype.kind != "f" or array.ndim < 2:
            return None
        axis = 1 if array.ndim > 3 and not self._channels_last else array.ndim - 1
        return axis if array.shape[axis] > 1 else None

    def _result_errors(self, results: Sequence[Sequence[Array]]) -> Iterable[Errors]:
        power = [_power([batch[i] for batch in self.results]) for i in range(len(self.results[0]))]
        for own, other in zip(self.results, results, strict=True):
            yield self._batch_errors(other, own, power)

    def _batch_errors(self, scores: Sequence[Array], own: Sequence[Array], power: Sequence[float] = ()) -> Errors:
        rows = _rows(own)
        parts = zip(scores, own, power or self._power, strict=True)
        found = [_array_errors(np.asarray(a), b, p, rows) for a, b, p in parts]
        return np.asarray(np.mean(found, axis=0), np.float64)

    def _samples(self) -> int:
        return sum(_rows(own) for own in self.scores)


def interval(errors: Errors, seed: int = 0) -> tuple[float, float]:
    """95 % bootstrap interval of the mean over samples."""
    means = resampled(errors[None], seed)[0]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def resampled(errors: npt.NDArray[np.float64], seed: int = 0) -> npt.NDArray[np.float64]:
    """Means of resampled samples; `errors` has a row for each thing measured on the same samples."""
    count = errors.shape[1]
    weights = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=_RESAMPLES)
    return np.asarray(errors @ weights.T / count, np.float64)


def _rows(arrays: Sequence[Array]) -> int:
    """Samples of a batch as its outputs show them; 1 where they do not all have one row a sample."""
    lengths = {a.shape[0] if a.ndim else 1 for a in arrays}
    return max(1, lengths.pop()) if len(lengths) == 1 else 1


def _power(arrays: Sequence[Array]) -> float:
    """How much an output varies between samples, per sample; its whole size where there is but one."""
    if arrays[0].dtype.kind != "f":
        return 1.0
    alike = len({a.shape[1:] for a in arrays}) == 1 and arrays[0].ndim > 0
    rows = max(1, sum(len(a) if a.ndim else 1 for a in arrays))
    finite = [np.nan_to_num(a.astype(np.float64), posinf=0, neginf=0) for a in arrays]
    if alike and rows > 1:
        middle = sum(a.sum(axis=0) for a in finite) / rows
        varies = float(sum(np.square(a - middle).sum() for a in finite)) / rows
        if varies > 0:
            return varies
    return float(sum(np.square(a).sum() for a in finite)) / rows or 1.0


def _array_errors(scores: Array, own: Array, power: float, rows: int) -> Errors:
    if not own.size and scores.shape == own.shape:
        return np.zeros(rows)
    if scores.shape != own.shape:
        return np.full(rows, 1.0)  # another number of detections, say: nothing is the same
    if own.dtype.kind != "f":
        return np.asarray((scores != own).reshape(rows, -1).mean(axis=1), np.float64)
    with np.errstate(all="ignore"):
        difference = np.square(scores.astype(np.float64) - own.astype(np.float64))
        difference = np.where(np.isfinite(own), difference, 0)
        found = difference.reshape(rows, -1).sum(axis=1) / power
    if rows == 1 and own.ndim and own.shape[0] > 1:
        found = found / own.shape[0]
    return np.asarray(np.nan_to_num(np.minimum(found, WORST), nan=WORST), np.float64)


def _is_distribution(array: Array, axis: int | None) -> bool:
    return axis is not None and bool(np.all(array >= 0)) and bool(np.allclose(array.sum(axis), 1, atol=1e-3))


def _divergence(p: Array, q: Array, axis: int | None) -> Errors:
    p, q = (np.maximum(a.astype(np.float64), 1e-12) for a in (p, q))
    return np.asarray((p * np.log(p / q)).sum(axis).ravel(), np.float64)
