"""A model as it is at rest: run without changing anything about it."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

_SMALL_BYTES = 32 << 20


class _Buffer(NamedTuple):
    place: dict[str, Any]
    name: str
    buffer: Any
    copy: Tensor | None
    """None for what is too large to be anything but weights."""


@contextmanager
def undisturbed(*models: nn.Module) -> Iterator[None]:
    """In evaluation mode, without observers, with every random number, buffer and flag as before at the end."""
    modules = list({id(m): m for model in models for m in model.modules()}.values())
    training = [(m, m.training) for m in modules]
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())
        if "torch._dynamo" in sys.modules:  # something may be compiled, which has no calls to be seen
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        buffers = [found for m in modules for found in _buffers(m)]
        try:
            for m in modules:
                m.training = False
                if _is_observing(m):
                    m.observer_enabled[0] = 0
            yield
        finally:
            for m, was in training:
                m.training = was
            with torch.no_grad():
                for found in buffers:
                    _restore(found)


def _is_observing(module: nn.Module) -> bool:
    flag = getattr(module, "observer_enabled", None)
    return isinstance(flag, Tensor) and flag.numel() == 1 and int(flag) == 1


def _buffers(module: nn.Module) -> Iterator[_Buffer]:
    """What a module may count or average while it runs."""
    for name, buffer in module._buffers.items():
        is_plain = type(buffer) is Tensor and not buffer.is_quantized and not buffer.is_meta
        is_small = is_plain and buffer.numel() * buffer.element_size() <= _SMALL_BYTES
        yield _Buffer(module._buffers, name, buffer, buffer.detach().clone() if is_small else None)


def _restore(found: _Buffer) -> None:
    now = found.place.get(found.name)
    if not isinstance(now, Tensor) or now.dtype != found.buffer.dtype:
        return  # unpacked for good when it was first used
    found.place[found.name] = found.buffer
    if found.copy is None or torch.equal(found.buffer, found.copy):
        return
    if found.buffer.shape != found.copy.shape:
        found.buffer.resize_(found.copy.shape)
    found.buffer.copy_(found.copy)
