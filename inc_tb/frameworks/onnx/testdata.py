"""The test data that ONNX models come with: test_data_set_0/input_0.pb, input_1.pb, …"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnx
from onnx import numpy_helper

from inc_tb.errors import DataError, reading
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
            told = f"Expected a tensor for each input of the model, which has {plural(len(names), 'input')}."
            with reading(DataError, path, "not a readable ONNX tensor", told):
                tensor = onnx.TensorProto.FromString(path.read_bytes())
                batch[tensor.name if tensor.name in names else expected.name] = numpy_helper.to_array(tensor)
        return batch
