"""PyTorch: any pair of modules, eager, FX or exported."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, ClassVar

from inc_tb.frameworks.framework import Framework, Option, Tool
from inc_tb.frameworks.ops import Array
from inc_tb.frameworks.torch.formats import FORMATS


def _settings(options: Mapping[str, Any]) -> dict[str, Any]:
    if options["pt2e"]:
        approach = "pt2e-dynamic" if options["dynamic"] else "pt2e"
    else:
        approach = "dynamic" if options["dynamic"] else "auto"
    return {"approach": approach, "per_channel": options["per-channel"] is not False}


_PYTORCH = Tool(
    "TorchQuantizer", "PyTorch", "quantizer:TorchQuantizer",
    options=(
        Option("dynamic", "Quantize dynamically, without calibrated ranges."),
        Option("pt2e", "Export the model and quantize it with torchao."),
        Option("per-channel", "A scale for each channel of the weights; yes unless told otherwise.", default=None),
    ),
    settings=_settings,
    prepares_by=("approach",),
)  # fmt: skip


class TorchFramework(Framework):
    name, title, extra = "torch", "PyTorch", "torch"
    models = "torch.nn.Module objects"
    saved_suffix = ".pt"
    reference_is_optional = True  # of a model in quantization-aware training
    formats = FORMATS
    tools = (_PYTORCH,)
    words: ClassVar = {
        "add": "Add", "sub": "Sub", "cat": "Concat", "softmax": "Softmax", "log_softmax": "LogSoftmax",
        "LayerNorm": "LayerNormalization", "layer_norm": "LayerNormalization",
        "RMSNorm": "SimplifiedLayerNormalization", "rms_norm": "SimplifiedLayerNormalization", "GELU": "Gelu",
        "gelu": "Gelu", "GELUActivation": "Gelu", "NewGELUActivation": "Gelu", "QuickGELUActivation": "Gelu",
        "MaxPool2d": "MaxPool", "max_pool2d": "MaxPool", "transpose": "Transpose", "squeeze": "Squeeze",
        "slice": "Slice",
    }  # fmt: skip
    parts: ClassVar = {
        "open_pair": "adapter:TorchAdapter", "open_switches": "switch:TorchSwitches", "open_timer": "timer:TorchTimer",
        "name_twins": "timer:name_twins", "read_inputs": "adapter:read_inputs", "read_graph": "model:read_graph",
        "open_results": "model:open_results", "digest_model": "model:digest_model",
        "measure_size": "model:measure_size", "save_model": "model:save_model",
    }  # fmt: skip

    def recognizes(self, model: Any) -> bool:
        torch = sys.modules.get("torch")  # whoever has such a model has loaded it
        return torch is not None and isinstance(model, torch.nn.Module | torch.export.ExportedProgram)

    def as_array(self, value: Any) -> Array | None:
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(value, torch.Tensor):
            return None
        found: Array = self.part("values:to_numpy")(value)
        return found

    def gather_bytes(self, data: bytes) -> list[bytes] | None:
        found: list[bytes] = self.part("distributed:gather_bytes")(data)
        return found


FRAMEWORK = TorchFramework()
