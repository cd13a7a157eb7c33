"""ONNX Runtime: any pair of an fp32 and a quantized ONNX model."""

from inc_tb.adapters.onnx.adapter import OnnxAdapter, read_inputs
from inc_tb.adapters.onnx.graph import read_graph
from inc_tb.adapters.onnx.model import digest_model, measure_size, open_results, save_model
from inc_tb.adapters.onnx.switch import OnnxSwitches
from inc_tb.adapters.onnx.timer import OnnxTimer, name_twins

__all__ = [
    "digest_model", "measure_size", "name_twins", "open_adapter", "open_results", "open_switches", "open_timer",
    "read_graph", "read_inputs", "save_model",
]  # fmt: skip

open_adapter, open_switches, open_timer = OnnxAdapter, OnnxSwitches, OnnxTimer
