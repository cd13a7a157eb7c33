"""Models and batches of Neural Compressor, as the adapters take them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from inc_tb.data import is_one_batch, open_data, take
from inc_tb.errors import DataError, UsageError
from inc_tb.frameworks.arrays import as_array
from inc_tb.frameworks.models import read_inputs
from inc_tb.frameworks.ops import Batch, Input
from inc_tb.frameworks.registry import framework_of
from inc_tb.integrations.samples import as_inputs, collated


def unwrapped(model: Any) -> Any:
    """What one of Neural Compressor's models holds; anything else as it is."""
    if type(model).__module__.partition(".")[0] != "neural_compressor":
        return model
    return model.graph_def if hasattr(type(model), "graph_def") else model.model


def name_of(model: Any) -> str:
    """What the user calls it."""
    path = model if isinstance(model, str | PathLike) else getattr(model, "model_path", None)
    return Path(path).name if isinstance(path, str | PathLike) else type(unwrapped(model)).__name__


def first_samples(model: Any, source: Any, samples: int) -> list[Batch]:
    """Of a calibration dataloader, of batches, of one batch, or of what a path holds, without labels."""
    model = unwrapped(model)
    inputs = read_inputs(model)
    if source is None:
        raise DataError("there is no calibration data; expected some with log(data=…).")
    if isinstance(source, str | PathLike):
        return take(open_data(source, inputs, samples), samples, inputs)
    if is_one_batch(source):
        source = [source]
    elif any(kind.__module__.startswith("torch.utils.data") for kind in type(source).__mro__):
        source = [collated(source, samples)]  # its generator would shuffle another way afterwards
    elif isinstance(source, Iterator):
        raise UsageError(
            f"the calibration data is a {type(source).__name__}, which can be gone through only once, and the tuning "
            "needs it; expected an object with an __iter__ that begins anew. Give samples with log(data=…)."
        )
    return take(_fed(source, model, inputs), samples, inputs)


def _fed(batches: Iterable[Any], model: Any, inputs: Sequence[Input]) -> Iterator[Any]:
    forward = model.forward if framework_of(model).name == "torch" else None
    for batch in batches:
        # As Neural Compressor takes them: (input, label), or the input alone.
        given = batch[0] if isinstance(batch, tuple | list) and len(batch) == 2 else batch
        if isinstance(given, Mapping):
            plain = {str(name).removesuffix(":0"): array for name, array in given.items()}  # tensors of TensorFlow
            wanted = {i.name: as_array(plain[i.name]) for i in inputs if i.name in plain}
            yield as_inputs(given, forward) if forward is not None else wanted
        elif forward is not None:
            yield named(given if isinstance(given, tuple | list) else (given,), {}, forward)
        else:
            yield given


def named(arguments: Sequence[Any], keywords: Mapping[str, Any], forward: Any) -> Any:
    """The arrays that a PyTorch model was called with, by the names of its parameters."""
    parameters = inspect.signature(forward).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(arguments) > len(names):  # it takes any number
        return tuple(as_array(value) for value in arguments)
    given = {**dict(zip(names, arguments, strict=False)), **keywords}
    return {name: as_array(value) for name, value in given.items() if hasattr(value, "ndim")}
