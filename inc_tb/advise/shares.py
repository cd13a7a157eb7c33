"""A diagnosis in shares: each measures its own batches, wherever that is, and together they are one run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from itertools import chain, islice
from os import PathLike
from typing import Any, NamedTuple

from inc_tb.advise.diagnose import diagnosed, measure_adapted, measured_how
from inc_tb.advise.given import Given
from inc_tb.data import as_batch, cut, is_one_batch, open_for
from inc_tb.engines.engine import Engine, Sent
from inc_tb.engines.models import from_anywhere, open_model
from inc_tb.errors import DataError
from inc_tb.frameworks.models import open_pair, read_inputs
from inc_tb.frameworks.protocols import MOST_SAMPLES, Adapter
from inc_tb.measure.collect import Progress
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.measure.origin import origin_of
from inc_tb.measure.shardfiles import StoredShard, merge_all, pack


class Share(NamedTuple):
    """Which of the batches: every so-manieth one, from this one on."""

    place: int
    shares: int

    def __str__(self) -> str:
        return f"{self.place}/{self.shares}"


class Asked(NamedTuple):
    """What is to be measured, as a worker can open it."""

    reference: Any
    quantized: Any
    names: tuple[str, str]
    data: str | None
    """None where batches are sent."""
    samples: int | None
    batch_size: int | None
    memory_budget: int | None


def batches_of(share: Share, batches: Iterable[Any]) -> Iterator[Any] | None:
    """Whole batches, as one process would have them: a batch decides how its samples are summed up and rounded.

    None where there are fewer batches than that.
    """
    own = islice(batches, share.place - 1, None, share.shares)
    first = next(own, None)
    return None if first is None else chain([first], own)


def measured_share(
    share: Share, adapter: Adapter, own: Iterator[Any], models: tuple[Any, Any], names: tuple[str, str], given: Given,
    asked: Mapping[str, int | None], progress: Progress | None = None,
) -> tuple[StoredShard, int]:  # fmt: skip
    """And how many samples it has."""
    measured = measure_adapted(adapter, own, given, progress=progress)
    origin = origin_of(models, measured, measured_how(adapter, measured))
    stored = pack(
        measured, place=share.place, count=share.shares, names=names, framework=adapter.framework,
        notes=list(adapter.notes), ops=list(adapter.ops()), origin=origin, asked=dict(asked),
    )  # fmt: skip
    return stored, measured.samples


def diagnose_on(
    engine: Engine, models: tuple[Any, Any], batches: Any, *, names: tuple[str, str], samples: int | None = None,
    batch_size: int | None = None, memory_budget: int | None = None, progress: Progress | None = None,
) -> Diagnosis:  # fmt: skip
    """Of models and data as they were given, a share for each worker; what one process would have found."""
    is_place = isinstance(batches, str | PathLike)
    own = None if is_place else _listed(batches, models[1], batch_size)
    count = engine.width if own is None else min(engine.width, len(own))
    data = from_anywhere(batches) if is_place else None
    first, second = map(from_anywhere, models)
    asked = Asked(first, second, names, data, samples, batch_size, memory_budget)
    shared = engine.share(asked, "the models")
    shares = [Share(place, count) for place in range(1, count + 1)]
    running = [
        engine.submit(measure_share, shared, share, None if own is None else own[share.place - 1 :: count])
        for share in shares
    ]
    done = 0
    for future in as_completed(running):
        found = engine.result(future)
        done += 0 if found is None else found[1]
        if progress is not None:
            progress(done)
    stored = [found[0] for future in running if (found := engine.result(future)) is not None]
    if not stored:
        raise DataError("the data has no samples; expected at least one batch. Check the data source.")
    for one in stored:  # with fewer batches than workers the last ones had none
        one.count = len(stored)
    whole = merge_all([(one, f"share {one.place} of {one.count}") for one in stored])
    return diagnosed(whole.measured, whole.ops, whole.framework, whole.names, whole.notes, whole.origin)


def measure_share(sent: Sent, share: Share, batches: Sequence[Any] | None) -> tuple[StoredShard, int] | None:
    """In a worker: of batches that it was sent, or its share of those that it opens."""
    asked, models, given = sent.opened(_opened)
    adapter = open_pair(*models, memory_budget=asked.memory_budget, batch_size=asked.batch_size)
    if batches is None:
        own = batches_of(share, open_for(adapter, asked.data or "").first(asked.samples))
    else:
        own = iter(batches)
    return None if own is None else measured_share(share, adapter, own, models, asked.names, given, {})


def _opened(asked: Asked) -> tuple[Asked, tuple[Any, Any], Given]:
    models = open_model(asked.reference), open_model(asked.quantized)
    return asked, models, Given(*models, asked.names)


def _listed(batches: Any, model: Any, batch_size: int | None) -> list[Any]:
    """One batch is cut as a file would be."""
    if not is_one_batch(batches):
        return list(batches)
    inputs = read_inputs(open_model(model))
    return cut(as_batch(batches, inputs), batch_size or MOST_SAMPLES, inputs)
