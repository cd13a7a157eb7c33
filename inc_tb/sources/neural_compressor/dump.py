"""The tensors that Neural Compressor's diagnosis has dumped, as it has them.

`inspect_saved/{fp32,quan}/inspect_result.pkl`: {"weight": {op: {tensor: array}}, "activation": [{op: {tensor: array}}]}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from inc_tb.frameworks.ops import Array, Pair
from inc_tb.sources.neural_compressor.trials import number_of
from inc_tb.sources.pickles import read_if_there

FOLDER = "inspect_saved"
SIDES = ("fp32", "quan")
Sides = Mapping[str, Mapping[str, Any]]
INT8 = "_qint8_const"
DOUBLED = 2.0
"""TensorFlow's signed values are scaled by their whole range over 127, which is twice the step."""


@dataclass
class Dump:
    """What could be paired, and what is to be known about it."""

    pairs: list[Pair] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    weight_ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Of fp32 weights of which nothing else was kept."""
    why_not: dict[str, str] = field(default_factory=dict)
    """Op -> why its output cannot be compared."""
    joined: dict[str, str] = field(default_factory=dict)
    """Op -> the op that it is a part of in the quantized model."""
    rows: dict[str, str] = field(default_factory=dict)
    """Row of Neural Compressor's activation table -> the op whose output it is about."""
    samples: int = 0


def read_dump(folder: Path, notes: list[str]) -> dict[str, Mapping[str, Any]]:
    """Both sides; one that is not there is empty."""
    return {side: read_if_there(folder / FOLDER / side / "inspect_result.pkl", notes) for side in SIDES}


def read_ranges(folder: Path, notes: list[str]) -> dict[str, tuple[float, float]]:
    """What the calibration saw of each op's output."""
    found = {}
    for op, seen in read_if_there(folder / FOLDER / "activation_min_max.pkl", notes).items():
        low, high = (number_of(seen.get(name)) if isinstance(seen, dict) else None for name in ("min", "max"))
        if low is not None and high is not None:
            found[str(op)] = low, high
    return found


def batches(sides: Sides) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    both = (sides[side].get("activation") for side in SIDES)
    lists = [found if isinstance(found, list) else [] for found in both]
    yield from ((a, b) for a, b in zip(*lists, strict=False) if isinstance(a, dict) and isinstance(b, dict))


def first_tensor(tensors: Any) -> tuple[str, Array] | None:
    """An op's only tensor, or the first of them."""
    found = [(str(n), v) for n, v in tensors.items() if is_tensor(v)] if isinstance(tensors, dict) else []
    return found[0] if found else None


def is_tensor(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.size > 0


def floats(reference: Array, quantized: Array) -> tuple[Array, Array]:
    return np.ascontiguousarray(reference, np.float32), np.ascontiguousarray(quantized, np.float32)


def channels(array: Array, axis: int) -> int | None:
    return axis if array.ndim > 1 else None
