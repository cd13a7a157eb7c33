"""TensorFlow: graphs, SavedModels, Keras models, and TFLite files."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

from inc_tb.frameworks.framework import Framework, Option, Tool
from inc_tb.frameworks.tensorflow.files import is_checkpoint
from inc_tb.frameworks.tensorflow.formats import FORMATS

_SUFFIXES = (".pb", ".tflite", ".keras", ".h5")
_HOMES = {"tensorflow", "keras", "tf_keras"}


def _settings(options: Mapping[str, Any]) -> dict[str, Any]:
    approach = "saved-model" if options["saved-model"] else "tflite"
    return {"approach": approach, "per_channel": options["per-channel"] is not False}


_TENSORFLOW = Tool(
    "TensorFlowQuantizer", "TensorFlow", "quantizer:TensorFlowQuantizer",
    options=(
        Option("saved-model", "quantize_saved_model instead of TFLite."),
        Option("per-channel", "A scale for each channel of the weights; yes unless told otherwise.", default=None),
    ),
    settings=_settings,
    prepares_by=("approach",),
)  # fmt: skip


class TensorFlowFramework(Framework):
    name, title, extra = "tensorflow", "TensorFlow", "tensorflow"
    models = ".pb, .tflite and .keras files, SavedModel folders, or objects"
    suffixes = (".pb", ".tflite", ".keras")
    takes_any_folder = True
    channels_last = True
    reference_is_optional = True  # of a model in quantization-aware training
    environment: ClassVar = {"TF_CPP_MIN_LOG_LEVEL": "2"}  # what it warns of is in our own messages
    thread_variables = ("TF_NUM_INTRAOP_THREADS",)
    packages = ("tensorflow", "tensorflow-cpu")
    formats = FORMATS
    tools = (_TENSORFLOW,)
    words: ClassVar = {
        "AddV2": "Add", "ADD": "Add", "SUB": "Sub", "ConcatV2": "Concat", "CONCATENATION": "Concat",
        "SOFTMAX": "Softmax", "LOG_SOFTMAX": "LogSoftmax", "MAX_POOL_2D": "MaxPool", "RESHAPE": "Reshape",
        "SQUEEZE": "Squeeze", "TRANSPOSE": "Transpose", "ExpandDims": "Unsqueeze", "EXPAND_DIMS": "Unsqueeze",
        "StridedSlice": "Slice", "STRIDED_SLICE": "Slice", "SLICE": "Slice", "SplitV": "Split", "SPLIT": "Split",
        "SPLIT_V": "Split", "PadV2": "Pad", "MirrorPad": "Pad", "PAD": "Pad", "PADV2": "Pad", "MIRROR_PAD": "Pad",
        "FusedBatchNormV3": "BatchNormalization",
    }  # fmt: skip
    parts: ClassVar = {
        "open_pair": "adapter:TensorFlowAdapter", "open_switches": "switch:TensorFlowSwitches",
        "open_timer": "timer:open_timer", "name_twins": "timer:name_twins", "read_inputs": "model:read_inputs",
        "read_graph": "model:read_graph", "open_results": "model:open_results", "digest_model": "model:digest_model",
        "measure_size": "model:measure_size", "save_model": "model:save_model",
    }  # fmt: skip

    def recognizes(self, model: Any) -> bool:
        if isinstance(model, str | PathLike):
            path = Path(model)
            return path.is_dir() or is_checkpoint(path) or (path.is_file() and path.suffix.lower() in _SUFFIXES)
        if isinstance(model, bytes | bytearray):
            return model[4:8] == b"TFL3"
        homes = {c.__module__.partition(".")[0] for c in type(model).__mro__}
        return bool(_HOMES & homes) and "torch" not in homes  # whose modules Keras models on that backend are


FRAMEWORK = TensorFlowFramework()
