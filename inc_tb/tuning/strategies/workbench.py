"""What a strategy is, and what it may ask while it decides what to try next."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, Protocol

from inc_tb.frameworks.ops import RangesOffered
from inc_tb.frameworks.protocols import Quantizer
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.records import Trial
from inc_tb.search.budget import Budget
from inc_tb.search.comparison import Comparison
from inc_tb.search.simulation import Simulation
from inc_tb.tuning.attempt import Attempt

Attempts = Generator[Attempt, Trial, None]


class Strategy(Protocol):
    """A generator function, or an object that can be called like one.

    It yields attempts, and is sent the trial that came of each; when it returns, the search ends.
    """

    def __call__(self, bench: Workbench) -> Attempts: ...


class Workbench(Protocol):
    """What a strategy may ask."""

    quantizer: Quantizer
    probe_s: float
    """Seconds for the simulation."""
    random_seed: int
    """For whatever is drawn at random: with the same seed the same trials."""
    probing: Callable[[int, int], None] | None
    """Told after every evaluation of a simulation: how many there were, and how many there may be."""
    comparison: dict[str, Comparison]
    minimize: str
    """What is to be as small as can be: the name of an objective, or "ops" for the number of ops in fp32."""
    width: int
    """How many of the attempts that follow may begin meanwhile; 0 where there is nobody else to carry them out."""
    rewrite: bool
    """Whether the fp32 model may be changed, without changing what it computes."""
    baseline_objectives: Mapping[str, float]
    """Of fp32."""

    @property
    def budget(self) -> Budget:
        """What is left of those seconds; the time of trials does not count."""
        ...

    @property
    def allowed(self) -> float:
        """How much accuracy may be lost."""
        ...

    def loss(self, trial: Trial) -> float:
        """How much is lost against fp32."""
        ...

    def is_met(self, trial: Trial) -> bool: ...

    def cost(self, trial: Trial) -> float:
        """What is to be small."""
        ...

    def prices(self, attempt: Attempt) -> Mapping[str, float]:
        """What it costs to keep each unit in fp32; nothing where all cost the same."""
        ...

    def slower_in_int8(self, attempt: Attempt) -> list[str]:
        """Ops that take more time in int8 than in fp32, where that was measured."""
        ...

    def without_multiplications(self, attempt: Attempt) -> list[str]:
        """Units that gain nothing by integers but what is around them."""
        ...

    def is_faster(self, attempt: Attempt, than: Attempt) -> bool:
        """Timed in turns, without a trial of either; only asked for where the latency is to be small."""
        ...

    def rewrites(self) -> list[dict[str, Any]]:
        """What can be changed about the fp32 model without changing what it computes, as plain data."""
        ...

    def ranges(self, attempt: Attempt) -> RangesOffered:
        """Other ranges for the tensors that an attempt rounds, from the calibration data."""
        ...

    def quantized(self, attempt: Attempt) -> Any: ...

    def units(self, attempt: Attempt) -> list[str]:
        """What can be kept in fp32, without simulating anything."""
        ...

    def diagnosis(self, attempt: Attempt) -> Diagnosis: ...

    def simulation(self, attempt: Attempt, samples: int | None = None, *, is_rough: bool = False) -> Simulation:
        """With as many samples as leave time for many subsets; a rough one has fewer, for what is asked often."""
        ...

    def forget_simulations(self, but: Attempt) -> None:
        """Each holds a model of its own."""
        ...

    def real_error(self, attempt: Attempt, simulation: Simulation) -> float:
        """Of a really quantized model's results, on the samples of the simulation."""
        ...

    def log_probed(self, trial: Trial, diagnosis: Diagnosis) -> None:
        """The diagnosis of a trial once more, with what the simulation has found out since."""
        ...
