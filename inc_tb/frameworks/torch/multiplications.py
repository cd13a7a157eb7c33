"""How many multiplications each module with weights does for one sample, and whether it does them with integers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from inc_tb.frameworks.ops import Batch, Macs
from inc_tb.frameworks.torch.arguments import call, feeds
from inc_tb.frameworks.torch.grids import is_fake_quantizer
from inc_tb.frameworks.torch.opening import opened
from inc_tb.frameworks.torch.state import undisturbed
from inc_tb.frameworks.torch.values import outputs_of

_INTEGER_HOMES = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")


def count_macs(model: Any, batch: Batch) -> dict[str, Macs]:
    """Of layers that are modules, by their names; products of two activations are not among them."""
    module = opened(model)
    found: dict[str, Macs] = {}
    rows = max((len(array) for array in batch.values() if array.ndim), default=1)
    with ExitStack() as hooks, undisturbed(module), torch.no_grad():
        for name, layer in module.named_modules():
            of_output = _weights_of_output(layer)
            if of_output:
                hooks.callback(layer.register_forward_hook(_noting(found, name, of_output, rows)).remove)
        call(module, feeds(module, batch))
    return found


def _noting(found: dict[str, Macs], name: str, of_output: int, rows: int) -> Callable[..., None]:
    def note(layer: nn.Module, args: Any, result: Any) -> None:
        made = sum(tensor.numel() for tensor in outputs_of(result))
        before = found[name].number if name in found else 0
        found[name] = Macs(before + made * of_output // rows, _is_integer(layer))

    return note


def _weights_of_output(layer: nn.Module) -> int:
    """By how many weights each number that it gives is made; 0 for what is no linear or convolutional layer."""
    if hasattr(layer, "in_features") and hasattr(layer, "out_features"):
        return int(layer.in_features)
    kernel = getattr(layer, "kernel_size", None)
    if kernel is None or not hasattr(layer, "in_channels"):
        return 0
    size = prod(kernel if isinstance(kernel, tuple) else (kernel,))
    return int(layer.in_channels) // int(layer.groups) * size  # of a transposed one as if it had no stride


def _is_integer(layer: nn.Module) -> bool:
    if type(layer).__module__.startswith(_INTEGER_HOMES):
        return True
    fake = getattr(layer, "weight_fake_quant", None)
    weight = getattr(layer, "weight", None)
    rounds_reads = isinstance(weight, Tensor) and getattr(weight, "act_quant_kwargs", None) is not None
    return rounds_reads or (fake is not None and is_fake_quantizer(fake))
