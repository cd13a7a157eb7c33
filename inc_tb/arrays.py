"""Whatever people have as an array, as one of numpy's."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np
import numpy.typing as npt


def as_array(value: Any) -> npt.NDArray[Any]:
    """Takes tensors of PyTorch as well: quantized ones, half types, on any device, with a history or without."""
    torch = sys.modules.get("torch")  # whoever has a tensor has loaded it
    if torch is not None and isinstance(value, torch.Tensor):
        found: npt.NDArray[Any] = importlib.import_module("inc_tb.adapters.torch.values").to_numpy(value)
        return found
    return np.asarray(value)
