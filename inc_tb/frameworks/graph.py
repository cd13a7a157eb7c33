"""What a model computes, whatever its format and however it is quantized.

A `Tensor` is one quantity of the computation: x, its quantized form and its dequantized form are the same. A `Step` is
one operation on tensors. What quantizes, dequantizes or hands on is taken out of the picture, so that a model and its
quantized twin have nearly the same steps. Adapters lower their models to this; matching, describing and simulating
what is rounded then need no framework.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Generic, TypeVar

from inc_tb.frameworks.ops import Quantization
from inc_tb.records import GraphNode


@dataclass
class Tensor:
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
    """The same word in all formats of a framework, whether it is quantized or not."""
    reads: list[str]
    """Roots of the tensors that it reads, constants left out."""
    constants: list[str]
    outputs: list[str]
    weight: str = ""
    """The main one of its constants, where there are weights among them."""
    weight_quantization: Quantization | None = None
    is_integer: bool = False
    """Computed with whole numbers."""
    is_dynamic: bool = False
    """It finds the range of what it reads while the model runs."""

    @property
    def module(self) -> str:
        """As of Op, where the file itself says so."""
        return ""


AnyStep = TypeVar("AnyStep", bound=Step)
AnyTensor = TypeVar("AnyTensor", bound=Tensor)


class Graph(Generic[AnyStep, AnyTensor]):
    """The steps in order, and the tensors between them; filled in by the readers of each format."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.steps: list[AnyStep] = []
        self.tensors: dict[str, AnyTensor] = {}
        self.root: dict[str, str] = {}
        """Every form of a tensor -> its root."""
        self.producer: dict[str, AnyStep] = {}
        self.consumers: dict[str, list[AnyStep]] = defaultdict(list)
        self.input_roots: dict[str, str] = {}
        """By the names of the model's inputs."""
        self.outputs: list[str] = []
        """Roots of the model's results, in their order."""

    def add_tensor(self, tensor: AnyTensor) -> None:
        self.root[tensor.root] = tensor.root
        self.tensors[tensor.root] = tensor

    def add(self, step: AnyStep) -> None:
        self.steps.append(step)
        for out in filter(None, step.outputs):
            self.producer[out] = step
        for root in dict.fromkeys(step.reads):
            self.consumers[root].append(step)

    def sources(self, step: AnyStep) -> list[str]:
        """Names of the steps whose results it reads."""
        return list(dict.fromkeys(self.producer[root].name for root in step.reads if root in self.producer))

    @property
    def is_quantized(self) -> bool:
        """Any of its tensors or weights."""
        steps = any(s.weight_quantization is not None or s.is_integer or s.is_dynamic for s in self.steps)
        return steps or any(tensor.quantization is not None for tensor in self.tensors.values())

    def graph_nodes(self, *, with_tensors: bool = False) -> list[GraphNode]:
        """As it is stored; `with_tensors` where these have names of their own that users know."""
        return [
            GraphNode(s.name, s.kind, self.sources(s), s.outputs[0] if with_tensors else "", s.module)
            for s in self.steps
            if s.outputs
        ]
