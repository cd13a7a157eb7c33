"""How the trials of a tuning stand: which meet the criterion, which is the best, and which are worth a choice."""

from __future__ import annotations

import math
from collections.abc import Mapping

from inc_tb.records import Trial
from inc_tb.tuning.criterion import Criterion
from inc_tb.tuning.objectives import OPS, SIZE

FP32 = "fp32"
"""What the model that was given is called among trials."""
ALIKE = 1.05
"""Of two measured costs: closer ones are taken for the same."""


class Standings:
    def __init__(self, criterion: Criterion) -> None:
        self.criterion = criterion
        self.minimize = OPS
        self.trials: list[Trial] = []
        self.baseline = math.nan
        self.baseline_objectives: Mapping[str, float] = {}

    @property
    def allowed(self) -> float:
        """How much may be lost."""
        return self.criterion.loss(self.criterion.target(self.baseline), self.baseline)

    def is_met(self, trial: Trial) -> bool:
        return trial.accuracy is not None and self.criterion.is_met(trial.accuracy, self.baseline)

    def loss(self, trial: Trial) -> float:
        """How much accuracy is lost against fp32."""
        return math.inf if trial.accuracy is None else self.criterion.loss(trial.accuracy, self.baseline)

    def cost(self, trial: Trial) -> float:
        """What is to be small: measured, or the number of ops that are not in int8."""
        return _ops_in_fp32(trial) if self.minimize == OPS else trial.objectives.get(self.minimize, math.inf)

    @property
    def best(self) -> Trial:
        """The cheapest that meets the criterion, or else the one that loses least."""
        met = [trial for trial in self.trials if self.is_met(trial)]
        if not met:
            return min(self.trials, key=lambda trial: (self.loss(trial), len(trial.fallback)))
        if self.minimize == OPS:
            return min(met, key=lambda trial: (_ops_in_fp32(trial), self.loss(trial)))
        alike = [trial for trial in met if self.cost(trial) <= ALIKE * min(map(self.cost, met))]
        least = ALIKE * min(map(_size, alike))
        return min((t for t in alike if _size(t) <= least), key=lambda t: (_ops_in_fp32(t), self.loss(t)))

    @property
    def front(self) -> list[str]:
        """Trials, and fp32, of which none is both more accurate and cheaper; the cheapest first."""
        known = [(self.cost(t), self.loss(t), t.name) for t in self.trials if t.accuracy is not None]
        if self.minimize in self.baseline_objectives:
            known.append((self.baseline_objectives[self.minimize], 0.0, FP32))
        found: list[str] = []
        least = math.inf
        for cost, loss, name in sorted(known):
            if math.isfinite(cost) and loss < least:
                found.append(name)
                least = loss
        return found


def _ops_in_fp32(trial: Trial) -> int:
    return len(trial.fallback) + len(trial.config.get("int16_tensors", ()))


def _size(trial: Trial) -> float:
    return trial.objectives.get(SIZE, 0.0)
