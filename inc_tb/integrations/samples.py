"""A few samples out of what a training loop has: loaders, and batches with more than the model takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from os import PathLike
from typing import Any

from inc_tb.data import Data, is_one_batch
from inc_tb.errors import DataError, UsageError
from inc_tb.frameworks.arrays import as_array

LABELS = frozenset({"label", "labels", "label_ids", "start_positions", "end_positions"})


def check_samples(samples: int | None) -> None:
    if samples is not None and (not isinstance(samples, int) or isinstance(samples, bool) or samples < 1):
        raise UsageError(f"samples={samples!r} was given; expected a whole number from 1 on, or None for a few.")


def check_data(data: Any) -> None:
    if isinstance(data, str | PathLike) or not (is_one_batch(data) or isinstance(data, Iterable)):
        raise UsageError(f"data={data!r} was given; expected a batch, an iterable of batches, or a DataLoader.")


def first_batches(source: Any, samples: int, chosen: Callable[[Any], Any]) -> list[Any]:
    """The first samples of a batch, an iterable of batches, or a DataLoader, which is left as it is.

    `chosen` gets a batch, and returns what the model takes of it.
    """
    if is_one_batch(source):
        source = [source]
    elif hasattr(source, "dataset") and callable(getattr(source, "collate_fn", None)):
        source = [collated(source, samples)]
    found = list(Data(lambda: map(chosen, source)).first(samples))
    if not found:
        raise DataError("the data has no samples; expected at least one batch. Give others with data=….")
    return found


def collated(loader: Any, samples: int) -> Any:
    """Without going through the loader: its workers, samplers and what distributed training counts stay untouched."""
    dataset = loader.dataset
    try:
        if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
            rows = [dataset[i] for i in range(min(samples, len(dataset)))]
        else:
            rows = _streamed(dataset, samples)
        return loader.collate_fn(rows if loader.batch_sampler is not None else rows[0])
    except UsageError:
        raise
    except Exception as error:  # the user's own code may raise anything
        raise DataError(
            f"no samples from {type(dataset).__name__}: {type(error).__name__}: {error}. Give some with data=…."
        ) from error


def batch_size(loader: Any) -> int | None:
    """None where that is not known."""
    found = getattr(loader, "batch_size", None)
    return found if found is not None else getattr(getattr(loader, "batch_sampler", None), "batch_size", None)


def _streamed(dataset: Any, samples: int) -> list[Any]:
    stream = iter(dataset)
    if stream is dataset:
        raise UsageError(
            f"{type(dataset).__name__} can be gone through only once, and training needs it; give samples with data=…."
        )
    return list(islice(stream, samples))


def as_inputs(batch: Any, forward: Any, labels: Collection[str] = ()) -> Any:
    """What a model's forward takes of a batch, without labels."""
    parameters = list(inspect.signature(forward).parameters.values())
    if isinstance(batch, Mapping):
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        names = batch if takes_all else [p.name for p in parameters if p.name in batch]
        left_out = LABELS.union(labels)
        return {str(n): as_array(batch[n]) for n in names if n not in left_out and hasattr(batch[n], "ndim")}
    if isinstance(batch, tuple | list):
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        required = sum(p.default is p.empty for p in positional)
        return tuple(as_array(array) for array in batch[: max(1, required)])
    return as_array(batch)
