"""The same simulation in other processes, which evaluate subsets that do not depend on each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np

from inc_tb.engines.engine import Engine, Sent
from inc_tb.engines.models import from_anywhere, open_model
from inc_tb.errors import MismatchError
from inc_tb.frameworks.models import open_switches, quantize_to_ranges
from inc_tb.frameworks.ops import Batch
from inc_tb.search.objective import Errors
from inc_tb.search.simulation import Simulation

_ALL = 1 << 62
"""Samples: those that are sent were chosen already."""


class _Asked(NamedTuple):
    """A quantized model may be ranges of tensors, as for a probe."""

    reference: Any
    quantized: Any
    batches: list[Batch]


class Workers:
    def __init__(self, engine: Engine, models: tuple[Any, Any], batches: list[Batch]) -> None:
        self._engine = engine
        first, second = map(from_anywhere, models)
        self._shared = engine.share(_Asked(first, second, batches), "the models")

    def ask(self, places: Iterable[int], of: int) -> Future[Any]:
        """With the sites at these places rounded."""
        on = np.zeros(of, bool)
        on[list(places)] = True
        return self._engine.submit(evaluate, self._shared, np.packbits(on).tobytes(), of)

    def answer(self, future: Future[Any]) -> Errors:
        found: Errors = self._engine.result(future)
        return found


def evaluate(sent: Sent, packed: bytes, of: int) -> Errors:
    """In a worker."""
    simulation = sent.opened(_opened)
    places = simulation.places
    if len(places) != of:
        raise MismatchError(f"a worker finds {len(places)} rounded places, not {of}. Install the same versions.")
    on = np.unpackbits(np.frombuffer(packed, np.uint8), count=of)
    return simulation.errors([places[i] for i in np.flatnonzero(on)])


def _opened(asked: _Asked) -> Simulation:
    reference, quantized = open_model(asked.reference), asked.quantized
    is_ranges = isinstance(quantized, Mapping)
    quantized = quantize_to_ranges(reference, quantized) if is_ranges else open_model(quantized)
    return Simulation(open_switches(reference, quantized), asked.batches, samples=_ALL)
