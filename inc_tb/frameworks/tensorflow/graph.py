"""Steps and tensors of a TensorFlow model, whether it is a graph or a TFLite file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from inc_tb.frameworks import graph
from inc_tb.frameworks.graph import Tensor
from inc_tb.frameworks.ops import Array, Batch, Input, Quantization


@dataclass(kw_only=True)
class Step(graph.Step):
    also: frozenset[str] = frozenset()
    """Names of ops of the model that it was made of, as far as its own name tells."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What else tells two steps of one kind apart."""
    bias: str = ""
    activation: str = ""
    """The type of the activation that is part of it."""
    factor: Array | None = None
    """What its sums of whole numbers are multiplied by, where the file has no scales beside: the scale of what it reads
    times that of the weights, over that of its result if that is whole numbers, too."""
    zero: int | None = None
    """The zero point of such a result."""
    axis: int = -1
    """Where the channels of its result are."""


class Graph(graph.Graph[Step, Tensor], ABC):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.inputs: list[Input] = []
        self.result_names: list[str] = []

    def new_tensor(self, root: str, quantization: Quantization | None = None, *, is_integer: bool = False) -> None:
        self.add_tensor(Tensor(root, root, quantization, is_integer))

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
