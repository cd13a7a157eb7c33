"""What is stored besides the op table: one struct for the rows of each kind of record."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from inc_tb.records.text import short_repr

BINS = 1025
"""Of every histogram: inc_tb.measure.histogram cuts them."""


class HistogramRow(msgspec.Struct, omit_defaults=True):
    """One pair's histograms. Counts are [bin, count, bin, count, …]; see inc_tb.measure.histogram for the bins."""

    __repr__ = short_repr

    op: str
    role: str
    top: int
    reference: list[int]
    quantized: list[int]
    error_top: int
    error: list[int]
    limits: tuple[float, float] | None = None
    step: float | None = None

    def __post_init__(self) -> None:
        for counts in (self.reference, self.quantized, self.error):
            if len(counts) % 2 or (counts and not (min(counts[::2]) >= 0 and max(counts[::2]) < BINS)):
                raise ValueError(f"a histogram is a bin below {BINS} and its count in turn")


class ChannelRow(msgspec.Struct, omit_defaults=True):
    """One pair, channel by channel."""

    __repr__ = short_repr

    op: str
    role: str
    min: list[float | None]
    max: list[float | None]
    q_min: list[float | None]
    q_max: list[float | None]
    sqnr_db: list[float | None]


class SampleRow(msgspec.Struct, omit_defaults=True):
    """What one op gives, sample by sample: little-endian float32, one number for each of the first samples."""

    __repr__ = short_repr

    op: str
    power: bytes
    """Sums of squares of the reference."""
    error: bytes
    """Sums of squared differences in the quantized model; infinite where it gives what is not finite."""
    added: bytes = b""
    """The same when the op gets the reference's inputs; nothing where that is not known."""
    is_output: bool = False
    """Whether it is what the model gives: more samples of it are kept."""


class Preview(msgspec.Struct, omit_defaults=True):
    """What one sample looks like, as far as the shape of the data tells."""

    __repr__ = short_repr

    sample: int
    """Its place in the data, from 0."""
    input: str
    kind: Literal["image", "audio", "text"]
    data: bytes = b""
    """A PNG, or the outline of a sound: pairs of signed bytes, lowest and highest in each of its parts."""
    text: str = ""


class Origin(msgspec.Struct, omit_defaults=True):
    """What was measured, and with what: whatever differs between two runs is a reason why their numbers do."""

    __repr__ = short_repr

    reference: str = ""
    """Digest of the fp32 model; "" where it has none."""
    quantized: str = ""
    data: str = ""
    """Digest of the samples, whatever their order and batches."""
    settings: dict[str, Any] = {}
    """Of the measurement."""
    seed: int | None = None
    """Of the tuning that made the model."""
    versions: dict[str, str] = {}
    """Of the packages that decide what the models compute."""
    cpu: list[str] = []
    """Its kind, and which instructions for quantized models it has."""


_BY_UNIT: dict[str, Literal["size", "ops", "time"]] = {"bytes": "size", "count": "ops", "µs": "time"}


class Effect(msgspec.Struct):
    """What following a suggestion recovers or costs."""

    __repr__ = short_repr

    kind: Literal["recovers", "costs"]
    label: str
    value: float
    unit: str
    basis: Literal["measured", "counted", "estimated"]
    how: str
    what: Literal["error", "noise", "size", "ops", "time", ""] = ""
    """What is recovered or spent; in logs from before it was stored told by the unit."""

    def __post_init__(self) -> None:
        if not self.what:
            self.what = _BY_UNIT.get(self.unit, "error" if self.basis == "measured" else "noise")


SLOWER = "slower_in_int8"
"""The rule of suggestions that are about time; all others are about accuracy."""


class Suggestion(msgspec.Struct):
    """Something to change. `ops` belong together: changing only some of them may make it worse."""

    __repr__ = short_repr

    ops: list[str]
    rule: str
    because: str
    evidence: dict[str, Any]
    recipes: dict[str, str] = {}
    """Tool -> configuration that can be pasted there."""
    pattern: str = ""
    rank: int = 0
    effects: list[Effect] = []

    @property
    def recipe(self) -> str:
        """The configuration for the tool that the model most likely came from."""
        return next(iter(self.recipes.values()), "")


