"""PyTorch: any pair of modules, eager, FX or exported."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

from inc_tb.errors import UsageError
from inc_tb.frameworks.framework import Framework, Option, Tool
from inc_tb.frameworks.ops import Array
from inc_tb.frameworks.torch.followers import is_follower, with_followers
from inc_tb.frameworks.torch.formats import FORMATS
from inc_tb.records import GraphNode

_GGUF, _CONFIG = ".gguf", "config.json"


def _settings(options: Mapping[str, Any]) -> dict[str, Any]:
    if options["torchao"]:
        if options["pt2e"]:
            raise UsageError("--torchao was given together with --pt2e; expected one of them.")
        approach = "torchao-dynamic" if options["dynamic"] else "torchao"
    elif options["pt2e"]:
        approach = "pt2e-dynamic" if options["dynamic"] else "pt2e"
    else:
        approach = "dynamic" if options["dynamic"] else "auto"
    return {"approach": approach, "per_channel": options["per-channel"] is not False}


_PYTORCH = Tool(
    "TorchQuantizer", "PyTorch", "quantizer:TorchQuantizer",
    options=(
        Option("dynamic", "Quantize dynamically, without calibrated ranges."),
        Option("pt2e", "Export the model and quantize it with torchao."),
        Option("torchao", "Quantize linear layers with torchao's quantize_: weights, with --dynamic also activations."),
        Option("per-channel", "A scale for each channel of the weights; yes unless told otherwise.", default=None),
    ),
    settings=_settings,
    prepares_by=("approach",),
)  # fmt: skip


def _is_pretrained(folder: Path) -> bool:
    return (folder / _CONFIG).is_file() and any(folder.glob("*.safetensors"))


class _Node:
    """An op of a diagnosed model, as a call that may follow others."""

    def __init__(self, node: GraphNode) -> None:
        self.sources, self.is_follower = frozenset(node.inputs), is_follower(node.type) or "BatchNorm" in node.type
        self.whole = node.statement if node.module and node.module == node.name.partition("/")[0] else ""


class TorchFramework(Framework):
    name, title, extra = "torch", "PyTorch", "torch"
    models = "torch.nn.Module objects, folders of transformers and .gguf files"
    suffixes = (_GGUF,)
    saved_suffix = ".pt"
    reference_is_optional = True  # of a model in quantization-aware training
    packages = ("torch", "torchao", "transformers")
    formats = FORMATS
    tools = (_PYTORCH,)
    bit_tools = "torchao", "llm-compressor", "auto-round", "gptqmodel", "neural-compressor", "llama.cpp"
    words: ClassVar = {
        "add": "Add", "sub": "Sub", "cat": "Concat", "softmax": "Softmax", "log_softmax": "LogSoftmax",
        "LayerNorm": "LayerNormalization", "layer_norm": "LayerNormalization",
        "RMSNorm": "SimplifiedLayerNormalization", "rms_norm": "SimplifiedLayerNormalization", "GELU": "Gelu",
        "gelu": "Gelu", "GELUActivation": "Gelu", "NewGELUActivation": "Gelu", "QuickGELUActivation": "Gelu",
        "MaxPool2d": "MaxPool", "max_pool2d": "MaxPool", "transpose": "Transpose", "squeeze": "Squeeze",
        "slice": "Slice", "relu": "Relu", "ReLU": "Relu", "relu6": "Clip", "ReLU6": "Clip", "hardtanh": "Clip",
        "Hardtanh": "Clip", "clamp": "Clip", "leaky_relu": "LeakyRelu", "LeakyReLU": "LeakyRelu",
        "hardswish": "HardSwish", "Hardswish": "HardSwish", "AvgPool2d": "AveragePool", "avg_pool2d": "AveragePool",
    }  # fmt: skip
    parts: ClassVar = {
        "open_pair": "adapter:TorchAdapter", "open_switches": "switch:TorchSwitches", "open_timer": "timer:TorchTimer",
        "name_twins": "timer:name_twins", "read_inputs": "adapter:read_inputs", "read_graph": "model:read_graph",
        "open_results": "model:open_results", "digest_model": "model:digest_model",
        "measure_size": "model:measure_size", "save_model": "model:save_model",
        "count_macs": "multiplications:count_macs", "read_settings": "made_by:read_settings",
        "load_stored": "checkpoints:load_stored", "open_tokenizer": "checkpoints:open_tokenizer",
        "open_language": "language:TorchLanguage", "write_bits": "bit_recipes:write_recipe",
        "find_rewrites": "rewrites:find_rewrites", "apply_rewrites": "rewrites:apply_rewrites",
        "store_tuned": "carried:store_tuned", "open_tuned": "carried:open_tuned",
    }  # fmt: skip

    def recognizes(self, model: Any) -> bool:
        if isinstance(model, str | PathLike):
            path = Path(model)
            return (path.suffix.lower() == _GGUF and path.is_file()) or _is_pretrained(path)
        torch = sys.modules.get("torch")  # whoever has such a model has loaded it
        return torch is not None and isinstance(model, torch.nn.Module | torch.export.ExportedProgram)

    def as_array(self, value: Any) -> Array | None:
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(value, torch.Tensor):
            return None
        found: Array = self.part("values:to_numpy")(value)
        return found

    def with_followers(self, ops: Sequence[str], graph: Iterable[GraphNode]) -> list[str]:
        """Those of FX, which has a statement for each op."""
        nodes = {node.name: _Node(node) for node in graph if node.statement}
        kept = set(with_followers(ops, nodes))
        return [*(op for op in ops if op not in nodes), *(name for name in nodes if name in kept)]

    def gather_bytes(self, data: bytes) -> list[bytes] | None:
        found: list[bytes] = self.part("distributed:gather_bytes")(data)
        return found


FRAMEWORK = TorchFramework()
