"""A tuned model in a folder: its weights as plain tensors, and the rest as data; the structure is made anew."""

from __future__ import annotations

import contextlib
import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, fx, nn

from inc_tb.errors import MismatchError, ModelError, UsageError, first_line
from inc_tb.frameworks.carried import Carried, Found, blank_batch
from inc_tb.frameworks.torch import pretrained
from inc_tb.frameworks.torch.opening import opened
from inc_tb.frameworks.torch.plain import Taken, Value, Weights, numbers_of, outline, put_back, put_numbers
from inc_tb.frameworks.torch.quantizer import TorchQuantizer, is_quantized
from inc_tb.frameworks.torch.torchao import has_tensors

WEIGHTS = "weights.pt"
_NUMBERS = "scales and zero points of the graph"


class Own(msgspec.Struct):
    """What is told of a PyTorch model beside its weights."""

    model: str
    """The class of the fp32 model."""
    outline: str = ""
    """SHA-256 of what its graph computes."""
    values: dict[str, Value] = {}
    has_torchao: bool = False
    """Whether there are tensors of its kinds among the weights."""
    pretrained: pretrained.Origin | None = None
    by_transformers: bool = False
    """Whether transformers has stored the weights itself, and loads them."""


def store_tuned(carried: Carried, folder: Path) -> Mapping[str, Any]:
    module = opened(carried.model)
    given = opened(carried.reference)
    is_ours = carried.manifest.tool == TorchQuantizer.__name__
    if not is_ours and (isinstance(module, fx.GraphModule) or any(is_quantized(m) for m in module.modules())):
        raise UsageError(
            f"the model was made by {carried.manifest.tool}, a quantizer of yours; expected TorchQuantizer, or one "
            "that changes nothing but tensors, as torchao's quantize_ does. Store it yourself."
        )
    own = Own(
        type(given).__qualname__, _digest(module), has_torchao=has_tensors(module),
        pretrained=pretrained.origin_of(given),
    )  # fmt: skip
    if own.pretrained is not None:
        pretrained.store_beside(given, carried.tokenizer, folder)
    elif carried.tokenizer is not None:
        carried.tokenizer.save_pretrained(str(folder))
    if own.pretrained is not None and is_ours and pretrained.store(module, carried.manifest, folder):
        own.by_transformers = True
    else:
        taken = Taken(module)
        if isinstance(module, fx.GraphModule):
            taken.weights[_NUMBERS] = numbers_of(module.graph)
        own.values = taken.values
        torch.save(taken.weights, folder / WEIGHTS)
    told: dict[str, Any] = msgspec.to_builtins(own)
    return told


def open_tuned(found: Found) -> nn.Module:
    own = msgspec.convert(found.manifest.own, Own)
    if own.by_transformers and own.pretrained is not None:
        if found.model is not None:
            raise UsageError(f"a model was given to load {found.folder}, which transformers has stored; leave it out.")
        return pretrained.load(found.folder, own.pretrained)
    reference = _reference(found, own)
    with _wrong_model(found, own):
        module = _structure(reference, found)
        if _digest(module) != own.outline:
            raise MismatchError("its graph is another one, or this version of PyTorch makes another one of it")
        weights = _weights(found.folder / WEIGHTS, has_torchao=own.has_torchao)
        if isinstance(module, fx.GraphModule):
            put_numbers(module, weights.pop(_NUMBERS, torch.zeros(0, 2)))
        put_back(module, own.values, weights)
    return module


def _reference(found: Found, own: Own) -> nn.Module:
    given = found.model
    if given is None and own.pretrained is not None:
        return pretrained.blank(found.folder, own.pretrained)
    if given is None:
        raise UsageError(
            f"{found.folder} holds the weights of a {own.model}, whose code is yours; give the fp32 model or a "
            "function that makes it: load_model(folder, model=…)."
        )
    if not isinstance(given, nn.Module) and isinstance(given, Callable):  # type: ignore[arg-type]
        given = given()
    return opened(given)


def _structure(reference: nn.Module, found: Found) -> nn.Module:
    """A copy of the fp32 model, quantized as before but for the values."""
    manifest = found.manifest
    if manifest.tool != TorchQuantizer.__name__:
        return copy.deepcopy(reference).eval()
    tool = TorchQuantizer(**manifest.settings)
    prepared = tool.prepare(reference, found.folder)
    return tool.outline(prepared, blank_batch(manifest), manifest.settings, manifest.keep)


@contextlib.contextmanager
def _wrong_model(found: Found, own: Own) -> Iterator[None]:
    try:
        yield
    except MismatchError as error:
        raise MismatchError(
            f"the weights of {found.folder} do not fit the model: {error}. Give the fp32 model that was tuned, a "
            f"{own.model}."
        ) from error
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, MemoryError) as error:  # of bad values
        raise ModelError(
            f"{found.folder}: cannot be loaded into a {own.model}: {first_line(error)}. Save the model again."
        ) from error


def _weights(path: Path, *, has_torchao: bool) -> Weights:
    """Tensors by name, and no other object."""
    try:
        if has_torchao:
            import torchao.quantization  # noqa: F401  which says what its tensors are
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged in any way, or with objects that are none of the kinds allowed
        raise ModelError(f"{path}: cannot be read ({first_line(error)}). Save the model again.") from error
    if not isinstance(found, dict) or not all(isinstance(t, Tensor) for t in found.values()):
        raise ModelError(f"{path}: holds something else than tensors; expected what inc_tb.save has written.")
    return found


def _digest(module: nn.Module) -> str:
    lines = outline(module)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest() if lines else ""
