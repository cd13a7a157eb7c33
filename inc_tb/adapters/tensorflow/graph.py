"""What a model computes, whether it is a graph or a TFLite file and whatever way it is quantized.

A `Value` is one tensor of the computation: `x`, its quantized form and its dequantized form are the same value. A
`Step` is one operation on values. What quantizes, dequantizes or hands on is taken out of the picture, so that an fp32
graph and the TFLite file that it became have nearly the same steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from inc_tb.capture import Array, Batch, Input
from inc_tb.records import Quantization


@dataclass
class Value:
    """`root` is its name in the file, `read` where its final form is."""

    root: str
    read: str
    quantization: Quantization | None = None
    is_integer: bool = False
    """The root holds whole numbers."""


@dataclass
class Step:
    index: int
    name: str
    kind: str
    """As its framework calls it."""
    type: str
    """The same word in graphs and in TFLite."""
    values: list[str]
    """Roots of what it reads, constants left out."""
    constants: list[str]
    outputs: list[str]
    also: frozenset[str] = frozenset()
    """Names of ops of the model that it was made of, as far as its own name tells."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What else tells two steps of one kind apart."""
    weight: str = ""
    weight_quantization: Quantization | None = None
    bias: str = ""
    activation: str = ""
    """The type of the activation that is part of it."""
    is_integer: bool = False
    """Computed with whole numbers."""
    is_dynamic: bool = False
    """It finds the range of what it reads while the model runs."""
    factor: Array | None = None
    """What its sums of whole numbers are multiplied by, where the file has no scales beside: the scale of what it reads
    times that of the weights, over that of its result if that is whole numbers, too."""
    zero: int | None = None
    """The zero point of such a result."""
    axis: int = -1
    """Where the channels of its result are."""


class Graph(ABC):
    """The steps in order, and the values between them; what is filled in by the readers of each format."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.inputs: list[Input] = []
        self.input_roots: dict[str, str] = {}
        self.outputs: list[str] = []
        """Roots of the model's results, in their order."""
        self.result_names: list[str] = []
        self.steps: list[Step] = []
        self.values: dict[str, Value] = {}
        self.root: dict[str, str] = {}
        self.producer: dict[str, Step] = {}
        self.consumers: dict[str, list[Step]] = defaultdict(list)

    @property
    def is_quantized(self) -> bool:
        """Any of its values or weights."""
        steps = any(s.weight_quantization is not None or s.is_integer or s.is_dynamic for s in self.steps)
        return steps or any(value.quantization is not None for value in self.values.values())

    def new_value(self, root: str, quantization: Quantization | None = None, *, is_integer: bool = False) -> None:
        self.root[root] = root
        self.values[root] = Value(root, root, quantization, is_integer)

    def add(self, step: Step) -> None:
        self.steps.append(step)
        for out in step.outputs:
            self.producer[out] = step
        for root in dict.fromkeys(step.values):
            self.consumers[root].append(step)

    @abstractmethod
    def constant(self, name: str) -> Array:
        """The value of a tensor that does not depend on the input, dequantized."""

    @abstractmethod
    def weight(self, step: Step) -> Array:
        """Dequantized, in the layout of TensorFlow's own ops: height, width, in, out; those of a depthwise convolution
        are height, width, out.
        """

    @abstractmethod
    def bias(self, step: Step) -> Array | None:
        """What a convolution or product of matrices adds, dequantized."""

    @abstractmethod
    def weight_shape(self, step: Step) -> tuple[int, ...]:
        """As stored."""

    @abstractmethod
    def shape_of(self, root: str) -> tuple[int | None, ...] | None:
        """Of a value, as far as it is known before the model runs; None is any length."""


class Engine(Protocol):
    """Runs one model."""

    @property
    def graph(self) -> Graph: ...

    def most_samples(self) -> int | None:
        """How many samples the model takes at a time, no more and no less; None for any number."""
        ...

    def bytes_by_root(self) -> Mapping[str, int]:
        """Of each value, for one sample, as float32."""
        ...

    def run(self, feeds: Batch, roots: Sequence[str]) -> dict[str, Array]:
        """These values as their readers see them. Feeds by the names of the model's inputs."""
        ...

    def run_isolated(self, feeds: Batch, given: Mapping[str, Array], roots: Sequence[str]) -> dict[str, Array]:
        """The same, where every op reads the `given` values instead of what the ops before it have made."""
        ...
