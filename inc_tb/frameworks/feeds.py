"""Data as a model takes it: the right types and shapes, in parts that fit the memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from inc_tb.errors import MismatchError
from inc_tb.frameworks.ops import Array, Batch, Input


def fitted(batch: Batch, inputs: Sequence[Input], *, free: Collection[str] = (), hint: str = "") -> dict[str, Array]:
    """The batch with the dtypes that the model wants, or an error that says what does not fit.

    Inputs in `free` may have any shape.
    """
    expected = {i.name: i for i in inputs}
    if set(batch) != set(expected):
        raise MismatchError(
            f"the data has the arrays {sorted(batch)}, the model has the inputs {sorted(expected)}. "
            "Name the arrays as the model's inputs."
        )
    return {name: _fit(np.asarray(array), expected[name], name in free, hint) for name, array in batch.items()}


def _fit(array: Array, expected: Input, is_free: bool, hint: str) -> Array:
    fits = array.ndim == len(expected.shape) and all(
        n is None or n == m for n, m in zip(expected.shape, array.shape, strict=True)
    )
    if not fits and not is_free:
        wanted = "x".join("any" if n is None else str(n) for n in expected.shape) or "a single number"
        given = "x".join(map(str, array.shape)) or "a single number"
        raise MismatchError(
            f"the array {expected.name} has shape {given}, the model expects {wanted}. "
            f"Reshape the data; the first axis counts the samples{hint}."
        )
    kinds = {"f": "fiu", "i": "iu", "u": "iu", "O": "OSU", "S": "OSU"}.get(expected.dtype.kind, expected.dtype.kind)
    if array.dtype.kind not in kinds:
        raise MismatchError(
            f"the array {expected.name} holds {array.dtype}, the model expects {expected.dtype}. Convert the data."
        )
    return np.asarray(array, dtype=expected.dtype, order="C")


def count_rows(feeds: Batch, whole: Collection[str] = ()) -> int:
    """How many samples a batch has; 1 where its arrays do not agree. Those in `whole` do not count any."""
    rows = {len(array) for name, array in feeds.items() if array.ndim and name not in whole}
    return rows.pop() if len(rows) == 1 else 1


def split(feeds: Batch, at_once: int | None, most: int, whole: Collection[str] = ()) -> Iterator[dict[str, Array]]:
    """In parts that the model takes, and that fit the memory; not at all where the arrays differ in their length.

    Single numbers, and the arrays in `whole`, which are the same for all samples, go with every part.
    """
    rows = count_rows(feeds, whole)
    size = at_once if at_once is not None else most
    for start in range(0, max(rows, 1), size) if rows > size else ():
        yield {n: a[start : start + size] if a.ndim and n not in whole else a for n, a in feeds.items()}
    if rows <= size:
        yield dict(feeds)


def whole_inputs(inputs: Sequence[Input]) -> set[str]:
    """Inputs with a fixed first length, beside others with any: they are the same for all samples."""
    counted = [i for i in inputs if i.shape]
    fixed = {i.name for i in counted if i.shape[0] is not None}
    return fixed if len(fixed) < len(counted) else set()
