"""Values of TensorBoard's summaries: a number, a text, a histogram, or a sequence of byte strings."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from tensorboard.compat.proto.summary_pb2 import (
    DATA_CLASS_BLOB_SEQUENCE,
    DATA_CLASS_SCALAR,
    DATA_CLASS_TENSOR,
    DataClass,
    Summary,
    SummaryMetadata,
)
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_DOUBLE, DT_FLOAT, DT_STRING

from inc_tb.records import PLUGIN, VERSION, storable_text


def scalar(tag: str, number: float, description: str = "") -> Summary.Value:
    tensor = TensorProto(dtype=DT_FLOAT, float_val=[number])
    return _value(tag, "scalars", DATA_CLASS_SCALAR, tensor, description)


def text(tag: str, markdown: str) -> Summary.Value:
    tensor = TensorProto(dtype=DT_STRING, string_val=[storable_text(markdown).encode()], tensor_shape=_shape(1))
    return _value(tag, "text", DATA_CLASS_TENSOR, tensor)


def histogram(tag: str, buckets: npt.NDArray[np.float64], description: str = "") -> Summary.Value:
    tensor = TensorProto(dtype=DT_DOUBLE, tensor_content=buckets.astype("<f8").tobytes())
    tensor.tensor_shape.CopyFrom(_shape(*buckets.shape))
    return _value(tag, "histograms", DATA_CLASS_TENSOR, tensor, description)


def blobs(tag: str, elements: Sequence[bytes]) -> Summary.Value:
    tensor = TensorProto(dtype=DT_STRING, string_val=elements, tensor_shape=_shape(len(elements)))
    return _value(tag, PLUGIN, DATA_CLASS_BLOB_SEQUENCE, tensor)


def _value(tag: str, plugin: str, data_class: DataClass, tensor: TensorProto, description: str = "") -> Summary.Value:
    content = msgspec.json.encode({"version": VERSION}) if plugin == PLUGIN else b""
    metadata = SummaryMetadata(
        data_class=data_class,
        plugin_data=SummaryMetadata.PluginData(plugin_name=plugin, content=content),
        summary_description=description,
    )
    return Summary.Value(tag=storable_text(tag), metadata=metadata, tensor=tensor)


def _shape(*dims: int) -> TensorShapeProto:
    return TensorShapeProto(dim=[TensorShapeProto.Dim(size=n) for n in dims])
