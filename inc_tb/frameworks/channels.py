"""Where the channels of tensors are."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from math import prod
from typing import TypeVar

_Value = TypeVar("_Value", bound=Hashable)


def channel_axes(sources: Mapping[_Value, Iterable[_Value]], place: Callable[[_Value, int], int]) -> dict[_Value, int]:
    """Where the channels of each value are, of values in their order with those that each is made of.

    `place` tells it of a value and the axis of the first one that it is made of, or -1 where that is not known.
    """
    axes: dict[_Value, int] = {}
    for value, before in sources.items():
        axes[value] = place(value, next((axes[source] for source in before if source in axes), -1))
    return axes


def reshaped_axis(before: Sequence[int | None], after: Sequence[int | None], axis: int) -> int | None:
    """Where the channels of a tensor are once its values are in another shape; None where they are split or joined.

    The samples come first in both, however many they are.
    """
    place = axis % len(before) if before else 0
    if place == 0 or before[place] is None or None in before[1:place]:
        return None
    ahead, product = prod(length for length in before[1:place] if length is not None), 1
    for i, length in enumerate(after[1:], start=1):
        if length is None:
            return None
        if length == before[place] and product == ahead:
            return i
        product *= length
    return None


def input_axis(ndim: int, *, channels_last: bool = False) -> int | None:
    """Of what a model reads: images have a place for their channels, all else has its features at the end."""
    if ndim < 2:
        return None
    return 1 if ndim > 3 and not channels_last else ndim - 1
