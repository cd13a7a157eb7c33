"""ONNX Runtime: any pair of an fp32 and a quantized ONNX model."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

from inc_tb.frameworks.framework import Framework, Option, Tool
from inc_tb.frameworks.onnx.formats import FORMATS
from inc_tb.frameworks.ops import Batch, Input
from inc_tb.records import GraphNode

# Since 1.31 ONNX Runtime leaves a device id in the home folder and calls home, unless told so before it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_TEST_DATA = "test_data_set_*"
_TYPES = ("int8", "uint8", "int16", "uint16")


def _settings(options: Mapping[str, Any]) -> dict[str, Any]:
    found = {name.replace("-", "_"): value for name, value in options.items() if name != "dynamic"}
    return {
        **found,
        "approach": "dynamic" if options["dynamic"] else "static",
        "per_channel": bool(found["per_channel"]),
    }


_ONNX_RUNTIME = Tool(
    "OnnxRuntimeQuantizer", "ONNX Runtime", "quantizer:OnnxRuntimeQuantizer",
    options=(
        Option("dynamic", "Quantize dynamically, without calibrated ranges."),
        Option("format", "How the file says that a tensor is quantized.", ("QDQ", "QOperator"), "QDQ"),
        Option("calibrator", "How ranges are found.", ("minmax", "entropy", "percentile"), "minmax"),
        Option("per-channel", "A scale for each channel of the weights; no unless asked for.", default=None),
        Option("reduce-range", "7 bits for weights, for CPUs without VNNI."),
        Option("symmetric", "Activations symmetric around zero."),
        Option("activation-type", "Of what ops read and write; measured unless told.", _TYPES, None),
        Option("weight-type", "Of the weights.", _TYPES[:2], "int8"),
        Option("preprocess", "Infer shapes and fold batch norms first.", default=True),
    ),
    settings=_settings,
    prepares_by=("preprocess",),
)  # fmt: skip


class OnnxFramework(Framework):
    name, title, extra = "onnx", "ONNX", "onnx"
    models = ".onnx files or onnx.ModelProto objects"
    suffixes = (".onnx",)
    packages = ("onnx", "onnxruntime")
    formats = FORMATS
    tools = (_ONNX_RUNTIME,)
    parts: ClassVar = {
        "open_pair": "adapter:OnnxAdapter", "open_switches": "switch:OnnxSwitches", "open_timer": "timer:OnnxTimer",
        "name_twins": "timer:name_twins", "read_inputs": "adapter:read_inputs", "read_graph": "graph:read_graph",
        "open_results": "model:open_results", "digest_model": "model:digest_model",
        "measure_size": "model:measure_size", "save_model": "model:save_model",
        "count_macs": "multiplications:count_macs", "find_rewrites": "rewrites:find_rewrites",
        "apply_rewrites": "rewrites:apply_rewrites",
        "quantize_to_ranges": "quantizer:quantize_to_ranges", "read_settings": "made_by:read_settings",
    }  # fmt: skip

    def recognizes(self, model: Any) -> bool:
        if isinstance(model, str | PathLike):
            return Path(model).suffix.lower() == ".onnx" and Path(model).is_file()
        return type(model).__name__ == "ModelProto"

    def open_data(self, folder: Path, inputs: Sequence[Input]) -> Iterable[Batch] | None:
        """The test data that models come with."""
        folders = sorted(folder.glob(_TEST_DATA))
        return self.part("testdata:TestData")(folders, inputs) if folders else None

    def is_same(self, one: Any, other: Any) -> bool:
        return bool(self.part("sameness:is_same")(one, other))

    def nameless(self, node: GraphNode) -> bool:
        return node.tensor == node.name


FRAMEWORK = OnnxFramework()
