"""The test data that ONNX models come with: test_data_set_0/input_0.pb, input_1.pb, …"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import numpy_helper

from inc_tb.capture import Array, Input
from inc_tb.errors import DataError


def read_test_data(folder: Path, inputs: Sequence[Input]) -> Mapping[str, Array]:
    batch = {}
    for i, expected in enumerate(inputs):
        path = folder / f"input_{i}.pb"
        try:
            tensor = onnx.TensorProto.FromString(path.read_bytes())
        except (OSError, DecodeError) as error:
            raise DataError(
                f"{path}: not a readable ONNX tensor ({error}); the model has {len(inputs)} inputs."
            ) from error
        name = tensor.name if tensor.name in {other.name for other in inputs} else expected.name
        batch[name] = numpy_helper.to_array(tensor)
    return batch
