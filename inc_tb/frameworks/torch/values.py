"""Tensors as arrays, whatever their type, and in whatever a model puts them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from inc_tb.frameworks.ops import Array


def plain(tensor: Tensor) -> Tensor:
    """A float32 (or float64) tensor on the CPU with the same values, without history; the same memory if it can be."""
    found = tensor.detach()
    if hasattr(found, "full_tensor"):  # of several processes, each of which has a part: all of them ask for it
        found = found.full_tensor()
    if found.is_quantized or (type(found) not in (Tensor, nn.Parameter) and hasattr(found, "dequantize")):
        found = found.dequantize()
    if found.is_sparse or found.layout != torch.strided:
        found = found.to_dense()
    if found.dtype not in (torch.float32, torch.float64):
        found = found.to(torch.float32)
    return found.cpu().resolve_conj().resolve_neg()


def to_numpy(tensor: Tensor) -> Array:
    """Real numbers as float32 or float64, quantized ones as what they stand for; whole numbers as they are."""
    if is_real(tensor) or type(tensor) not in (Tensor, nn.Parameter):
        return np.asarray(plain(tensor).numpy())
    return np.asarray(tensor.detach().cpu().resolve_conj().resolve_neg().numpy())


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Depth first, in lists, tuples, mappings and the outputs of transformers, which are mappings too."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from tensors_in(getattr(value, name))


def is_real(tensor: Tensor) -> bool:
    """Whether it holds real numbers, perhaps quantized."""
    return bool(tensor.is_quantized or tensor.dtype.is_floating_point)


def main_tensor(value: Any) -> Tensor | None:
    """What a module or function computes: its first tensor of real numbers."""
    return next((t for t in tensors_in(value) if is_real(t)), None)


def real_tensors(value: Any) -> list[Tensor]:
    return [tensor for tensor in tensors_in(value) if is_real(tensor)]


def with_tensors(value: Any, tensors: Iterable[Tensor]) -> Any:
    """The same value with other real tensors, in their order."""
    return _rebuilt(value, iter(tensors))


def _rebuilt(value: Any, tensors: Iterator[Tensor]) -> Any:
    if isinstance(value, Tensor):
        return next(tensors) if is_real(value) else value
    if isinstance(value, dict):
        made = copy.copy(value)
        for key, item in value.items():
            made[key] = _rebuilt(item, tensors)
        return made
    if isinstance(value, list | tuple):
        items = [_rebuilt(item, tensors) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if hasattr(value, "__dataclass_fields__"):
        made = copy.copy(value)
        for name in value.__dataclass_fields__:
            object.__setattr__(made, name, _rebuilt(getattr(value, name), tensors))
        return made
    return value


def with_main(value: Any, tensor: Tensor) -> Any:
    """The same value with another main tensor."""
    return with_tensors(value, [tensor, *real_tensors(value)[1:]])


def outputs_of(value: Any) -> list[Tensor]:
    """What a model is asked for: its logits where it names them, not its caches and losses."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        if isinstance(value.get("logits"), Tensor):
            return [value["logits"]]
        named = [v for v in value.values() if isinstance(v, Tensor) and is_real(v) and v.ndim]
        return named[:1]
    if isinstance(value, tuple | list):
        return [v for v in value if isinstance(v, Tensor) and is_real(v)] or [
            t for item in value[:1] for t in outputs_of(item)
        ]
    return []


def like(value: Tensor, wanted: Tensor) -> Tensor:
    """`value` in the form that `wanted` has: quantized to its grid, or of its type."""
    plain_value = plain(value)
    if wanted.is_quantized:
        if wanted.qscheme() in (torch.per_channel_affine, torch.per_channel_symmetric):
            axis = wanted.q_per_channel_axis()
            scales, zeros = wanted.q_per_channel_scales(), wanted.q_per_channel_zero_points()
            return torch.quantize_per_channel(plain_value, scales, zeros, axis, wanted.dtype)
        return torch.quantize_per_tensor(plain_value, wanted.q_scale(), wanted.q_zero_point(), wanted.dtype)
    return plain_value.to(wanted.dtype).to(wanted.device)
