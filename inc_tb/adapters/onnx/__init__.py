"""ONNX Runtime: any pair of an fp32 and a quantized ONNX model."""

from inc_tb.adapters.onnx.adapter import OnnxAdapter
from inc_tb.adapters.onnx.graph import read_graph

__all__ = ["OnnxAdapter", "read_graph"]
