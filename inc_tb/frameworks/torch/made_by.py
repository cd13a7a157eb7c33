"""How PyTorch was told to quantize a model, as far as the model shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from inc_tb.frameworks.formats import Settings
from inc_tb.frameworks.torch import torchao
from inc_tb.frameworks.torch.opening import opened
from inc_tb.frameworks.torch.quantizer import is_quantized

_COLUMNS = ("act_dtype", "weight_dtype", "weight_granularity", "act_scheme")
_RANGES = "act_scale"


def read_settings(quantized: Any, table: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of TorchQuantizer."""
    module, seen = opened(quantized), Settings.seen_in(*(table[name] for name in _COLUMNS))
    return {"approach": _approach(module, seen), "per_channel": seen.per_channel}


def _approach(module: nn.Module, seen: Settings) -> str:
    if torchao.has_tensors(module):
        return "torchao" if seen.is_weight_only else "torchao-dynamic"
    homes = [type(each).__module__ for each in module.modules() if is_quantized(each)]
    if homes:
        return "dynamic" if all(".dynamic" in home for home in homes) else "static"
    return "pt2e-dynamic" if seen.dynamic else "pt2e"
