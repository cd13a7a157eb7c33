"""A model as it is at rest: run without changing anything about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_SMALL_BYTES = 1 << 20


@contextmanager
def undisturbed(*models: nn.Module) -> Iterator[None]:
    """In evaluation mode, without observers, with every random number, buffer and flag as before at the end."""
    modules = list({id(m): m for model in models for m in model.modules()}.values())
    training = [(m, m.training) for m in modules]
    buffers = _small_buffers(modules)
    observing = [m for m in modules if _is_observing(m)]
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        if any(getattr(m, "_compiled_call_impl", None) is not None for m in modules):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        try:
            for m in modules:
                m.training = False
            for m in observing:
                m.observer_enabled[0] = 0
            yield
        finally:
            for m, was in training:
                m.training = was
            with torch.no_grad():
                for buffer, before, version in buffers:
                    if buffer._version != version:
                        buffer.copy_(before)


def _is_observing(module: nn.Module) -> bool:
    flag = getattr(module, "observer_enabled", None)
    return isinstance(flag, Tensor) and flag.numel() == 1 and int(flag) == 1


def _small_buffers(modules: list[nn.Module]) -> list[tuple[Tensor, Tensor, int]]:
    """What a module may count or average while it runs; large buffers are weights."""
    small = (
        buffer
        for module in modules
        for buffer in module.buffers(recurse=False)
        if _can_copy(buffer) and buffer.numel() * buffer.element_size() <= _SMALL_BYTES
    )
    return [(buffer, buffer.detach().clone(), buffer._version) for buffer in small]


def _can_copy(tensor: Any) -> bool:
    return type(tensor) in (Tensor, nn.Parameter) and not tensor.is_quantized and not tensor.is_inference()


def unwrapped(model: Any) -> Any:
    """Without what distributed training, torch.compile and torch.export put around it."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif isinstance(model, torch.export.ExportedProgram):
            model = model.module()
        else:
            return model
