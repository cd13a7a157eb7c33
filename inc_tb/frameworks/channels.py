"""Where the channels of tensors are."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
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


def input_axis(ndim: int, *, channels_last: bool = False) -> int | None:
    """Of what a model reads: images have a place for their channels, all else has its features at the end."""
    if ndim < 2:
        return None
    return 1 if ndim > 3 and not channels_last else ndim - 1
