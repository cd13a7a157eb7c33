"""What the adapters of graphs have in common: data that fits, ops that know who reads them, what a kernel computes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from inc_tb.capture import Array, Batch, Input, Kernel
from inc_tb.errors import MismatchError
from inc_tb.records import Op
from inc_tb.traces import TraceEvent


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


def split(feeds: Mapping[str, Array], at_once: int | None, most: int) -> Iterator[dict[str, Array]]:
    """In parts that the model takes, and that fit the memory; not at all where the arrays differ in their length."""
    rows = {len(array) if array.ndim else 0 for array in feeds.values()}
    size = at_once if at_once is not None else most
    if len(rows) != 1 or max(rows) <= size:
        yield dict(feeds)
        return
    for start in range(0, max(rows), size):
        yield {name: array[start : start + size] for name, array in feeds.items()}


def linked(ops: list[Op]) -> list[Op]:
    """Each op with those that read it."""
    by_name = {op.name: op for op in ops}
    for op in ops:
        for name in op.inputs:
            by_name[name].consumers.append(op.name)
    return ops


def covered(ends: Sequence[Collection[str]], sources: Mapping[str, Collection[str]]) -> list[list[str]]:
    """The nodes of a file that each kernel computes, of kernels in the order in which they run.

    `ends` has the nodes by which each kernel is known, `sources` those that each node reads from. What lies before them
    and belongs to no kernel yet was made part of this one.
    """
    owner = {node: kernel for kernel, nodes in enumerate(ends) for node in nodes}
    found: list[list[str]] = []
    for kernel, nodes in enumerate(ends):
        mine = dict.fromkeys(node for node in nodes if owner[node] == kernel)
        waiting = list(mine)
        while waiting:
            for node in sources.get(waiting.pop(), ()):
                if node not in owner:
                    owner[node] = kernel
                    mine[node] = None
                    waiting.append(node)
        found.append(list(mine))
    return found


def outermost(events: Sequence[TraceEvent]) -> list[tuple[TraceEvent, int]]:
    """Without those inside of another of the same thread, such as a loop's body; with the number of those inside."""
    found: list[tuple[TraceEvent, int]] = []
    last: dict[str, int] = {}
    for event in sorted(events, key=lambda e: (e.start_us, -e.duration_us)):
        around, count = found[last[event.thread]] if event.thread in last else (None, 0)
        if around is not None and event.start_us + event.duration_us <= around.start_us + around.duration_us:
            found[last[event.thread]] = around, count + 1
        else:
            last[event.thread] = len(found)
            found.append((event, 0))
    return found


def on_account(
    kernels: Sequence[Kernel], before: Sequence[Sequence[int]], for_reader: Collection[int]
) -> Iterator[Kernel]:
    """Conversions with the op on whose account they are there; `before` has the kernels that each reads from.

    Those in `for_reader` are there for the op that reads them, the others because of the one before them.
    """
    after: list[list[int]] = [[] for _ in kernels]
    for at, found in enumerate(before):
        for source in found:
            after[source].append(at)
    for at, kernel in enumerate(kernels):
        if kernel.ops or not kernel.is_conversion:
            yield kernel
            continue
        ways = (after, before) if at in for_reader else (before, after)
        near = (kernels[k].ops for way in ways for k in _nearest(at, way, kernels))
        yield kernel._replace(ops=next(near, ())[:1])


def _nearest(start: int, near: Sequence[Sequence[int]], kernels: Sequence[Kernel]) -> Iterator[int]:
    """In one direction, the kernels that compute ops."""
    waiting, seen = [start], {start}
    while waiting:
        for k in near[waiting.pop(0)]:
            if k not in seen:
                seen.add(k)
                if kernels[k].ops and not kernels[k].is_conversion:
                    yield k
                else:
                    waiting.append(k)


def with_unmatched(twins: dict[str, list[str]], sources: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Ops that stand for none count to the one that they read from, or else to one that reads them.

    `sources` has all ops in order, each with those that it reads from.
    """
    found = dict(twins)
    for name, before in sources.items():
        near = next((found[source] for source in before if source in found), None)
        if name not in found and near:
            found[name] = near[-1:]
    for name, before in reversed(list(sources.items())):
        for source in before:
            if source not in found and name in found:
                found[source] = found[name][:1]
    return found
