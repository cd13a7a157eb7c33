"""Configs of Neural Compressor 3.x as what a trial says about itself, with the names that 2.x has for the same."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

_NAMES = {
    "w_dtype": "weight_dtype", "weight_type": "weight_dtype", "w_sym": "weight_scheme", "weight_sym": "weight_scheme",
    "w_granularity": "weight_granularity", "w_algo": "weight_algorithm", "dtype": "weight_dtype",
    "use_sym": "weight_scheme", "bits": "weight_bits", "group_size": "weight_group_size",
    "act_dtype": "activation_dtype", "activation_type": "activation_dtype",
    "act_sym": "activation_scheme", "activation_sym": "activation_scheme",
    "act_granularity": "activation_granularity", "act_algo": "activation_algorithm",
    "act_algorithm": "activation_algorithm", "calibration_sampling_size": "calibration_samples",
}  # fmt: skip
_DTYPES = ("weight_dtype", "activation_dtype")
_FLOATS = ("fp32", "bf16", "fp16")


def fallback_of(quant_config: Any, modules: Mapping[str, str]) -> list[str]:
    """What it keeps out of int8; it may say so by types or patterns of names. `modules` has the types of PyTorch's."""
    kept: dict[str, None] = {}
    for config in _parts(quant_config):
        kept |= dict.fromkeys(map(str, getattr(config, "nodes_to_exclude", None) or ()))
        for key, local in config.local_config.items():
            dtypes = {value for name, value in _own(local).items() if name in _DTYPES}
            if dtypes and dtypes <= set(_FLOATS):
                kept |= dict.fromkeys(_meant(str(getattr(key, "__name__", key)), modules))
    return list(kept)


def _meant(key: str, modules: Mapping[str, str]) -> list[str]:
    if key in modules:
        return [key]
    found = [name for name, kind in modules.items() if name and (kind == key or re.match(key, name))]
    return found if found or "*" in key else [key]  # it excludes heads of language models by pattern, also without any


def settings_of(quant_config: Any) -> dict[str, Any]:
    """Those for all ops; of several algorithms at once the first that has each."""
    parts = list(_parts(quant_config))
    found: dict[str, Any] = {"algorithm": " + ".join(str(part.name) for part in parts)}
    for part in parts:
        found = {**_own(part), **found}
    return found


def _parts(quant_config: Any) -> Iterator[Any]:
    yield from getattr(quant_config, "config_list", None) or [quant_config]


def _own(config: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in sorted(vars(config).items()):
        if name.startswith("_") or name == "params_list":
            continue
        known = _NAMES.get(name, name)
        if known.endswith("_scheme") and isinstance(value, bool):
            found[known] = "sym" if value else "asym"
        elif isinstance(value, Enum):
            found[known] = value.name.lower().removeprefix("q")  # ONNX Runtime's QInt8
        elif isinstance(value, bool | int | float | str):
            found[known] = value
    return found
