"""The results of one form of a model beside those of fp32, in one error and in the figures that fit what they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inc_tb.frameworks.ops import Array
from inc_tb.search.objective import Errors, Measure, class_axis, cosines, divergence, is_distribution


@dataclass
class Comparison:
    """How far the outputs of one form of the model are from fp32's."""

    error: float
    agreement: float | None = None
    """Share of the same top-1 decisions, where the output has classes."""
    divergence: float | None = None
    """Kullback-Leibler divergence from fp32's distribution, in nats, where the output is one."""
    cosine: float | None = None
    """Of the angle to fp32's, over the samples, where the output is a vector without classes, such as an embedding."""


class Expected:
    """What fp32 gives, batch by batch, of so many samples each."""

    def __init__(
        self, results: Sequence[Sequence[Array]], counts: Sequence[int], *, channels_last: bool = False
    ) -> None:
        self._results, self._counts = results, counts
        self._channels_last = channels_last
        self._measures = measures_of(results)

    def compared(self, results: Sequence[Sequence[Array]]) -> Comparison:
        both = list(zip(self._results, results, strict=True))
        errors = [batch_errors(other, own, self._measures) for own, other in both]
        found = Comparison(float(np.concatenate(errors).mean()))
        told: dict[str, list[Errors]] = {"agreement": [], "divergence": [], "cosine": []}
        for i, measure in enumerate(self._measures):
            for figure, values in self._fitting([(own[i], other[i]) for own, other in both], measure).items():
                told[figure] += values
        if len(told["divergence"]) < len(told["agreement"]):  # not all classes have shares
            told["divergence"] = []
        for figure, values in told.items():
            if values:
                setattr(found, figure, float(np.concatenate(values).mean()))
        return found

    def _fitting(self, pairs: Sequence[tuple[Array, Array]], measure: Measure) -> dict[str, list[Errors]]:
        """The figures that fit what one output is: for every batch a number for each decision or sample."""
        alone, last = len(self._results[0]) == 1, self._channels_last
        counted = [(mine, count) for (mine, _), count in zip(pairs, self._counts, strict=True)]
        axes = {class_axis(mine, measure, count, is_alone=alone, channels_last=last) for mine, count in counted}
        same = [(mine, theirs) for mine, theirs in pairs if mine.shape == theirs.shape]
        axis = axes.pop() if len(axes) == 1 else None
        if axis is not None:
            found = {"agreement": [np.ravel(np.argmax(a, axis) == np.argmax(b, axis)) for a, b in same]}
            if all(is_distribution(a, axis) for a, _ in same):
                found["divergence"] = [divergence(a, b, axis) for a, b in same]
            return found
        is_vector = all(a.dtype.kind == "f" and a.ndim > 1 and len(a) == count for a, count in counted)
        has_many = all(a.size > len(a) for a, _ in same)
        return {"cosine": [cosines(a, b) for a, b in same]} if is_vector and has_many and measure.kinds == 1 else {}


def measures_of(batches: Sequence[Sequence[Array]]) -> list[Measure]:
    """One for each output."""
    return [Measure.of([batch[i] for batch in batches]) for i in range(len(batches[0]))]


def batch_errors(scores: Sequence[Array], own: Sequence[Array], measures: Sequence[Measure]) -> Errors:
    """Of the samples of one batch; several outputs weigh alike."""
    rows = rows_of(own)
    parts = zip(scores, own, measures, strict=True)
    found = [measure.errors(np.asarray(a), b, rows) for a, b, measure in parts]
    return np.asarray(np.mean(found, axis=0), np.float64)


def rows_of(arrays: Sequence[Array]) -> int:
    """Samples of a batch as its outputs show them; 1 where they do not all have one row a sample."""
    lengths = {a.shape[0] if a.ndim else 1 for a in arrays}
    return max(1, lengths.pop()) if len(lengths) == 1 else 1
