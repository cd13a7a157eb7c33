"""A model as it is given: without what is around it, and only if it can be run."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from inc_tb.errors import ModelError
from inc_tb.frameworks.registry import describe


def opened(model: Any) -> nn.Module:
    found = unwrapped(model)
    if isinstance(found, torch.jit.ScriptModule):
        raise ModelError(
            f"{describe(model)} is TorchScript, which hides its ops; expected the nn.Module it was made of."
        )
    if not isinstance(found, nn.Module):
        raise ModelError(f"{describe(model)} was given; expected a torch.nn.Module or an ExportedProgram.")
    for name, value in [*found.named_parameters(), *found.named_buffers()]:
        if is_lazy(value):
            raise ModelError(f"{describe(model)} has no weights yet ({name} is lazy); run it once on some data first.")
        if value.is_meta:
            raise ModelError(f"{describe(model)} has no values ({name} is on the meta device); load its weights first.")
    return found


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
