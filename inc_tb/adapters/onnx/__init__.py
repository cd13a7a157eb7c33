"""ONNX Runtime: any pair of an fp32 and a quantized ONNX model."""

from inc_tb.adapters.onnx.adapter import OnnxAdapter, read_inputs
from inc_tb.adapters.onnx.graph import read_graph
from inc_tb.adapters.onnx.model import digest_model, measure_size, open_results, save_model

__all__ = [
    "OnnxAdapter", "digest_model", "measure_size", "open_results", "read_graph", "read_inputs", "save_model",
]  # fmt: skip
