"""What quantizing any subset of a model does to its outputs, on a fixed set of samples.

The error of a sample is the squared difference of its scores to fp32, relative to how much the scores vary between
samples, where need be for each kind of channels (objective.py); of a model the mean over its outputs and samples. 0 is
fp32, 1 is an output that says nothing any more.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from inc_tb.data import cut, digest, take
from inc_tb.errors import DataError, OutOfMemoryError, reading
from inc_tb.frameworks.boundary import reading_models
from inc_tb.frameworks.feeds import count_rows
from inc_tb.frameworks.ops import Array, Range
from inc_tb.frameworks.protocols import Outputs, Switchable
from inc_tb.frameworks.registry import named
from inc_tb.search.comparison import Comparison, Expected, batch_errors, measures_of, rows_of
from inc_tb.search.journal import Journal
from inc_tb.search.objective import Errors

if TYPE_CHECKING:
    from inc_tb.search.workers import Workers

_RESAMPLES = 1000


class Simulation:
    """Evaluates subsets, remembers them, and counts what that took."""

    def __init__(self, model: Switchable, batches: Iterable[Any], *, samples: int = 32) -> None:
        self.model = model
        self.batches = take(batches, samples, model.inputs)
        self._data = digest(self.batches)
        with reading_models():
            model.trace(self.batches[0])
        self.notes: list[str] = []
        outputs = self._first_outputs()
        self.scores = [[np.asarray(a) for a in out.scores] for out in outputs]
        self.results = [[np.asarray(a) for a in out.results] for out in outputs]
        self._measures = measures_of(self.scores)
        self._known: dict[frozenset[str], Errors] = {frozenset(): np.zeros(self._samples())}
        self._ranged: dict[str, float] = {}
        self._journal: Journal | None = None
        self._workers: Workers | None = None
        self._foreseen: dict[frozenset[str], Future[Any]] = {}
        self._place = {name: i for i, name in enumerate(self._all_places())}
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
            with reading_models():
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
        mark = {"version": 2, "about": about, "data": self._data, "sites": names}
        lines = list(journal)
        if not lines or lines[0] != mark:
            journal.clear()
            journal.add(mark)
            lines = [mark]
        with reading(DataError, journal.path, "is damaged", "Delete it; what it holds is measured anew."):
            for line in lines[1:]:
                if "ranged" in line:
                    self._ranged[line["ranged"]] = float(line["error"])
                    continue
                self._known[frozenset(names[i] for i in line["on"])] = np.array(line["errors"], float)
        self._journal = journal

    def errors(self, on: Collection[str]) -> Errors:
        """With these sites rounded."""
        key = frozenset(on)
        if key not in self._known:
            if self._workers is not None and key in self._foreseen:
                self._known[key] = self._workers.answer(self._foreseen.pop(key))
            else:
                self._known[key] = self._evaluated(key)
            self._count({"on": sorted(self._place[n] for n in key), "errors": self._known[key].tolist()})
        return self._known[key]

    def error_with(self, ranges: Mapping[str, Range], on: Collection[str]) -> float:
        """With tensors rounded to other ranges than those of the quantized model."""
        told = json.dumps([sorted(self._place[name] for name in on), sorted(ranges.items())])
        key = hashlib.sha256(told.encode()).hexdigest()
        if key not in self._ranged:
            model: Any = self.model
            with reading_models():
                found = [
                    batch_errors(model.run(batch, on, ranges).scores, own, self._measures)
                    for batch, own in zip(self.batches, self.scores, strict=True)
                ]
            self._ranged[key] = float(np.concatenate(found).mean())
            self._count({"ranged": key, "error": self._ranged[key]})
        return self._ranged[key]

    def _count(self, line: dict[str, Any]) -> None:
        self.evaluations += 1
        if self._journal is not None:
            self._journal.add(line)
        if self.progress is not None:
            self.progress()

    def _evaluated(self, key: frozenset[str]) -> Errors:
        pairs = zip(self.batches, self.scores, strict=True)
        with reading_models():
            found = [batch_errors(self.model.run(batch, key).scores, own, self._measures) for batch, own in pairs]
        return np.concatenate(found)

    def share_with(self, workers: Workers) -> None:
        """What is foreseen from now on they evaluate."""
        self._workers = workers

    def foresee(self, subsets: Iterable[Collection[str]]) -> None:
        """These will be asked for next, in this order: where there are workers they begin."""
        if self._workers is None:
            return
        for key in map(frozenset, subsets):
            if key not in self._known and key not in self._foreseen:
                self._foreseen[key] = self._workers.ask([self._place[name] for name in key], len(self._place))

    def forget_foreseen(self) -> None:
        """What was not asked for after all."""
        for future in self._foreseen.values():
            future.cancel()
        self._foreseen = {}

    @property
    def places(self) -> list[str]:
        """All that can be rounded, by which workers are told subsets."""
        return list(self._place)

    def _all_places(self) -> list[str]:
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
        with reading_models():
            forms = {
                "fp32": self.results,
                "simulated": [self.model.run(batch, everything).results for batch in self.batches],
                "real": [self.model.run_real(batch) for batch in self.batches],
            }
        return {name: self.compared(results) for name, results in forms.items()}

    def compared(self, results: Sequence[Sequence[Array]]) -> Comparison:
        counts = [count_rows(batch) for batch in self.batches]
        return Expected(self.results, counts, channels_last=self._channels_last).compared(results)

    def _samples(self) -> int:
        return sum(rows_of(own) for own in self.scores)


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