class Recipe(msgspec.Struct):
    """How a tool wants to be told which ops stay out of int8: text around one item an op.

    In `item`, {name} stands for the op's name, {pattern} for a regular expression that matches only it, {tensor} for
    the tensor it writes and {module} for its module, each as a quoted string.
    """

    __repr__ = short_repr

    tool: str
    label: str
    before: str
    item: str
    between: str
    after: str
    note: str = ""
    of_statement: str = ""
    """What stands in place of `item` for each line of an op's own {statement}, as it is."""
    unnamed: str = ""
    """What ends the text for each op whose module is wanted and which is in none; in there {name} is its name."""
    rounds: bool = False
    """Whether it keeps no op in fp32 but has it rounded otherwise."""
    elsewhere: bool = False
    """Whether the tool takes the model only in another framework than the one in which it was diagnosed."""


class GraphNode(msgspec.Struct, omit_defaults=True):
    __repr__ = short_repr

    name: str
    type: str
    inputs: list[str]
    tensor: str = ""
    """The tensor that it writes, where the framework gives tensors names of their own."""
    module: str = ""
    """As of Op."""
    statement: str = ""
    """As of Op."""


class Rewrite(msgspec.Struct, omit_defaults=True):
    """A change of the fp32 model that leaves what it computes as it is, and makes it easier to quantize.

    Only "bias" changes that: by what rounded weights will take back.
    """

    __repr__ = short_repr

    kind: str
    """Which one: equalize, smooth, clamp, split, bias."""
    ops: list[str]
    """Those that are changed, in the order of the graph."""
    because: str
    """What was found, and what is done about it, for people."""
    tensor: str = ""
    """Where it is done, if that is a tensor between ops."""
    values: list[float] = []
    """The numbers that redo it: a factor for each channel, say."""
    digest: str = ""
    """Of the weights that are changed, as they were before: it is done to no others."""


class Trial(msgspec.Struct, omit_defaults=True):
    """One quantization config and what came of it."""

    __repr__ = short_repr

    name: str
    accuracy: float | None = None
    baseline: float | None = None
    fallback: list[str] = []
    config: dict[str, Any] = {}
    objectives: dict[str, float] = {}
    wall_s: float | None = None
    notes: list[str] = []
    target: float | None = None
    """The accuracy that the user asked for."""
    lower_is_better: bool = False
    """Whether `accuracy` is a loss."""
    left_by_tool: float | None = None
    """Error of the results, relative to their energy, that is left with all in fp32 that the tool can be told."""
    int8_macs: float | None = None
    """Share of the fp32 model's multiplications that this one does with 8-bit integers."""
    baseline_objectives: dict[str, float] = {}
    """What the fp32 model has where this one has `objectives`."""

    @property
    def is_met(self) -> bool | None:
        """Whether it has the accuracy that is wanted; None where that is not known."""
        if self.accuracy is None or self.target is None:
            return None
        return self.accuracy <= self.target if self.lower_is_better else self.accuracy >= self.target

    @property
    def drop(self) -> float | None:
        """How much worse than the baseline; negative when better."""
        if self.accuracy is None or self.baseline is None:
            return None
        return self.accuracy - self.baseline if self.lower_is_better else self.baseline - self.accuracy


class Span(msgspec.Struct, array_like=True):
    """One execution of an op in one of the two models."""

    model: Literal["fp32", "int8"]
    thread: int
    start_us: float
    duration_us: float


class ProfileRow(msgspec.Struct, omit_defaults=True):
    """Time of one op, the median over runs; the op "" is what no op accounts for. Of one model or of both."""

    __repr__ = short_repr

    op: str
    type: str = ""
    fp32_us: float | None = None
    int8_us: float | None = None
    convert_us: float = 0.0
    """Quantizing, dequantizing and reordering around the op, not part of `int8_us`."""
    fp32_p95_us: float | None = None
    int8_p95_us: float | None = None
    differs: bool | None = None
    """Whether the two times can be told apart from noise."""
    spans: list[Span] = []
    """One run of each model, for the timeline."""
    fp32_mean_us: float | None = None
    int8_mean_us: float | None = None
    ops: list[str] = []
    """Other ops that run as part of it, because the runtime has fused them: they have no time of their own."""
    difference_us: float | None = None
    """int8 with conversion minus fp32: negative is faster; of undisturbed runs, so not the difference of medians."""
    low_us: float | None = None
    high_us: float | None = None
    """The interval that holds the difference in 95 of 100 cases, for all ops together."""
