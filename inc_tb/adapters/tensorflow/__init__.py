"""TensorFlow: graphs, SavedModels, Keras models, and TFLite files."""

from inc_tb.adapters.tensorflow.adapter import TensorFlowAdapter
from inc_tb.adapters.tensorflow.model import (
    digest_model,
    measure_size,
    open_results,
    read_graph,
    read_inputs,
    save_model,
)
from inc_tb.adapters.tensorflow.switch import TensorFlowSwitches
from inc_tb.adapters.tensorflow.timer import name_twins, open_timer

__all__ = [
    "digest_model", "measure_size", "name_twins", "open_adapter", "open_results", "open_switches", "open_timer",
    "read_graph", "read_inputs", "save_model",
]  # fmt: skip

open_adapter, open_switches = TensorFlowAdapter, TensorFlowSwitches
