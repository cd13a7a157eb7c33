"""The test data that ONNX models come with: test_data_set_0/input_0.pb, input_1.pb, …"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import numpy_helper

from inc_tb.errors import DataError
from inc_tb.frameworks.ops import Array, Input
from inc_tb.records import plural


class TestData:
    """One batch a folder."""

    __test__ = False  # whatever pytest thinks of its name

    def __init__(self, folders: Sequence[Path], inputs: Sequence[Input]) -> None:
        self._folders, self._inputs = folders, inputs

    def __iter__(self) -> Iterator[Mapping[str, Array]]:
        return (self._read(folder) for folder in self._folders)

    def _read(self, folder: Path) -> Mapping[str, Array]:
        batch, names = {}, {expected.name for expected in self._inputs}
        for i, expected in enumerate(self._inputs):
            path = folder / f"input_{i}.pb"
            try:
                tensor = onnx.TensorProto.FromString(path.read_bytes())
            except (OSError, DecodeError) as error:
                raise DataError(
                    f"{path}: not a readable ONNX tensor ({error}); the model has {plural(len(names), 'input')}."
                ) from error
            batch[tensor.name if tensor.name in names else expected.name] = numpy_helper.to_array(tensor)
        return batch
