"""What is stored beside a tuned model, so that another process can load it: data, and no code."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from inc_tb.frameworks.ops import Batch


class Example(msgspec.Struct, forbid_unknown_fields=True):
    """The type and shape of one array that the model was calibrated with; of its values nothing is stored."""

    name: str
    dtype: str
    shape: list[int]


class Manifest(msgspec.Struct):
    """How a model was quantized, and what belongs to it. `own` is whatever its framework adds."""

    version: int
    framework: str
    tool: str
    """The class of the quantizer."""
    settings: dict[str, Any]
    keep: list[str]
    """Ops in fp32."""
    examples: list[Example]
    """Of the first batch of the calibration data."""
    trial: str
    accuracy: float | None
    baseline: float
    target: float
    packages: dict[str, str]
    """Name -> version, of those that decide what the model computes."""
    files: dict[str, str] = {}
    """Of the model, below the folder, with their SHA-256: what was damaged on the way is found."""
    own: dict[str, Any] = {}


class Carried(NamedTuple):
    """A tuned model that is to be stored."""

    model: Any
    reference: Any
    """The fp32 model as it was given to the tuning."""
    manifest: Manifest
    tokenizer: Any = None
    """Anything that stores itself beside the model."""


class Found(NamedTuple):
    """A folder that was read; `model` is the fp32 model as the user gives it, or a function that makes it."""

    folder: Path
    manifest: Manifest
    model: Any = None


def blank_batch(manifest: Manifest) -> Batch:
    """Of the types and shapes that the model was calibrated with."""
    import numpy as np

    return {e.name: np.zeros(e.shape, np.dtype(e.dtype)) for e in manifest.examples}
