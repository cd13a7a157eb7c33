"""Keras models of the torch backend as PyTorch modules whose ops are Keras' layers.

Keras keeps its layers in lists and its weights in one dictionary a layer, so that PyTorch sees neither names nor
weights. While a model is compared, each layer shows them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class _Model(nn.Module):  # type: ignore[misc]
    """Takes arrays by name, and gives them to Keras in the form that its model wants."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._modules.update(_children(model))
        self._call = [model]  # in a list, so that it does not become a module

    def forward(self, **arrays: Tensor) -> Any:
        model = self._call[0]
        if any(name != f"input_{i}" for i, name in enumerate(arrays)):
            return model(arrays)
        return model(list(arrays.values()) if len(arrays) > 1 else arrays["input_0"])


@contextmanager
def as_modules(model: Any) -> Iterator[nn.Module]:
    """The model as a module; its layers have their sublayers as modules, and their weights, as long as this lasts."""
    layers = model._flatten_layers(include_self=False)
    before = [(layer.__dict__, layer.__dict__["_modules"]) for layer in layers]
    shown = [{**layer._modules, "_modules": _children(layer), "weight": _weight(layer)} for layer in layers]
    try:
        for (place, _), attributes in zip(before, shown, strict=True):
            place.update(attributes)
        yield _Model(model)
    finally:
        for (place, modules), attributes in zip(before, shown, strict=True):
            for name in attributes:
                place.pop(name)
            place["_modules"] = modules


def _children(layer: Any) -> dict[str, Any]:
    return {child.name: child for child in layer._flatten_layers(include_self=False, recursive=False)}


def _weight(layer: Any) -> Tensor | None:
    """Channels first, except for an embedding, whose rows are words; quantized as PyTorch writes that."""
    for name in ("kernel", "embeddings"):
        value = _value(layer, f"_{name}") if hasattr(layer, f"_{name}") else _value(layer, name)
        if value is not None and value.ndim > 1:
            weight = value if name == "embeddings" else value.movedim(-1, 0)
            return weight if weight.dtype.is_floating_point else _quantized(weight, layer, name)
    return None


def _value(layer: Any, name: str) -> Tensor | None:
    found = getattr(getattr(layer, name, None), "value", None)
    return found.detach() if isinstance(found, Tensor) else None


def _quantized(weight: Tensor, layer: Any, name: str) -> Tensor | None:
    """None for what has several numbers in a byte, or a scale that is not one for each row."""
    scale = _value(layer, f"{name}_scale")
    if layer.quantization_mode != "int8" or scale is None or scale.numel() != len(weight):
        return None
    steps, zeros = 1 / scale.double().reshape(-1), torch.zeros(len(weight), dtype=torch.long)
    return torch._make_per_channel_quantized_tensor(weight.contiguous().cpu(), steps.cpu(), zeros, 0)
