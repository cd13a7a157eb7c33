"""What the adapters of graphs have in common: data that fits, ops that know who reads them, what a kernel computes."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from inc_tb.capture import Array, Batch, Input
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


def outermost(events: Sequence[TraceEvent]) -> list[TraceEvent]:
    """Without those that lie inside of another of the same thread, as the nodes of a loop's body do."""
    found: list[TraceEvent] = []
    end: dict[str, float] = {}
    for event in sorted(events, key=lambda e: (e.start_us, -e.duration_us)):
        stop = event.start_us + event.duration_us
        if stop > end.get(event.thread, -math.inf):
            found.append(event)
            end[event.thread] = stop
    return found


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
