"""What it costs to keep ops in fp32, and what share of the multiplications a model does in int8."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from inc_tb.errors import IncTbError
from inc_tb.frameworks.ops import Batch, Macs
from inc_tb.frameworks.registry import framework_of
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.profiling.run import profile
from inc_tb.records import ProfileRow
from inc_tb.search.journal import Journal
from inc_tb.tuning.objectives import LATENCY, OPS, SIZE, measure_latency

_RUNS = 10
_AT_BORDERS = 0.5
"""Conversions where int8 meets fp32, as a share of the op's own time in fp32: what it touches is written once more."""
_LEAST = 0.01
"""Of the mean price: no op is free, so that of two ways that cost the same the one with fewer ops is taken."""
_SAVED_BYTES = 3
"""Of each weight, by one byte instead of four."""


class Pricing:
    """Measurements are kept in a file, so that a tuning that goes on decides as before."""

    def __init__(self, reference: Any, batch: Batch, minimize: str, memory: Path) -> None:
        self._reference, self._batch, self._minimize = reference, batch, minimize
        self._journal = Journal(memory)
        self._known = {line["about"]: line["found"] for line in self._journal}
        self._macs: Mapping[str, Macs] | None = None

    def latency_ms(self, about: str, model: Any) -> float:
        """Of a model that may be no trial; `about` says which it is."""
        key = f"latency of {about}"
        if key not in self._known:
            self._keep(key, measure_latency(model, self._batch))
        return float(self._known[key])

    def prices(self, about: str, made: Callable[[], tuple[Any, Iterable[str], Diagnosis]]) -> dict[str, float]:
        """What it costs to keep each unit in fp32: microseconds, bytes, or by multiplications where nothing is timed.

        `made` gives the quantized model, its units and its diagnosis. Nothing where every op costs the same.
        """
        if self._minimize == OPS:
            return {}
        key = f"prices of {about}"
        if key not in self._known:
            quantized, units, found = made()
            self._keep(key, _filled(units, self._measured(quantized, found)))
        return dict(self._known[key])

    def without_multiplications(self, units: Iterable[str], found: Diagnosis) -> list[str]:
        """Units with neither products nor weights, which gain nothing by integers but what is around them."""
        weighted = {str(op) for op, params in zip(found.ops["name"], found.ops["params"], strict=True) if params}
        bearing = {*weighted, *self._reference_macs()}
        return [unit for unit in units if unit not in bearing]

    def int8_share(self, model: Any) -> float | None:
        """Of the reference's multiplications; None where they cannot be told."""
        total = sum(macs.number for macs in self._reference_macs().values())
        if not total:
            return None
        return min(1.0, sum(macs.number for macs in self._count(model).values() if macs.is_integer) / total)

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

    def _measured(self, quantized: Any, found: Diagnosis) -> dict[str, float]:
        if self._minimize == SIZE:
            names, params = found.ops["name"], found.ops["params"]
            return {str(op): _SAVED_BYTES * float(n) for op, n in zip(names, params, strict=True) if n}
        if self._minimize == LATENCY and framework_of(quantized).can("open_timer"):
            try:
                rows = profile(self._reference, self._batch, quantized=quantized, runs=_RUNS).rows
                return {row.op: _price(row) for row in rows if row.op}
            except IncTbError:
                pass  # by its multiplications, then
        return {op: float(macs.number) for op, macs in self._reference_macs().items()}

    def _keep(self, about: str, found: Any) -> None:
        self._known[about] = found
        self._journal.add({"about": about, "found": found})


def _price(row: ProfileRow) -> float:
    saved = (row.fp32_us or 0.0) - (row.int8_us or 0.0) - row.convert_us
    return max(saved, 0.0) + _AT_BORDERS * (row.fp32_us or 0.0)


def _filled(units: Iterable[str], known: Mapping[str, float]) -> dict[str, float]:
    named = list(units)
    least = _LEAST * sum(known.values()) / max(1, len(named)) or 1.0
    return {unit: max(least, known.get(unit, 0.0)) for unit in named}
