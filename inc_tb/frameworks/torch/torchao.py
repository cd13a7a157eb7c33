"""torchao's `quantize_`: integer weights of linear layers, and with it dynamic activations, by tensors of its own."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

CONFIGS = {"torchao": "Int8WeightOnlyConfig", "torchao-dynamic": "Int8DynamicActivationInt8WeightConfig"}
"""Approach -> what torchao calls it."""


def config_of(settings: Mapping[str, Any]) -> Any:
    """None for another approach."""
    if settings.get("approach") not in CONFIGS:
        return None
    from torchao import quantization

    return getattr(quantization, CONFIGS[settings["approach"]])()


def quantized(model: nn.Module, settings: Mapping[str, Any], kept: Sequence[str]) -> nn.Module:
    from torchao.quantization import quantize_

    made = copy.deepcopy(model)
    quantize_(made, config_of(settings), filter_fn=lambda m, name: isinstance(m, nn.Linear) and name not in kept)
    return made


def has_tensors(module: nn.Module) -> bool:
    return any(type(p).__module__.startswith("torchao.") for p in module.parameters())
