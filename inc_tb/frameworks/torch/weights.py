"""The main weights of a step, wherever a quantizer has put them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from inc_tb.frameworks.ops import Quantization
from inc_tb.frameworks.torch.grids import fake_quantization, is_fake_quantizer, quantization_of
from inc_tb.frameworks.torch.steps import Step
from inc_tb.frameworks.torch.values import plain

_EPS = 1e-5


@dataclass
class Weight:
    stored: Tensor
    quantization: Quantization | None
    fake: nn.Module | None = None
    """Rounds them whenever they are used, as in training."""
    norm: nn.Module | None = None
    """The batch norm that is folded in before that."""

    def values(self) -> Tensor:
        """As real numbers, rounded; call it where the model is undisturbed."""
        if self.fake is None:
            return plain(self.stored)
        weight = plain(self.stored)
        if self.norm is not None:
            weight = weight * norm_factor(self.norm, weight.ndim)
        with torch.no_grad():
            return plain(self.fake(weight))


def weight_of(step: Step) -> Weight | None:
    """Found once: unpacking may take long."""
    if not step.has_looked_for_weight:
        step.has_looked_for_weight = True
        step.found_weight = _in_module(step.module) if step.module is not None else _in_call(step)
    found: Weight | None = step.found_weight
    return found


def _in_call(step: Step) -> Weight | None:
    if step.weight is None or step.weight.ndim < 2:
        return None
    return Weight(step.weight, step.weight_quantization or quantization_of(step.weight))


def _in_module(module: nn.Module) -> Weight | None:
    weight = getattr(module, "weight", None)
    if callable(weight) and not isinstance(weight, Tensor):
        weight = weight()
    fake = next((f for n in ("weight_fake_quant", "weight_fake_quantizer") if (f := getattr(module, n, None))), None)
    if not isinstance(weight, Tensor):
        weight = _hidden(module)
    if not isinstance(weight, Tensor) or weight.ndim < 2:
        return None
    if is_fake_quantizer(fake):
        norm = getattr(module, "bn", None)
        has_norm = isinstance(norm, nn.Module) and getattr(norm, "running_var", None) is not None
        return Weight(weight, fake_quantization(fake), fake, norm if has_norm else None)
    return Weight(weight, quantization_of(weight) or _declared(module))


def norm_factor(norm: nn.Module, ndim: int, eps: float | None = None) -> Tensor:
    """What a batch norm multiplies the weights with when it is folded into them."""
    variance: Tensor = norm.running_var
    gamma = norm.weight if isinstance(getattr(norm, "weight", None), Tensor) else torch.ones_like(variance)
    factor = gamma.detach() / torch.sqrt(variance + getattr(norm, "eps", _EPS if eps is None else eps))
    return factor.reshape(-1, *[1] * (ndim - 1))


def _hidden(module: nn.Module) -> Any:
    """Weights that are packed away: those of recurrent layers, and of Neural Compressor's weight-only layers."""
    unpack = getattr(module, "recover", None)  # Neural Compressor's INCWeightOnlyLinear
    if callable(unpack):
        return unpack()
    packed = getattr(module, "get_weight", None)
    if callable(packed):
        found = packed()
        return next(iter(found.values()), None) if isinstance(found, dict) else None
    return getattr(module, "weight_ih_l0", None)


def _declared(module: nn.Module) -> Quantization | None:
    bits, group = getattr(module, "bits", None), getattr(module, "group_size", None)
    if not isinstance(bits, int) or not isinstance(group, int):
        return None
    is_unsigned = getattr(module, "dtype", "int") == "uint"
    low, high = (0, 2**bits - 1) if is_unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return Quantization(f"int{bits}", None, None, low, high, 0, group if group > 0 else 0)
