"""PyTorch: any pair of modules, eager, FX or exported."""

from inc_tb.adapters.torch.adapter import TorchAdapter, read_inputs
from inc_tb.adapters.torch.model import digest_model, measure_size, open_results, read_graph, save_model
from inc_tb.adapters.torch.switch import TorchSwitches
from inc_tb.adapters.torch.timer import TorchTimer, name_twins

__all__ = [
    "digest_model", "measure_size", "name_twins", "open_adapter", "open_results", "open_switches", "open_timer",
    "read_graph", "read_inputs", "save_model",
]  # fmt: skip

open_adapter, open_switches, open_timer = TorchAdapter, TorchSwitches, TorchTimer
