"""Which channels to scale, in a layer that makes them and back in those that read them, so that int8 loses less.

A channel that is far larger than the others takes the range of a whole tensor. Factors are powers of two, which change
no digit. The error is that of rounding to 8 bits with one range a tensor, estimated from sizes alone: a step is lost by
each number, or all of it where it is smaller than that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from inc_tb.frameworks.ops import Array
from inc_tb.records import Rewrite, listed

Numbers = npt.NDArray[np.float64]

_STRENGTHS = (0.25, 0.5, 0.75, 1.0)
"""How much of what a channel is larger by goes into the weights."""
_WORTH = 0.5
"""What of the error may be left by a change that is worth it."""
_SAME = 1e-5
"""Of the largest result: what may differ."""
_LARGEST = 16
"""Of factors, as a power of two."""
_TINY = 1e-30
_Linked = TypeVar("_Linked")


class Weights(NamedTuple):
    """Those of a layer that belong to each channel."""

    largest: Numbers
    energy: Numbers
    """The sum of their squares."""
    number: Numbers
    """How many."""

    @classmethod
    def of(cls, rows: Array) -> Weights:
        """One row a channel."""
        values = np.abs(np.asarray(rows, np.float64).reshape(len(rows), -1))
        number = np.full(len(values), float(values.shape[1]))
        return cls(values.max(axis=1), np.square(values).sum(axis=1), number)


class Values(NamedTuple):
    """What a layer reads, by channel."""

    low: Numbers
    high: Numbers
    energy: Numbers
    """The mean of their squares."""


class Read(NamedTuple):
    weights: Weights
    values: Values


class Link(NamedTuple):
    """A layer, and all that read what it makes."""

    producer: str
    readers: tuple[str, ...]
    is_norm: bool


def offered(link: Link, made: Weights | None, read: Sequence[Read]) -> tuple[float, Rewrite] | None:
    """The factors that leave the least error, if they are worth it, and what share of it they leave.

    `made` are the weights of the producer that are rounded, if any are.
    """
    largest = np.max([np.maximum(-some.values.low, some.values.high) for some in read], axis=0)
    weights = np.max([some.weights.largest for some in read], axis=0)
    # A channel that shows nothing on these data may still have weights that are far larger than the others'.
    sizes = [largest] if link.is_norm or made is None else [largest, made.largest]
    tried = [_factors(size, weights, strength) for size in sizes for strength in _STRENGTHS]
    before = _error(made, read, np.ones(len(largest)))
    errors = [_error(made, read, factors) for factors in tried]
    best = int(np.argmin(errors))
    if not errors[best] < _WORTH * before:
        return None
    by = best // len(_STRENGTHS)
    because = _because(link, sizes[by], tried[best], ("results", "weights")[by])
    kind = "smooth" if link.is_norm else "equalize"
    rewrite = Rewrite(kind, [link.producer, *link.readers], because, link.producer, tried[best].tolist())
    return errors[best] / before, rewrite


def in_turn(
    links: Sequence[_Linked],
    offer: Callable[[_Linked], tuple[float, Rewrite] | None],
    take: Callable[[Rewrite], None],
) -> list[Rewrite]:
    """What is offered for links, the most promising first; after each is taken, what is offered for others changes."""
    first = [(found[0], link) for link in links if (found := offer(link)) is not None]
    rewrites = []
    for _, link in sorted(first, key=lambda scored: scored[0]):
        found = offer(link)
        if found is not None:
            take(found[1])
            rewrites.append(found[1])
    return rewrites


def spread(factors: Numbers, features: int) -> Numbers:
    """Of a flattened image every channel has many features."""
    return np.repeat(factors, features // len(factors))


def is_spread(factors: int, features: int) -> bool:
    return factors > 0 and features % factors == 0


def holding(rewrites: Sequence[Rewrite], holds: Callable[[Sequence[Rewrite]], bool]) -> list[Rewrite]:
    """Those that leave the results as they are, all together."""

    def kept_of(kept: list[Rewrite], more: Sequence[Rewrite]) -> list[Rewrite]:
        if not more or holds([*kept, *more]):
            return [*kept, *more]
        if len(more) == 1:
            return kept
        middle = len(more) // 2
        return kept_of(kept_of(kept, more[:middle]), more[middle:])

    return kept_of([], rewrites)


def is_same(own: Sequence[Array], theirs: Sequence[Array]) -> bool:
    """Whether two models give the same, but for the order of their sums."""
    return len(own) == len(theirs) and all(map(_is_alike, own, theirs))


def digest_of(tensors: Iterable[Array]) -> str:
    """Of what is changed, as it was before: tells another model."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(str((tensor.dtype.name, tensor.shape)).encode())
        found.update(np.ascontiguousarray(tensor).tobytes())
    return found.hexdigest()[:16]


def _is_alike(own: Array, theirs: Array) -> bool:
    if own.shape != theirs.shape or own.dtype.kind != theirs.dtype.kind:
        return False
    if own.dtype.kind != "f":
        return np.array_equal(own, theirs)
    if not np.array_equal(np.isfinite(own), np.isfinite(theirs)):
        return False
    one, other = (np.nan_to_num(np.asarray(a, np.float64), posinf=0, neginf=0) for a in (own, theirs))
    return not one.size or bool(np.abs(one - other).max() <= _SAME * np.abs(one).max())


def _factors(made: Numbers, read: Numbers, strength: float) -> Numbers:
    """Powers of two around 1; a channel that nobody makes or reads is left as it is."""
    is_live = (made > 0) & (read > 0)
    if not is_live.any():
        return np.ones(len(made))
    logs = strength * np.log2(made[is_live]) - (1 - strength) * np.log2(read[is_live])
    found = np.ones(len(made))
    found[is_live] = np.exp2(np.clip(np.round(logs - np.median(logs)), -_LARGEST, _LARGEST))
    return found


def _error(made: Weights | None, read: Sequence[Read], factors: Numbers) -> float:
    """Of what the readers give, relative to it: a scaled channel's error is the larger by its factor."""
    found = [_reading_error(*some, factors) for some in read]
    if made is None:
        return float(np.mean(found))
    step = float((made.largest / factors).max()) / 127
    lost = np.minimum(made.number * np.square(step * factors) / 12, made.energy) * read[0].weights.energy
    whole = float((made.energy * read[0].weights.energy).sum())
    return float(np.mean(found)) + float(lost.sum()) / max(whole, _TINY)


def _reading_error(weights: Weights, values: Values, factors: Numbers) -> float:
    high, low = (values.high / factors).max(), (values.low / factors).min()
    step = (max(float(high), 0.0) - min(float(low), 0.0)) / 255
    of_values = np.minimum(np.square(step * factors) / 12, values.energy) * weights.energy
    step = float((weights.largest * factors).max()) / 127
    of_weights = np.minimum(weights.number * np.square(step / factors) / 12, weights.energy) * values.energy
    return float((of_values + of_weights).sum()) / max(float((weights.energy * values.energy).sum()), _TINY)


def _because(link: Link, sizes: Numbers, factors: Numbers, what: str) -> str:
    worst, usual = int(sizes.argmax()), float(np.median(sizes))
    ratio = f"{float(sizes[worst]) / usual:.3g} times that of the median channel" if usual > 0 else "most have none"
    changed = int((factors != 1).sum())
    return (
        f"channel {worst} of the {what} of {link.producer} reaches {float(sizes[worst]):.3g}, {ratio}; {changed} of "
        f"{len(factors)} channels are scaled in {link.producer}, and back in {listed(link.readers)}"
    )
