"""Configs of Neural Compressor 3.x as what a trial says about itself, with the names that 2.x has for the same."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any

import numpy as np

from inc_tb.sources.neural_compressor.trials import FLOATS

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


def fallback_of(quant_config: Any, model: Any) -> list[str]:
    """What it keeps out of int8 in a model that is to be quantized next, as Neural Compressor itself reads it."""
    excluded = [str(name) for part in _parts(quant_config) for name in getattr(part, "nodes_to_exclude", None) or ()]
    return list(dict.fromkeys([*excluded, *_kept(quant_config, model)]))


def _kept(quant_config: Any, model: Any) -> list[str]:
    mapping = getattr(quant_config, "config_mapping", None)
    if mapping is not None:  # onnx-neural-compressor has made it already
        return [str(op) for op, config in mapping.items() if _is_float(config)]
    asked = copy.copy(quant_config)
    asked._local_config = dict(getattr(quant_config, "_local_config", {}))  # it adds the heads of language models
    info = asked.get_model_info(model=model)
    if info is None:  # PT2E takes names as they are, and everything else into int8
        return _named(quant_config, _modules(model))
    mapping = asked.to_config_mapping(model_info=info)
    ops = info if isinstance(info, list) else [op for found in info.values() for op in found]
    return [name for name, kind in ops if (name, kind) not in mapping or _is_float(mapping[name, kind])]


def _named(quant_config: Any, modules: Mapping[str, str]) -> list[str]:
    """By types and, which counts more, by names."""
    local = quant_config.local_config
    types = {key.__name__ for key, config in local.items() if not isinstance(key, str) and _is_float(config)}
    names = {key: _is_float(config) for key, config in local.items() if isinstance(key, str)}
    return [name for name, kind in modules.items() if names.get(name, kind in types)]


def _modules(model: Any) -> dict[str, str]:
    """Their types, by name; the graph of an exported model has forgotten neither."""
    nodes = getattr(getattr(model, "graph", None), "nodes", ())
    stacked = [place for node in nodes for place in node.meta.get("nn_module_stack", {}).values()]
    if stacked:
        return {name: str(getattr(kind, "__name__", kind)).rpartition(".")[2] for name, kind in stacked}
    return {name: type(module).__name__ for name, module in model.named_modules()}


def settings_of(quant_config: Any, config_set: Any = None) -> dict[str, Any]:
    """Those for all ops; of several algorithms at once the first that has each.

    "" stands for what only other configs of the set have: HParams shows the columns of one trial.
    """
    tried = config_set if isinstance(config_set, Iterable) else [config_set or quant_config]
    columns = {name for config in tried for part in _parts(config) for name in _columns(part)}
    parts = list(_parts(quant_config))
    found: dict[str, Any] = {}
    for part in parts:
        found = {**_own(part), **found}
    algorithm = " + ".join(str(part.name) for part in parts)
    return {"algorithm": algorithm, **{name: found.get(name, "") for name in sorted(columns | found.keys())}}


def _parts(quant_config: Any) -> Iterator[Any]:
    yield from getattr(quant_config, "config_list", None) or [quant_config]


def _is_float(config: Any) -> bool:
    dtypes = {value for name, value in _own(config).items() if name in _DTYPES}
    return bool(dtypes) and dtypes <= set(FLOATS)


def _columns(config: Any) -> Iterator[str]:
    """Also those of which it has several values to try."""
    yield from _own(config)
    for param in getattr(config, "params_list", ()):
        name = str(getattr(param, "name", param))
        if isinstance(getattr(config, name, None), list | tuple | np.ndarray):
            yield _NAMES.get(name, name)


def _own(config: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in _attributes(config):
        if name.endswith("_scheme") and isinstance(value, bool):
            found[name] = "sym" if value else "asym"
        elif isinstance(value, Enum):
            found[name] = value.name.lower().removeprefix("q")  # ONNX Runtime's QInt8
        elif isinstance(value, bool | int | float | str):
            found[name] = value
    return found


def _attributes(config: Any) -> Iterator[tuple[str, Any]]:
    """By the names of 2.x; of onnx-neural-compressor also as a dictionary."""
    held = config if isinstance(config, Mapping) else getattr(config, "__dict__", {})
    for name, value in sorted(held.items()):
        if not name.startswith("_") and name != "params_list":
            yield _NAMES.get(name, name), value
