"""How much accuracy may be lost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Criterion:
    """How much accuracy may be lost."""

    tolerance: float = 0.01
    relative: bool = True
    higher_is_better: bool = True

    def target(self, baseline: float) -> float:
        loss = self.tolerance * abs(baseline) if self.relative else self.tolerance
        return baseline - loss if self.higher_is_better else baseline + loss

    def is_met(self, accuracy: float, baseline: float) -> bool:
        return self.loss(accuracy, self.target(baseline)) <= 0

    def loss(self, accuracy: float, than: float) -> float:
        """How much worse than something else."""
        return than - accuracy if self.higher_is_better else accuracy - than
