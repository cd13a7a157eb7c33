"""MXNet 1.9: networks, and what `mxnet.contrib.quantization` makes of them for oneDNN."""

from inc_tb.adapters.mxnet.adapter import MxnetAdapter
from inc_tb.adapters.mxnet.model import (
    digest_model,
    measure_size,
    open_results,
    read_graph,
    read_inputs,
    save_model,
)
from inc_tb.adapters.mxnet.switch import MxnetSwitches
from inc_tb.adapters.mxnet.timer import MxnetTimer, name_twins

__all__ = [
    "digest_model", "measure_size", "name_twins", "open_adapter", "open_results", "open_switches", "open_timer",
    "read_graph", "read_inputs", "save_model",
]  # fmt: skip

open_adapter, open_switches, open_timer = MxnetAdapter, MxnetSwitches, MxnetTimer
