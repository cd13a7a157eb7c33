"""Models with a known culprit, and the digits that they read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parent / "data"
OUTLIERS = [3, 7]
"""The channels between the first two convolutions of hard.onnx that are hundreds of times as large as the others."""


def digits(count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Handwritten digits as the models in tests/data want them."""
    from sklearn.datasets import load_digits

    return load_digits().images[:count, None].astype(np.float32) / 16


def write_harder(target: Path) -> Path:
    """hard.onnx with outlier channels that are 8 times as large: the same function, and in int8 it guesses.

    So it does with weights of 8 and of 7 bits, and whether or not the processor's int8 kernels saturate.
    """
    import onnx
    from onnx import numpy_helper

    model = onnx.load(DATA / "hard.onnx")
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for name, at, factor in (
        ("conv1.weight", OUTLIERS, 8),
        ("conv1.bias", OUTLIERS, 8),
        ("conv2.weight", (slice(None), OUTLIERS), 1 / 8),
    ):
        values = numpy_helper.to_array(tensors[name]).copy()
        values[at] *= factor
        tensors[name].CopyFrom(numpy_helper.from_array(values, name))
    onnx.save(model, target)
    return target


def write_pruned(target: Path) -> Path:
    """hard.onnx without its small weights in the last layer: another model, and nothing of it is quantized."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(DATA / "hard.onnx")
    (tensor,) = (t for t in model.graph.initializer if t.name == "fc2.weight")
    values = numpy_helper.to_array(tensor).copy()
    values[np.abs(values) < np.median(np.abs(values))] = 0
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    onnx.save(model, target)
    return target
