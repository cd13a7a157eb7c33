"""PyTorch: any pair of modules, eager, FX or exported."""

from inc_tb.adapters.torch.adapter import TorchAdapter, read_inputs

__all__ = ["TorchAdapter", "read_inputs"]
