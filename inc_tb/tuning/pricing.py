"""What it costs to keep ops in fp32, and what share of the multiplications a model does in int8."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from inc_tb.errors import DataError, IncTbError, reading
from inc_tb.frameworks.ops import Batch, Macs
from inc_tb.frameworks.registry import framework_of
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.profiling.benchmark import benchmark
from inc_tb.profiling.run import profile
from inc_tb.records import ProfileRow
from inc_tb.search.journal import Journal
from inc_tb.tuning.objectives import LATENCY, OPS, SIZE, measure_latency

_RUNS = 10
_TURNS, _SECONDS = 20, 4.0
_FASTER = 1.05
"""How much faster something has to be to be preferred."""
_SIMULATION = 3
"""Passes of the fp32 model that a simulated one takes."""
_SETS, _TENSORS = 40, 200
"""How many evaluations there should be time for."""
_SAMPLES = ((4, 16), (2, 4))
"""The fewest and the most of these."""
MOST_SAMPLES = 16
MULTIPLYING = ("conv", "matmul", "bmm", "gemm", "linear", "fully", "dense")
"""What the types of ops that multiply matrices have in them, in all frameworks."""
_ALSO_MULTIPLYING = ("lstm", "gru", "rnn", "einsum", "attention")
_HEAVY, _MANY = 0.01, 10_000
"""Of all weights, and how many: an op that has more gains by their size."""
_AT_BORDERS = 0.5
"""Conversions where int8 meets fp32, as a share of the op's own time in fp32: what it touches is written once more."""
_LEAST = 0.01
"""Of the mean price: no op is free, so that of two ways that cost the same the one with fewer ops is taken."""
_COUNTED = 0.95
"""Of the reference's multiplications, of a quantized model of which the rest can be told."""
_SAVED_BYTES = 3
"""Of each weight, by one byte instead of four."""


