"""MXNet 1.9: networks, and what `mxnet.contrib.quantization` makes of them for oneDNN."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from inc_tb.frameworks.framework import Framework, Option, Tool
from inc_tb.frameworks.mxnet.formats import FORMATS
from inc_tb.frameworks.ops import Array

SYMBOL = "-symbol.json"
_CALIBRATION = {"minmax": "naive", "entropy": "entropy"}


def _settings(options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "calibration": _CALIBRATION[options["calibrator"]], "quantize_mode": "smart" if options["smart"] else "full",
        "granularity": "channel-wise" if options["per-channel"] else "tensor-wise",
    }  # fmt: skip


_MXNET = Tool(
    "MxnetQuantizer", "MXNet", "quantizer:MxnetQuantizer",
    options=(
        Option("calibrator", "How ranges are found; minmax is what it calls naive.", tuple(_CALIBRATION), "minmax"),
        Option("per-channel", "A scale for each row of fully connected layers; convolutions have one.", default=None),
        Option("smart", "quantize_mode smart instead of full."),
    ),
    settings=_settings,
)  # fmt: skip


class MxnetFramework(Framework):
    name, title, extra = "mxnet", "MXNet", "mxnet"
    models = f"{SYMBOL} files or gluon blocks"
    suffixes = (SYMBOL,)
    thread_variables = ("OMP_NUM_THREADS",)
    packages = ("mxnet",)
    formats = FORMATS
    tools = (_MXNET,)
    words: ClassVar = {
        "elemwise_add": "Add", "broadcast_add": "Add", "_plus": "Add", "elemwise_sub": "Sub",
        "transpose": "Transpose", "expand_dims": "Unsqueeze", "squeeze": "Squeeze", "slice": "Slice",
        "slice_axis": "Slice", "SliceChannel": "Split", "BatchNorm": "BatchNormalization", "SoftmaxOutput": "Softmax",
        "softmax": "Softmax", "log_softmax": "LogSoftmax", "LayerNorm": "LayerNormalization",
    }  # fmt: skip
    parts: ClassVar = {
        "open_pair": "adapter:MxnetAdapter", "open_switches": "switch:MxnetSwitches", "open_timer": "timer:MxnetTimer",
        "name_twins": "timer:name_twins", "read_inputs": "model:read_inputs", "read_graph": "model:read_graph",
        "open_results": "model:open_results", "digest_model": "model:digest_model",
        "measure_size": "model:measure_size", "save_model": "model:save_model",
    }  # fmt: skip

    def recognizes(self, model: Any) -> bool:
        """Of a path: a network, the name that all files of one begin with, or a folder that holds one."""
        if isinstance(model, str | PathLike):
            path = Path(model)
            if path.is_dir():
                return any(path.glob(f"*{SYMBOL}"))
            if path.is_file():
                return path.name.endswith(SYMBOL) or path.suffix.lower() == ".params"
            return Path(f"{path}{SYMBOL}").is_file()
        first = model[0] if isinstance(model, tuple) and model else model  # a symbol and its parameters
        return any(c.__module__.partition(".")[0] == "mxnet" for c in type(first).__mro__)

    def as_array(self, value: Any) -> Array | None:
        return np.asarray(value.asnumpy()) if hasattr(value, "asnumpy") else None

    def run_name(self, path: Path) -> str:
        return path.stem.removesuffix(SYMBOL.removesuffix(".json"))


FRAMEWORK = MxnetFramework()
