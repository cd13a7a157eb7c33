"""Data as the arguments of a model's forward, and what is said where they do not fit."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from inc_tb.errors import IncTbError, MismatchError, OutOfMemoryError
from inc_tb.frameworks.ops import Array, Batch, Input
from inc_tb.frameworks.registry import describe

_Made = TypeVar("_Made")
_REFUSED = "DefaultCPUAllocator: can't allocate memory"
"""Of a device torch has a class for this error, of the CPU only a text."""
ANY = "*"
"""How the names of inputs begin that are given by their position."""


def feeds(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """The arrays as a model takes them: real numbers in the type and on the device of its parameters."""
    own = next((p for p in model.parameters() if p.dtype.is_floating_point), None)
    found = {}
    for name, array in batch.items():
        tensor = _as_tensor(name, np.array(array))
        is_float = tensor.dtype.is_floating_point
        if own is not None:
            tensor = tensor.to(own.device, own.dtype if is_float else None)
        elif is_float:  # all weights are packed away
            tensor = tensor.to(torch.get_default_dtype())
        found[name] = tensor
    return found


def _as_tensor(name: str, array: Array) -> Tensor:
    try:
        return torch.from_numpy(array)
    except TypeError:
        raise MismatchError(
            f"the array {name} holds {array.dtype}, of which PyTorch makes no tensor; expected numbers. Convert it."
        ) from None


def check(batch: Batch, expected: Sequence[Input]) -> None:
    """That a batch has the arrays of the first one."""
    inputs = {i.name: i for i in expected}
    if set(batch) != set(inputs):
        raise MismatchError(
            f"the data has the arrays {sorted(batch)}, the model was traced with {sorted(inputs)}. "
            "Name the arrays as the arguments of the model's forward, the same in every batch."
        )
    for name, array in batch.items():
        axes = len(inputs[name].shape)
        if np.ndim(array) != axes:
            given = "x".join(map(str, np.shape(array))) or "a single number"
            raise MismatchError(
                f"the array {name} has shape {given}, the first batch had {axes} axes. Reshape the data; the first "
                "axis counts the samples."
            )


def call(model: nn.Module, inputs: Mapping[str, Tensor]) -> Any:
    """By name where the model has names for what it takes; a single input may have any name."""
    positional, named = arranged(model, inputs)
    return model(*positional, **named)


def arranged(model: nn.Module, inputs: Mapping[str, Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
    """What is given by position, and what by name."""
    parameters = inspect.signature(model.forward).parameters.values()
    if all(name.startswith(ANY) for name in inputs):
        return list(inputs.values()), {}
    by_name = _exported_names(model)
    first = [
        p.name
        for p in parameters
        if p.name in inputs and (p.kind is p.POSITIONAL_ONLY or (by_name is not None and p.name not in by_name))
    ]
    names = input_names(model)
    if names is None or set(inputs) <= set(names):
        return [inputs[name] for name in first], {n: value for n, value in inputs.items() if n not in first}
    if len(inputs) == 1 or any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return list(inputs.values()), {}
    raise MismatchError(
        f"the data has the arrays {sorted(inputs)}, the model takes {names}. Name the arrays as the arguments of its "
        "forward."
    )


def _exported_names(model: nn.Module) -> set[str] | None:
    """An exported model takes each argument in the way in which it was exported: these by name."""
    spec = getattr(model, "_in_spec", None)
    if spec is None:
        return None
    return set((spec.child(1) if hasattr(spec, "child") else spec.children_specs[1]).context)  # from torch 2.9 on


def input_names(model: nn.Module) -> list[str] | None:
    """None where the model takes any."""
    parameters = list(inspect.signature(model.forward).parameters.values())
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL]


def required_names(model: nn.Module) -> list[str]:
    """What must be given; the first of what can be, where all have defaults."""
    every = inspect.signature(model.forward).parameters.values()
    parameters = [p for p in every if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    required = [p.name for p in parameters if p.default is p.empty]
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in every)
    return required or [p.name for p in parameters[:1]] or ([ANY] if takes_any else ["input"])


def said(what: str, model: nn.Module, batch: Batch, work: Callable[[], _Made]) -> _Made:
    """What the user's own code raises, as one line that says in which model and on which data."""
    try:
        return work()
    except (IncTbError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, torch.OutOfMemoryError) or _REFUSED in str(error):
            raise OutOfMemoryError(f"{what} ({describe(model)}) could not get the memory that it needs") from error
        raise _failed(what, model, batch, error) from error


def _failed(what: str, model: nn.Module, batch: Batch, error: Exception) -> MismatchError:
    shapes = {name: f"{array.dtype} {'x'.join(map(str, array.shape))}" for name, array in batch.items()}
    first = str(error).strip().splitlines() or [""]
    return MismatchError(
        f"{what} ({describe(model)}) fails on the data {shapes}: {type(error).__name__}: {first[0].rstrip('.')}. "
        "Check that the arrays are named, shaped and typed as its forward takes them."
    )