class Pricing:
    """Measurements are kept in a file, so that a tuning that goes on decides as before."""

    def __init__(self, reference: Any, batch: Batch, minimize: str, memory: Path) -> None:
        self._reference, self._batch, self._minimize = reference, batch, minimize
        self._journal = Journal(memory)
        with reading(DataError, memory, "is damaged", "Delete it; what it holds is measured anew."):
            self._known = {line["about"]: line["found"] for line in self._journal}
        self._macs: Mapping[str, Macs] | None = None

    def is_faster(self, about: str, made: Callable[[], Sequence[Any]]) -> bool:
        """The first of two models, timed in turns; `about` says which they are."""
        key = f"speed of {about}"
        if key not in self._known:
            self._keep(key, self._is_faster(made))
        return bool(self._known[key])

    def _is_faster(self, made: Callable[[], Sequence[Any]]) -> bool:
        try:
            models = made()
            if not framework_of(models[0]).can("open_timer"):
                return False
            sides = dict(zip(("int8", "fp32"), models, strict=True))
            speed = benchmark(sides, [self._batch], [1], runs=_TURNS, warmup=1, threads=None, seconds=_SECONDS)[0]
        except IncTbError:
            return False
        return speed.differs is not False and (speed.speedup or 0.0) > _FASTER

    def affordable_samples(self, seconds: float) -> tuple[int, int]:
        """For the simulation of a set and, rougher, of a single tensor, in so many seconds altogether."""
        if "samples" not in self._known:
            evaluation_s = _SIMULATION * measure_latency(self._reference, self._batch) / 1000
            counts = [seconds / (share * evaluation_s) for share in (_SETS, _TENSORS)]
            within = zip(counts, _SAMPLES, strict=True)
            self._keep("samples", [int(min(most, max(least, count))) for count, (least, most) in within])
        fine, rough = self._known["samples"]
        return fine, rough

    def prices(self, about: str, made: Callable[[], tuple[Any, Iterable[str], Diagnosis]]) -> dict[str, float]:
        """What it costs to keep each unit in fp32: microseconds, bytes, or by multiplications where nothing is timed.

        `made` gives the quantized model, its units and its diagnosis. Nothing where every op costs the same.
        """
        if self._minimize == OPS:
            return {}
        key = f"prices of {about}"
        if key not in self._known:
            quantized, units, found = made()
            rows = self._timed(quantized)
            known = {row.op: _price(row) for row in rows} if rows else self._estimated(found)
            self._keep(f"slower of {about}", slower_in_int8(rows))
            self._keep(key, _filled(units, known))
        return dict(self._known[key])

    def slower(self, about: str) -> list[str]:
        """Ops that take less time in fp32, of a model whose prices were asked for."""
        return list(self._known.get(f"slower of {about}", ()))

    def without_multiplications(self, units: Iterable[str], found: Diagnosis) -> list[str]:
        """Units with neither products nor many weights, which gain nothing by integers but what is around them."""
        weights = _weights(found)
        types = dict(zip(map(str, found.ops["name"]), map(str.lower, map(str, found.ops["type"])), strict=True))
        heavy = max(_MANY, _HEAVY * sum(weights.values()))
        macs = self._reference_macs()

        def gains(unit: str) -> bool:
            multiplies = unit in macs or any(part in types[unit] for part in (*MULTIPLYING, *_ALSO_MULTIPLYING))
            return multiplies or weights[unit] > heavy

        return [unit for unit in units if unit in types and not gains(unit)]

    def int8_share(self, model: Any) -> float | None:
        """Of the reference's multiplications; None where they cannot be told."""
        total = sum(macs.number for macs in self._reference_macs().values())
        counted = self._count(model).values()
        if not total or sum(macs.number for macs in counted) < _COUNTED * total:
            return None
        return min(1.0, sum(macs.number for macs in counted if macs.is_integer) / total)

    def _reference_macs(self) -> Mapping[str, Macs]:
        if self._macs is None:
            self._macs = self._count(self._reference)
        return self._macs

    def _count(self, model: Any) -> Mapping[str, Macs]:
        framework = framework_of(model)
        if not framework.can("count_macs"):
            return {}
        try:
            return framework.count_macs(model, self._batch)
        except IncTbError:
            return {}

    def _timed(self, quantized: Any) -> list[ProfileRow]:
        """Nothing where times do not matter, or cannot be told."""
        if self._minimize != LATENCY or not framework_of(quantized).can("open_timer"):
            return []
        try:
            rows = profile(self._reference, self._batch, quantized=quantized, runs=_RUNS).rows
        except IncTbError:
            return []
        return [row for row in rows if row.op]

    def _estimated(self, found: Diagnosis) -> dict[str, float]:
        if self._minimize == SIZE:
            return {op: _SAVED_BYTES * number for op, number in _weights(found).items() if number}
        return {op: float(macs.number) for op, macs in self._reference_macs().items()}

    def _keep(self, about: str, found: Any) -> None:
        self._known[about] = found
        self._journal.add({"about": about, "found": found})


def _weights(found: Diagnosis) -> dict[str, float]:
    """Of each op, how many it has."""
    return dict(zip(map(str, found.ops["name"]), map(float, np.nan_to_num(found.ops["params"])), strict=True))


def slower_in_int8(rows: Iterable[ProfileRow]) -> list[str]:
    """Ops that would save time in fp32, together with the conversions on their account."""
    return [row.op for row in rows if row.fp32_us and row.int8_us and _saved_us(row) < 0]


def _price(row: ProfileRow) -> float:
    return max(_saved_us(row), 0.0) + _AT_BORDERS * (row.fp32_us or 0.0)


def _saved_us(row: ProfileRow) -> float:
    return (row.fp32_us or 0.0) - (row.int8_us or 0.0) - row.convert_us


def _filled(units: Iterable[str], known: Mapping[str, float]) -> dict[str, float]:
    named = list(units)
    least = _LEAST * sum(known.values()) / max(1, len(named)) or 1.0
    return {unit: max(least, known.get(unit, 0.0)) for unit in named}
