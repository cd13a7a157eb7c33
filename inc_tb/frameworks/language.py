"""What a framework tells of a language model whose matrices can be rounded one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from inc_tb.frameworks.ops import Array, Batch, Input

Round = Callable[[Array], Array]
"""A matrix as it is once it is quantized."""


class Matrix(NamedTuple):
    """The weight of a linear layer, (outputs, inputs)."""

    name: str
    block: int
    """Its place among the blocks of the model."""
    kind: str
    """What it is in its block, as `down_proj`."""
    rows: int
    columns: int

    @property
    def size(self) -> int:
        return self.rows * self.columns


class Told(NamedTuple):
    """What some rounded matrices do to the output, for each sequence of a batch."""

    kl: npt.NDArray[np.float64]
    """Sum over the places of the divergence from the reference, in nats."""
    same_first: npt.NDArray[np.int64]
    """Places where both find the same token most likely."""
    places: npt.NDArray[np.int64]


class Border(NamedTuple):
    """What leaves a block: how far it is off now, and the largest number that the reference has there."""

    noise: float
    """Sum of squared differences …"""
    signal: float
    """… of squares …"""
    numbers: int
    """… and numbers."""
    largest: float
    channel: int
    sequence: int
    """Of the batch."""
    place: int


class Watched(Protocol):
    """One batch that the reference has been through."""

    def told(self, rounds: Mapping[str, Round]) -> Told:
        """With these matrices rounded and the others as they are."""
        ...

    def borders(self, rounds: Mapping[str, Round]) -> list[Border]:
        """What then leaves each block."""
        ...

    def effects(self, formats: Mapping[str, Mapping[str, Round]]) -> dict[str, dict[str, float]]:
        """Format -> matrix -> about what rounding it alone adds to the sum of `told`, from one backward pass."""
        ...


class Language(Protocol):
    matrices: Sequence[Matrix]
    inputs: Sequence[Input]
    others: int
    """Numbers of the model that are in none of the matrices."""

    def weight(self, name: str) -> Array:
        """(outputs, inputs), as float32."""
        ...

    def watch(self, batches: Iterator[Batch]) -> Iterator[Watched]:
        """One by one: what is kept of a batch is gone with the next."""
        ...
