"""How far results are from fp32's, so that nothing in them hides behind something larger.

One output may hold boxes from 0 to 640 and scores from 0 to 1: of both together, boxes are all that counts. Where
magnitudes along one axis differ that much, each such channel is measured against those of its own size, and every
channel counts alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inc_tb.frameworks.ops import Array

Errors = npt.NDArray[np.float64]
"""One number a sample."""
WORST = 1e9
"""Instead of infinity, where an output is not finite."""
_APART = 16.0
"""Channels that vary this many times less than the largest one are of another kind: 24 dB, about what int8 leaves."""
_STEP = 2.0
"""And there is a step between the kinds: what fades evenly, as towards the border of a picture, is of one kind."""
_DEAD = 1e-5
"""What varies less than this share of the largest channel says nothing."""


@dataclass(frozen=True)
class Measure:
    """What a squared difference of one output counts, of every channel along an axis."""

    weights: Array
    """Shaped so that it is broadcast to the output."""
    kinds: int = 1
    """Of how many sizes its channels are."""

    @classmethod
    def of(cls, arrays: Sequence[Array]) -> Measure:
        """From the batches of what fp32 gives."""
        if arrays[0].dtype.kind != "f":
            return cls(np.ones(()))
        power = _power(arrays)
        axis, kind = _kinds(arrays, power) if power.sum() > 0 else (None, power)
        if axis is None:
            return cls(np.asarray(1 / (float(power.sum()) or 1.0)))
        along = power.sum(axis=tuple(i for i in range(power.ndim) if i != axis))
        weights = np.zeros(len(along))
        for number in np.unique(kind):
            members = kind == number
            weights[members] = members.mean() / along[members].sum()
        shape = [1] * power.ndim
        shape[axis] = len(along)
        return cls(weights.reshape(shape), len(np.unique(kind)))

    def errors(self, scores: Array, own: Array, rows: int) -> Errors:
        """Of every sample, 1 where nothing of an output is left."""
        if not own.size and scores.shape == own.shape:
            return np.zeros(rows)
        if scores.shape != own.shape:
            return np.full(rows, 1.0)  # another number of detections, say: nothing is the same
        if own.dtype.kind != "f":
            return np.asarray((scores != own).reshape(rows, -1).mean(axis=1), np.float64)
        with np.errstate(all="ignore"):
            difference = np.square(scores.astype(np.float64) - own.astype(np.float64)) * self.weights
            difference = np.where(np.isfinite(own), difference, 0)
            found = difference.reshape(rows, -1).sum(axis=1)
        if rows == 1 and own.ndim and own.shape[0] > 1:
            found = found / own.shape[0]
        return np.asarray(np.nan_to_num(np.minimum(found, WORST), nan=WORST), np.float64)


def _power(arrays: Sequence[Array]) -> npt.NDArray[np.float64]:
    """How much every place of an output varies between samples; its whole size where there is but one.

    Where lengths differ between batches, so that places do not correspond, that of each channel at the end.
    """
    rows = max(1, sum(len(a) if a.ndim else 1 for a in arrays))
    finite = [np.nan_to_num(a.astype(np.float64), posinf=0, neginf=0) for a in arrays]
    if len({a.shape[1:] for a in arrays}) == 1 and arrays[0].ndim > 0:
        if rows > 1:
            middle = sum((a.sum(axis=0, keepdims=True) for a in finite), np.zeros(())) / rows
            varies = sum((np.square(a - middle).sum(axis=0, keepdims=True) for a in finite), np.zeros(())) / rows
            if varies.sum() > 0:
                return np.asarray(varies, np.float64)
        return np.asarray(sum(np.square(a).sum(axis=0, keepdims=True) for a in finite), np.float64) / rows
    ends = {a.shape[-1] if a.ndim > 1 else 0 for a in arrays} if len({a.ndim for a in arrays}) == 1 else {0}
    if ends == {0} or len(ends) > 1:
        return np.asarray(sum(float(np.square(a).sum()) for a in finite) / rows)
    return (
        np.asarray(sum(np.square(a).sum(axis=tuple(range(a.ndim - 1)), keepdims=True) for a in finite), np.float64)
        / rows
    )


def _kinds(arrays: Sequence[Array], power: Array) -> tuple[int | None, npt.NDArray[np.int64]]:
    """The axis along which magnitudes differ most, and of which size each channel there is.

    Shares of 1 are of one kind, however rare: of eighty classes most do not occur among a few samples.
    """
    found: tuple[float, int | None, npt.NDArray[np.int64]] = (1.0, None, np.zeros(0, np.int64))
    for axis in range(power.ndim):
        if power.shape[axis] < 2:
            continue
        others = tuple(i for i in range(power.ndim) if i != axis)
        sizes = np.sqrt(power.mean(axis=others))
        kind = _by_size(sizes, _are_shares(arrays, axis))
        if kind.max() == 0:
            continue
        step = min(float(sizes[kind == k].min() / sizes[kind == k + 1].max()) for k in range(int(kind.max())))
        if step > found[0]:
            found = step, axis, kind
    return found[1], found[2]


def _by_size(sizes: Array, are_shares: Array) -> npt.NDArray[np.int64]:
    """0 for the largest channels; what is dead goes with those before it."""
    kind = np.zeros(len(sizes), np.int64)
    top = before = float(sizes.max())
    least, number, shares = _DEAD * top, 0, -1
    for at in np.argsort(-sizes, kind="stable"):
        size = float(sizes[at])
        if are_shares[at] and shares >= 0:
            kind[at] = shares
            continue
        if size >= least and size * _APART <= top and size * _STEP <= before:
            top, number = size, number + 1
        kind[at], before = number, size
        shares = number if are_shares[at] and shares < 0 else shares
    return kind


def _are_shares(arrays: Sequence[Array], axis: int) -> Array:
    """Channels with values from 0 to 1 only."""
    inside = []
    for array in arrays:
        others = tuple(i for i in range(array.ndim) if i != axis)
        with np.errstate(invalid="ignore"):
            inside.append(np.all((array >= 0) & (array <= 1), axis=others))
    return np.asarray(np.all(inside, axis=0))


# What results are, so that fitting figures are told of them


def class_axis(array: Array, measure: Measure, samples: int, *, is_alone: bool, channels_last: bool) -> int | None:
    """Where the classes of a result are, if it holds some: of images where their channels are, else at the end.

    Not of numbers of several kinds, nor of states and embeddings, which lie around 0 within 1, unless they are the
    logarithms or shares of a distribution.
    """
    if array.dtype.kind != "f" or array.ndim < 2 or not array.size:
        return None
    axis = 1 if array.ndim > 3 and not channels_last else array.ndim - 1
    if array.shape[axis] < 2:
        return None
    if is_distribution(array, axis) or is_distribution(np.exp(np.minimum(array.astype(np.float64), 1)), axis):
        return axis
    is_bounded = bool(np.all(np.abs(array) <= 1)) and bool(np.any(array < 0))
    has_rows = is_alone or array.shape[0] == samples
    return axis if measure.kinds == 1 and has_rows and not is_bounded else None


def is_distribution(array: Array, axis: int) -> bool:
    return bool(np.all(array >= 0)) and bool(np.allclose(array.sum(axis), 1, atol=1e-3))


def divergence(p: Array, q: Array, axis: int) -> Errors:
    """Kullback-Leibler's."""
    p, q = (np.maximum(a.astype(np.float64), 1e-12) for a in (p, q))
    return np.asarray((p * np.log(p / q)).sum(axis).ravel(), np.float64)


def cosines(a: Array, b: Array) -> Errors:
    """Of every sample; 1 where both are the same, such as 0."""
    a, b = (np.nan_to_num(x.astype(np.float64)).reshape(len(x), -1) for x in (a, b))
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    same = np.all(a == b, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(same, 1.0, np.where(lengths > 0, (a * b).sum(axis=1) / lengths, 0.0)), np.float64)
