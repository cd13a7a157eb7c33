"""What a PyTorch model is called with, where calibration and evaluation are the user's functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from inc_tb.frameworks.ops import Batch
from inc_tb.integrations.neural_compressor.models import named
from inc_tb.integrations.neural_compressor.trial_log import TrialLog, spared


@contextmanager
def listening(logs: Sequence[TrialLog], model: Any, heard: list[Batch]) -> Iterator[None]:
    """Add to `heard` as many samples as any log wants; the other frameworks' models cannot be heard."""
    wanted = max((log.samples for log in logs if log.diagnose and log.data is None), default=0)
    handle: Any = None
    if wanted and hasattr(model, "register_forward_pre_hook"):
        with spared(logs, "the model's data was not heard"):
            handle = model.register_forward_pre_hook(_listener(heard, wanted), with_kwargs=True)
    try:
        yield
    finally:
        if handle is not None:
            handle.remove()


def _listener(heard: list[Batch], wanted: int) -> Callable[..., None]:
    import torch

    def hear(module: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        if torch.compiler.is_compiling():  # this would be compiled as well
            return
        if sum(map(_size, heard)) < wanted:
            with suppress(Exception):  # a diagnosis without data says so
                batch = named(arguments, keywords, module.forward)
                heard.append({name: np.array(array) for name, array in batch.items()})

    return hear


def _size(batch: Batch) -> int:
    return next((len(array) for array in batch.values() if array.ndim), 1)
