"""Steps and tensors of an ONNX file, with the ways in which it stores them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper

from inc_tb.frameworks import graph
from inc_tb.frameworks.onnx.model import DEQUANTIZE, QUANTIZE, attribute
from inc_tb.frameworks.ops import Quantization

REQUANTIZE = "Requantize"
"""Quantized once more with other parameters: for one reader, for a change of type, or what is left of a Relu."""
BASE_TYPES = {
    "QGemm": "Gemm", "QAttention": "Attention", "QEmbedLayerNormalization": "EmbedLayerNormalization",
    "MatMulNBits": "MatMul", "MatMulIntegerToFloat": "MatMul", "DynamicQuantizeMatMul": "MatMul",
    "DynamicQuantizeLSTM": "LSTM", "MatMulInteger": "MatMul", "ConvInteger": "Conv", "FusedConv": "Conv",
    "FusedGemm": "Gemm", "FusedMatMul": "MatMul", "TransposeMatMul": "MatMul", QUANTIZE: REQUANTIZE,
}  # fmt: skip


@dataclass
class Tensor(graph.Tensor):
    """Where the root holds whole numbers, there may be no dequantized tensor in the file."""

    scale: str = ""
    zero_point: str = ""
    template: onnx.NodeProto | None = None
    """A QuantizeLinear of it, whose attributes another one would need."""
    channels_last: bool = False
    """ONNX Runtime's layout optimizer has moved the channels to the end."""

    def as_consumed(self, source: str) -> tuple[str, list[onnx.NodeProto]]:
        """Nodes that turn `source`, which stands in for the root, into what its consumers see."""
        if not self.scale:
            return source, []
        nodes = []
        if not self.is_integer:
            middle = f"{source}/inc_tb_integer"
            nodes.append(self.quantizer(source, middle))
            source = middle
        target = f"{source}/inc_tb_float"
        settings = {name: value for name, value in self._settings().items() if name in ("axis", "block_size")}
        nodes.append(
            helper.make_node(DEQUANTIZE, [source, *self._parameters()], [target], **settings, **self._domain())
        )
        return target, nodes

    def quantizer(self, source: str, target: str) -> onnx.NodeProto:
        return helper.make_node(QUANTIZE, [source, *self._parameters()], [target], **self._settings(), **self._domain())

    def _parameters(self) -> list[str]:
        return [self.scale, self.zero_point] if self.zero_point else [self.scale]

    def _settings(self) -> dict[str, Any]:
        return {a.name: helper.get_attribute_value(a) for a in (self.template.attribute if self.template else ())}

    def _domain(self) -> dict[str, str]:
        return {"domain": self.template.domain} if self.template else {}


@dataclass(kw_only=True)
class Step(graph.Step):
    node: onnx.NodeProto
    weight_position: int = 1
    has_bias: bool = False

    @property
    def module(self) -> str:
        """As torch's exporter notes it: the names of the modules around the op, the outermost first, and its own."""
        scopes = next((p.value for p in self.node.metadata_props if p.key == "pkg.torch.onnx.name_scopes"), "")
        names = [part.strip(" '\"[]") for part in scopes.split(",")]
        return next((name for name in reversed(names[:-1]) if name), "")


def flipped_axis(quantization: Quantization) -> Quantization:
    """The quantization of a matrix, for its transpose."""
    return (
        quantization if quantization.axis is None else replace(quantization, axis=-2 if quantization.axis % 2 else -1)
    )


def nth_input(node: onnx.NodeProto, at: int) -> str:
    """Empty where an optional input is left out."""
    return str(node.input[at]) if at < len(node.input) else ""


def base_type(op_type: str) -> str:
    return BASE_TYPES.get(op_type) or op_type.removeprefix("QLinear").removeprefix("Nhwc")


def same_parameters(a: Quantization, b: Quantization) -> bool:
    if a.scale is None or b.scale is None or a.zero_point is None or b.zero_point is None:
        return True
    return a.dtype == b.dtype and np.array_equal(a.scale, b.scale) and np.array_equal(a.zero_point, b.zero_point)


def wants_channels_last(node: onnx.NodeProto) -> bool:
    return node.op_type.startswith("Nhwc") or bool(attribute(node, "channels_last", 0))
