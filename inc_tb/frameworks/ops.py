"""What models are made of: ops, how their tensors are quantized, and pairs of arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Batch = Mapping[str, Array]
Role = Literal["weight", "input", "output", "isolated"]
"""input: a quantized input of the whole model, at the first op that reads it;
isolated: the op's output when it gets the reference's inputs, which shows what the op itself adds."""
Granularity = Literal["per tensor", "per channel", "per block"]
Scheme = Literal["symmetric", "asymmetric", "dynamic"]


class Pair(NamedTuple):
    """The same tensor in both models, the quantized one already dequantized."""

    op: str
    tensor: str
    role: Role
    reference: Array
    quantized: Array
    channel_axis: int | None


class Input(NamedTuple):
    """An input of the model; None in the shape is any length."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]
    is_known: bool = True
    """Otherwise it has nothing but its name: only data can tell the rest."""


@dataclass(frozen=True)
class Quantization:
    """How one tensor is quantized. `axis` is None for one scale per tensor; dynamic ranges have no scale."""

    dtype: str
    scale: npt.NDArray[np.float32] | None
    zero_point: npt.NDArray[np.int64] | None
    low: int
    high: int
    axis: int | None = None
    block: int = 0

    @property
    def limits(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
        if self.scale is None or self.zero_point is None or self.block:
            return None
        return (self.low - self.zero_point) * self.scale, (self.high - self.zero_point) * self.scale

    @property
    def granularity(self) -> Granularity:
        if self.block:
            return "per block"
        return "per tensor" if self.axis is None else "per channel"

    @property
    def scheme(self) -> Scheme:
        if self.scale is None or self.zero_point is None:
            return "dynamic"
        middle = (self.low + self.high + 1) // 2
        return "symmetric" if np.all(self.zero_point == middle) else "asymmetric"


@dataclass(frozen=True)
class Op:
    """A node or module of the reference model, by the name its user knows, in graph order.

    It never changes: what shows only when the models run is in the ops that the adapter gives afterwards.
    """

    name: str
    type: str
    index: int
    block: str = ""
    module: str = ""
    """The PyTorch module that it is, or is called in, where that is known; the symbol that MXNet makes it part of."""
    unit: str = ""
    tensor: str = ""
    inputs: Sequence[str] = ()
    """Ops that produce what this op consumes."""
    consumers: Sequence[str] = ()
    weight: Quantization | None = None
    activation: Quantization | None = None
    params: int = 0
    compared_at: str = ""
    """The op at whose output this op's result is compared: itself, the op it was folded into, or none."""
    note: str = ""
    """Why this op has no row of numbers of its own; empty when it has."""
    joined: str = ""
    """The kind of op that it and its parts are in the quantized model, where that writes them differently."""
    is_blind: bool = False
    """What reaches it is rounded and not compared, so that its own share in the error is not known."""
    is_rounded: bool = True
    """The quantized model rounds something between what reaches it and what it gives."""
    statement: str = ""
    """What keeps it in fp32 in the code of the tool that has quantized it, line by line, where a name is not enough."""


class Unit(NamedTuple):
    """The smallest thing that can be kept in fp32: the op that a quantizer is told, and the ops that go with it."""

    name: str
    ops: list[str]


class Macs(NamedTuple):
    """Multiplications that are added up, of one op for one sample."""

    number: int
    is_integer: bool
    """Whether the kernels that ship do them with 8-bit integers."""


class Rounding(NamedTuple):
    """How a site is rounded instead of as the quantized model does it: to a grid, or (weights) to given values."""

    scale: Array | None = None
    """One for the tensor, or shaped so that it is broadcast to one for each channel."""
    zero_point: Array | None = None
    low: int = 0
    high: int = 255
    values: Array | None = None
    """The rounded weights themselves, as the reference holds them."""


Range = tuple[float, float]
"""The smallest and the largest number that a rounded tensor can have."""
RangesOffered = Mapping[tuple[str, ...], Mapping[str, Range]]
"""Tensors that share a grid -> a range for them, by how it was found."""


class Site(NamedTuple):
    """Something that quantization rounds: a tensor between ops, or the weights of one."""

    name: str
    kind: Literal["activation", "weight"]
    units: frozenset[str]
    """It is rounded as long as any of these is quantized."""
    grid: str
    """Sites with the same grid round the same values again, which changes nothing: a tensor and its reshaped form."""
    instead: str = ""
    """How it is rounded by the runtime where the quantizer has left it alone; "" where runtimes leave it alone, too."""
    ways: tuple[frozenset[str], ...] = ()
    """Keeping all units of one of these in fp32 spares it for good, where there is an `instead`."""

    def is_spared(self, kept: AbstractSet[str]) -> bool:
        return any(way <= kept for way in self.ways or (self.units,))
