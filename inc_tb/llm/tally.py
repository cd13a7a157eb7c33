"""What rounding some matrices does to the text, added up over batches."""

from __future__ import annotations

import numpy as np

from inc_tb.frameworks.language import Told

_RESAMPLES = 1000


class Tally:
    """Sums by sequence, of which the mean over places and its interval are made."""

    def __init__(self) -> None:
        self._sums: list[tuple[float, int, int]] = []

    def add(self, told: Told) -> None:
        self._sums += zip(told.kl.tolist(), told.same_first.tolist(), told.places.tolist(), strict=True)

    @property
    def tokens(self) -> int:
        return sum(places for *_, places in self._sums)

    @property
    def sequences(self) -> int:
        return len(self._sums)

    @property
    def kl(self) -> float:
        """Nats a token."""
        return sum(kl for kl, *_ in self._sums) / max(1, self.tokens)

    @property
    def same_first(self) -> float:
        return sum(same for _, same, _ in self._sums) / max(1, self.tokens)

    def interval(self, other: Tally | None = None) -> tuple[float, float] | None:
        """That holds the mean in 95 of 100 cases, or how far it is above another one of the same sequences."""
        if len(self._sums) < 2:
            return None
        sums = np.array(self._sums, np.float64)
        if other is not None:
            sums[:, 0] -= np.array(other._sums, np.float64)[:, 0]
        count = len(sums)
        drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=_RESAMPLES) @ sums
        low, high = np.quantile(drawn[:, 0] / np.maximum(drawn[:, 2], 1), [0.025, 0.975])
        return float(low), float(high)
