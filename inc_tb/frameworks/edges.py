"""What the edges between ops tell, whatever the framework."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

_Value = TypeVar("_Value", bound=Hashable)


def units(sources: Mapping[str, Sequence[str]], joins: Callable[[str], bool]) -> dict[str, str]:
    """Ops between which nothing is quantized change precision together: Conv, BatchNormalization, Relu.

    `sources` has the ops in order with those that each reads; `joins` tells whether one goes with the op before it, if
    nobody else reads that.
    """
    readers = Counter(source for before in sources.values() for source in before)
    found: dict[str, str] = {}
    for op, before in sources.items():
        is_only_reader = len(before) == 1 and readers[before[0]] == 1
        found[op] = found[before[0]] if is_only_reader and joins(op) else op
    return found


def first_readers(inputs: Iterable[str], reads: Mapping[_Value, Collection[str]]) -> dict[str, _Value]:
    """The first op that reads each of these inputs of the model; `reads` has what each op reads, in their order."""
    found = {name: next((op for op, values in reads.items() if name in values), None) for name in inputs}
    return {name: op for name, op in found.items() if op is not None}


def before_softmax(
    result: _Value,
    maker: Callable[[_Value], tuple[str, _Value] | None],
    softmax: Collection[str],
    passing: Collection[str] = (),
) -> _Value:
    """What the softmax reads that a model ends with: where a result is sure, the scores still tell.

    `maker` gives the type of the op that makes a value and the first value that it reads; `passing` are types that give
    a value on in another form. The result itself where the model ends otherwise.
    """
    value = result
    while (made := maker(value)) is not None:
        kind, value = made
        if kind in softmax:
            return value
        if kind not in passing:
            break
    return result
