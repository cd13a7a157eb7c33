"""What a model does, call by call: its ops, and what each reads.

A call is that of a leaf module, or of a function outside of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from inc_tb.frameworks.ops import Quantization
from inc_tb.frameworks.torch.grids import Rounder, dtype_name, fake_quantization, is_fake_quantizer


class Call(NamedTuple):
    """One call while a model runs."""

    name: str
    kind: str
    module: nn.Module | None
    path: str
    """The module itself, or the one that the function is called in."""
    arguments: Sequence[Any]
    value: Any
    with_relu: bool = False
    """A function that does the activation behind it, too."""


Visit = Callable[[Call], Any]
"""Gets a call with what it returned, and returns what the model goes on with."""


@dataclass
class Step:
    """A call that was seen when the model was traced."""

    index: int
    name: str
    kind: str
    path: str
    module: nn.Module | None
    is_function: bool
    """Called in the module of that path; otherwise it is a call of that module, though a graph may not have it."""
    sources: list[int] = field(default_factory=list)
    """Steps whose results it reads, perhaps rearranged."""
    reads: list[str] = field(default_factory=list)
    """Inputs of the model that it reads."""
    shape: tuple[int, ...] = ()
    with_relu: bool = False
    is_mutated: bool = False
    """Its result is changed in place by a later call."""
    quantization: Quantization | None = None
    """Of its result, as others read it."""
    rounding: Rounder | None = None
    """What is done to its result before others read it, where that is another call."""
    is_dynamic: bool = False
    """Rounds what it reads to a range that is found at run time …"""
    read_dtype: str = "uint8"
    """… in this type."""
    reading: Rounder | None = None
    """That rounding, where it is another call."""
    weight: Tensor | None = None
    """The weights that a function got."""
    weight_quantization: Quantization | None = None
    eps: float | None = None
    """Of a batch norm, where its module does not say."""
    has_looked_for_weight: bool = False
    found_weight: Any = None


@dataclass
class Trace:
    steps: list[Step] = field(default_factory=list)
    rounding: dict[str, Rounder] = field(default_factory=dict)
    """Inputs of the model that are rounded before anything else happens, and how."""
    outputs: list[int] = field(default_factory=list)
    """Steps whose results the model returns."""

    def by_name(self) -> dict[str, Step]:
        return {step.name: step for step in self.steps}


class Names:
    """The same names in every run, and in both models."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], int] = {}

    def of_module(self, path: str) -> str:
        count = self._count(path, "")
        return path if count == 1 else f"{path}/{count}"

    def of_function(self, path: str, kind: str) -> str:
        count = self._count(path, kind)
        return f"{path}/{kind}" if count == 1 else f"{path}/{kind}_{count - 1}"

    def _count(self, path: str, kind: str) -> int:
        self._seen[path, kind] = self._seen.get((path, kind), 0) + 1
        return self._seen[path, kind]


def describe_module(step: Step, module: nn.Module) -> None:
    """What a module says about its own quantization."""
    fake = getattr(module, "activation_post_process", None)
    if step.quantization is None and is_fake_quantizer(fake):
        step.quantization = fake_quantization(fake)
    weight = getattr(module, "weight", None)
    acts = getattr(weight, "act_quant_kwargs", None) is not None or hasattr(weight, "input_quant_func")
    dynamic_activation = getattr(weight, "activation_quantization", None) is not None
    is_dynamic = type(module).__module__.startswith("torch.ao.nn.quantized.dynamic")
    fake_input = getattr(module, "activation_fake_quantizer", None)
    step.is_dynamic = is_dynamic or acts or dynamic_activation or fake_input is not None
    if step.is_dynamic and not is_dynamic:
        dtype = getattr(getattr(fake_input, "config", None), "dtype", torch.int8)  # torchao's
        step.read_dtype = dtype_name(dtype) if isinstance(dtype, torch.dtype) else "int8"
