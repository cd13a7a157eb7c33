"""ONNX Runtime: any pair of an fp32 and a quantized ONNX model."""

from inc_tb.adapters.onnx.adapter import OnnxAdapter, read_inputs
from inc_tb.adapters.onnx.graph import read_graph
from inc_tb.adapters.onnx.model import open_results

__all__ = ["OnnxAdapter", "open_results", "read_graph", "read_inputs"]
