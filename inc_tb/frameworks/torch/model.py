"""One PyTorch model: what it gives, what it weighs, how it is stored."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from inc_tb.errors import IncTbError, ModelError
from inc_tb.frameworks.ops import Array, Batch
from inc_tb.frameworks.registry import describe
from inc_tb.frameworks.torch.arguments import call, feeds
from inc_tb.frameworks.torch.graph_rounding import attribute
from inc_tb.frameworks.torch.graph_runner import GraphRunner
from inc_tb.frameworks.torch.opening import opened
from inc_tb.frameworks.torch.state import undisturbed
from inc_tb.frameworks.torch.values import outputs_of, to_numpy
from inc_tb.records import GraphNode


def open_results(model: Any) -> Callable[[Batch], list[Array]]:
    module = opened(model)

    def run(batch: Batch) -> list[Array]:
        try:
            with undisturbed(module), torch.no_grad():
                return [to_numpy(tensor) for tensor in outputs_of(call(module, feeds(module, batch)))]
        except IncTbError:
            raise
        except Exception as error:  # the user's own code may raise anything
            first = (str(error).strip().splitlines() or [""])[0]
            raise ModelError(f"{describe(model)} does not run: {type(error).__name__}: {first}") from error

    return run


def digest_model(model: Any) -> str:
    """Of the parameters and buffers, and of the structure."""
    module = opened(model)
    found = hashlib.sha256(str(module).encode())
    if isinstance(module, fx.GraphModule):
        found.update(module.code.encode())
    for name, value in module.state_dict().items():
        found.update(name.encode())
        for part in _parts(value):
            found.update(part)
    return found.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, Tensor):
        yield to_numpy(value).tobytes()
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _parts(item)
    elif not callable(value) and not type(value).__module__.startswith("torch"):
        yield repr(value).encode()


def measure_size(model: Any) -> float:
    """Kilobytes of its parameters and buffers, tied ones once."""
    module = opened(model)
    seen: dict[int, int] = {}
    for value in _stored(module):
        for tensor in _tensors(value):
            seen[tensor.data_ptr() if type(tensor) in (Tensor, nn.Parameter) else id(tensor)] = _bytes(tensor)
    return sum(seen.values()) / 1000


def _stored(module: nn.Module) -> Iterator[Any]:
    """What a model needs to run; a graph module may keep the weights that it had before, too."""
    if not isinstance(module, fx.GraphModule):
        yield from module.state_dict().values()
        return
    for node in module.graph.nodes:
        if node.op in ("get_attr", "call_module"):
            found = attribute(module, str(node.target))
            if isinstance(found, nn.Module):
                yield from found.state_dict().values()
            else:
                yield found


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)


def _bytes(tensor: Tensor) -> int:
    inner = [v for v in vars(tensor).values() if isinstance(v, Tensor)] if hasattr(tensor, "__dict__") else []
    if inner and type(tensor) not in (Tensor, nn.Parameter):  # torchao's tensors are made of others
        return sum(_bytes(t) for t in inner)
    return int(tensor.numel() * tensor.element_size())


def save_model(model: Any, target: Path) -> None:
    """As a state_dict, which loads into the same model quantized the same way; whole models are pickles of code."""
    torch.save(opened(model).state_dict(), target)


def read_graph(model: Any) -> list[GraphNode]:
    """From its own graph; another model shows its ops only when it runs."""
    module = opened(model)
    if not isinstance(module, fx.GraphModule):
        raise ModelError(
            f"{describe(model)} has no graph to be read without data; log a diagnosis, which brings the graph, or give "
            "torch.export.export(model, inputs)."
        )
    return GraphRunner(module).graph()
