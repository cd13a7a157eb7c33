"""A model in quantization-aware training, as it would be without quantization."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from inc_tb.errors import ModelError
from inc_tb.frameworks.registry import describe
from inc_tb.frameworks.torch.grids import is_fake_quantizer


def without_fake_quantization(model: nn.Module) -> nn.Module:
    """The same model with its fake quantizers switched off. Parameters are shared, so it stays up to date."""
    own: dict[int, Any] = {id(p): p for p in model.parameters()}
    fakes = [m for m in model.modules() if is_fake_quantizer(m)]
    inside = {id(b) for fake in fakes for b in fake.buffers()}
    own.update({id(b): b for b in model.buffers() if id(b) not in inside})
    made = copy.deepcopy(model, own)
    switched = [m for m in made.modules() if is_fake_quantizer(m)]
    if not switched:
        raise ModelError(
            f"{describe(model)} has no fake quantizers, so it is not in quantization-aware training; give the fp32 "
            "model as the reference."
        )
    for fake in switched:
        for flag in ("fake_quant_enabled", "observer_enabled"):
            if isinstance(getattr(fake, flag, None), torch.Tensor):
                getattr(fake, flag).zero_()
        if isinstance(getattr(fake, "enabled", None), bool):  # torchao's
            fake.enabled = False
    return made
