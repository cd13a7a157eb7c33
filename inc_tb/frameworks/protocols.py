"""What a framework may give: a pair to compare, one to switch, a model to time, and a tool that quantizes.

A class that is derived from one of these writes what has no default here; any other with the same methods will do, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from inc_tb.frameworks.ops import Array, Batch, Input, Op, Pair, RangesOffered, Site, Unit
from inc_tb.frameworks.traces import Slice
from inc_tb.records import Rewrite, Suggestion

MOST_SAMPLES = 32
"""In a batch, where the memory has room for more."""


class Adapter(Protocol):
    """A reference and its quantized model, op by op."""

    framework: str
    notes: Sequence[str] = ()
    """What was left out, and why; may grow while batches run."""
    samples_at_once: int | None = None
    """How many to run at once, where the user says so; otherwise as many as fit the memory budget."""

    def inputs(self) -> Sequence[Input]:
        """What the reference takes."""
        ...

    def batch_size(self) -> int:
        """How many samples it is to be given at once, where they come from files."""
        return MOST_SAMPLES

    def trace(self, batch: Batch) -> None:
        """Called with the first batch before anything below: some models only show what they do when they run."""
        return

    def ops(self) -> Sequence[Op]:
        """Those of the reference, in the order of its graph."""
        ...

    def weights(self) -> Iterator[Pair]:
        """One for each op that has some in both models."""
        ...

    def run(self, batch: Batch) -> Iterator[Pair]:
        """What ops give in both models, what each adds by itself, and what the models read.

        A batch that does not fit the memory is run in parts, each of which gives its own pairs.
        """
        ...


class Outputs(NamedTuple):
    scores: list[Array]
    """The results, before a softmax where the model ends with one."""
    results: list[Array]


class Switchable(Protocol):
    """A model whose quantization can be switched on and off site by site, without opening another session."""

    framework: str
    notes: Sequence[str] = ()
    inputs: Sequence[Input]
    units: Sequence[Unit]
    sites: Sequence[Site]

    def trace(self, batch: Batch) -> None:
        """As of Adapter: units and sites are known afterwards."""
        return

    def run(self, batch: Batch, on: Collection[str]) -> Outputs:
        """With the sites of these names rounded and everything else in fp32."""
        ...

    def ranges(self, batches: Sequence[Batch]) -> RangesOffered:
        """Other ranges for what is rounded, from what the reference has there; `run` then takes `ranges`, too.

        Nothing where a range cannot be tried without quantizing anew.
        """
        return {}

    def shifts(self, batches: Sequence[Batch]) -> Sequence[Rewrite]:
        """Changes of biases that make up for the mean error of rounded weights; nothing where they cannot be told."""
        return ()

    def gradients(self, batch: Batch) -> Mapping[str, npt.NDArray[np.float64]]:
        """For each op and sample, an estimate of what its quantization does to the output, from one backward pass.

        Nothing where they tell no more than a run, or the framework has none.
        """
        return {}

    def run_real(self, batch: Batch) -> list[Array]:
        """The results of the quantized model itself, with the kernels that ship."""
        ...


class Quantizer(Protocol):
    """A tool that quantizes. Settings are plain values with the same names in every trial, so they can be logged.

    It may have a `suffix`, where what it writes is of another kind than what `prepare` gives; a method `shown` that
    gives what the user's function is to evaluate, for any model that `prepare` or `quantize` made; a method
    `without_types` that gives settings with which no op of some types is quantized; a method `kernels` that gives
    its settings with other types of as many bits, where a machine's kernels may be faster with those; and a method
    `with_ranges` that gives settings with which some tensors have ranges of their own, or None where it cannot.
    """

    settings: Mapping[str, Any]
    """What it does unless told otherwise."""

    def prepare(self, model: Any, folder: Path) -> Any:
        """The fp32 model as the tool wants it, with a name for every op; called once.

        A path below `folder`, or an object.
        """
        ...

    def quantize(
        self, model: Any, target: Path, calibration: Iterable[Batch], settings: Mapping[str, Any], keep: Sequence[str]
    ) -> Any:
        """Write the quantized model, or return it; the ops in `keep` stay in fp32."""
        ...

    def recipe(self, settings: Mapping[str, Any], keep: Sequence[str]) -> str:
        """Code that quantizes so, to be pasted."""
        ...

    def variants(self) -> Sequence[Mapping[str, Any]]:
        """Other settings worth a trial whatever the model is, the most promising first."""
        return ()

    def cures(
        self, settings: Mapping[str, Any], suggestions: Sequence[Suggestion], tensors: Mapping[str, str]
    ) -> Mapping[str, Mapping[str, Any]]:
        """Changes that cost less than fp32, which the suggestions' rules point to: what it is -> changed settings.

        `tensors` has the name of what each op writes.
        """
        return {}


class Kernel(NamedTuple):
    """What a runtime executes at once: an op, several that it has fused, or a conversion of types or layouts."""

    name: str
    type: str
    ops: tuple[str, ...]
    """Of the model that was opened, the one to name it by first; of a conversion the op on whose account it is there;
    none where it is the runtime's own affair."""
    is_conversion: bool = False


class Execution(NamedTuple):
    """One execution of a kernel; the start is on the clock of `time.perf_counter`."""

    kernel: Kernel
    thread: str
    start_us: float
    duration_us: float


class Recorded(NamedTuple):
    """What a profiler saw of one run."""

    executions: list[Execution]
    """None of which is part of another."""
    slices: list[Slice]
    """Everything that the runtime tells about the run."""


class Timer(Protocol):
    """A model, opened as it ships, that can be run with and without its runtime's profiler."""

    resolution_us: float
    """Of the profiler's clock."""
    is_quantized: bool
    notes: list[str]
    traces: dict[str, bytes]
    """Name of a file -> what the runtime's own profiler has written, once it is closed."""

    def prepare(self, batch: Batch) -> Any:
        """What `run` and `run_profiled` take, so that their time is the model's."""
        ...

    def run(self, prepared: Any) -> float:
        """The seconds that it took, as `run_profiled`, which does not count the starting of a profiler."""
        ...

    def run_profiled(self, prepared: Any) -> float: ...

    def close(self) -> list[Recorded]:
        """One for each run with the profiler."""
        ...
