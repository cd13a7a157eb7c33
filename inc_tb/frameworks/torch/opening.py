"""A model as it is given: without what is around it, and only if it can be run."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from inc_tb.errors import ModelError
from inc_tb.frameworks.registry import describe
from inc_tb.frameworks.torch.kinds import SPREAD


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
    _refuse_parts(model, found)
    return found


def _refuse_parts(model: Any, opened: nn.Module) -> None:
    """Parameters that are spread are whole when FSDP's own hooks run; what other ways compute are parts of results."""
    kinds = {kind.__name__ for module in opened.modules() for kind in type(module).__mro__}
    by_fsdp = {
        id(parameter)
        for module in opened.modules()
        if any(kind.__name__ == SPREAD for kind in type(module).__mro__)
        for parameter in module.parameters()
    }
    spread = [p for p in opened.parameters() if hasattr(p, "placements")]
    how = "tensor parallelism" if any(id(p) not in by_fsdp or p.device_mesh.ndim > 1 for p in spread) else ""
    how = "FullyShardedDataParallel" if "FullyShardedDataParallel" in kinds else how
    if how:
        raise ModelError(
            f"{describe(model)} is spread over several processes by {how}, in which no op has its whole result; "
            "expected a whole model, or one spread by fully_shard, with distributed=True. Load its checkpoint."
        )


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
