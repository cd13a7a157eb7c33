"""ONNX Runtime: any pair of an fp32 and a quantized ONNX model."""

from inc_tb.adapters.onnx.adapter import OnnxAdapter, read_inputs
from inc_tb.adapters.onnx.graph import read_graph
from inc_tb.adapters.onnx.model import digest_model, measure_size, open_results, save_model
from inc_tb.adapters.onnx.switch import OnnxSwitches

__all__ = [
    "digest_model", "measure_size", "open_adapter", "open_results", "open_switches", "read_graph", "read_inputs",
    "save_model",
]  # fmt: skip

open_adapter, open_switches = OnnxAdapter, OnnxSwitches
