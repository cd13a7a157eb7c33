"""Changes of weights that leave what a model computes as it is, and make it easier to quantize.

An outlier channel is scaled down in the layer that makes it, and up in every layer that reads it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from inc_tb.errors import ModelError
from inc_tb.frameworks.ops import Array, Batch
from inc_tb.frameworks.registry import describe
from inc_tb.frameworks.scaling import (
    Link,
    Read,
    Values,
    Weights,
    digest_of,
    holding,
    in_turn,
    is_same,
    is_spread,
    offered,
)
from inc_tb.frameworks.torch.arguments import call, feeds
from inc_tb.frameworks.torch.opening import opened
from inc_tb.frameworks.torch.runners import open_runner
from inc_tb.frameworks.torch.state import undisturbed
from inc_tb.frameworks.torch.steps import Step, Trace
from inc_tb.frameworks.torch.values import outputs_of, plain, to_numpy
from inc_tb.records import Rewrite, listed

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.RMSNorm)
_READERS = (nn.Linear, *_CONVOLUTIONS)
_HOMOGENEOUS = {
    "ReLU", "relu", "LeakyReLU", "leaky_relu", "MaxPool1d", "MaxPool2d", "MaxPool3d", "max_pool1d", "max_pool2d",
    "AvgPool1d", "AvgPool2d", "avg_pool1d", "avg_pool2d", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d",
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "AdaptiveMaxPool2d", "adaptive_max_pool2d", "mean", "pad",
    "matmul", "scaled_dot_product_attention",
}  # fmt: skip
"""A channel that is scaled before is scaled by as much behind, whatever the data; of products, those that mix no
channels, which the comparison of the results tells."""


def find_rewrites(model: Any, batches: Iterable[Batch]) -> list[Rewrite]:
    """What could be scaled, the most promising first."""
    module = opened(model)
    given = list(batches)
    if not given:
        return []
    with undisturbed(module), torch.no_grad():
        links = list(_links(module, open_runner(module).trace(feeds(module, given[0]))))
        seen = _Seen(module, {reader for link in links for reader in link.readers})
        with seen:
            for batch in given:
                call(module, feeds(module, batch))
        modules = dict(copy.deepcopy(module).named_modules())
        rewrites = in_turn(links, partial(_offered, modules, seen), partial(_apply, modules))
    digested = dict(module.named_modules())
    rewrites = [msgspec.structs.replace(rewrite, digest=_digest(digested, rewrite.ops)) for rewrite in rewrites]
    own = _results(module, given[0])
    return holding(rewrites, lambda tried: is_same(own, _results(apply_rewrites(module, tried), given[0])))


def apply_rewrites(model: Any, rewrites: Sequence[Rewrite]) -> nn.Module:
    """A copy with these changes; the names of its modules stay."""
    module = copy.deepcopy(opened(model))
    modules = dict(module.named_modules())
    for rewrite in rewrites:
        _check(modules, rewrite, describe(model))
    with torch.no_grad():
        for rewrite in rewrites:
            _apply(modules, rewrite)
    return module


def _check(modules: dict[str, nn.Module], rewrite: Rewrite, name: str) -> None:
    layers = [modules.get(op) for op in rewrite.ops]
    channels = len(rewrite.values)
    fits = len(layers) > 1 and layers[0] is not None and _channels(layers[0]) == channels
    fits = fits and all(isinstance(layer, _READERS) and _takes(layer, channels) for layer in layers[1:])
    fits = fits and rewrite.kind in ("equalize", "smooth") and min(rewrite.values) > 0
    if not fits or (rewrite.digest and rewrite.digest != _digest(modules, rewrite.ops)):
        with_these = " with the same weights" if fits else ""
        raise ModelError(
            f"{name}: has no {listed(rewrite.ops)} of {channels} channels{with_these} to change so ({rewrite.kind}); "
            "expected the model that the change was found for. Give that one."
        )


def _digest(modules: dict[str, nn.Module], ops: Sequence[str]) -> str:
    return digest_of(to_numpy(tensor) for op in ops for tensor in modules[op].state_dict().values())


def _apply(modules: dict[str, nn.Module], rewrite: Rewrite) -> None:
    factors = torch.tensor(rewrite.values, dtype=torch.float64)
    producer, *readers = (modules[op] for op in rewrite.ops)
    for tensor, axis in _made_by(producer):
        tensor.div_(_shaped(factors, tensor, axis))
    for reader in readers:
        _scale_read(reader, factors)


def _links(module: nn.Module, trace: Trace) -> Iterator[Link]:
    """Layers whose results go to layers alone, through nothing that tells a scaled channel from another."""
    steps = trace.steps
    behind: dict[int, list[Step]] = {step.index: [] for step in steps}
    for step in steps:
        for source in step.sources:
            behind[source].append(step)
    owned = _owned_once(module, steps)

    def ends(index: int) -> list[str] | None:
        """The layers that read it, or None where something else does."""
        if index in trace.outputs or not behind[index]:
            return None
        found: list[str] = []
        for step in behind[index]:
            if step.path in owned and not step.is_function and isinstance(step.module, _READERS):
                found.append(step.path)
            elif step.kind in _HOMOGENEOUS and (more := ends(step.index)) is not None:
                found += more
            else:
                return None
        return found

    for step in steps:
        if step.path not in owned or step.is_function or step.module is None:
            continue
        channels = _channels(step.module)
        readers = ends(step.index) if channels > 1 else None
        modules = dict(module.named_modules())
        if readers and all(_takes(modules[reader], channels) for reader in readers):
            is_norm = isinstance(step.module, nn.LayerNorm | nn.RMSNorm)
            yield Link(step.path, tuple(dict.fromkeys(readers)), is_norm)


def _owned_once(module: nn.Module, steps: Sequence[Step]) -> set[str]:
    """Modules that are called once, with parameters that are no other's."""
    calls: dict[str, int] = {}
    for step in steps:
        if step.module is not None:
            calls[step.path] = calls.get(step.path, 0) + 1
    owners: dict[int, int] = {}
    for owner in module.modules():
        for parameter in owner.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    found = dict(module.named_modules())
    return {
        path for path, count in calls.items()
        if count == 1 and path in found and all(owners[id(p)] == 1 for p in found[path].parameters(recurse=False))
    }  # fmt: skip


def _channels(layer: nn.Module) -> int:
    """That a layer makes and that can be scaled in it; 0 for any other."""
    if isinstance(layer, nn.Linear):
        return int(layer.out_features)
    if isinstance(layer, _CONVOLUTIONS) or (isinstance(layer, _TRANSPOSED) and layer.groups == 1):
        return int(layer.out_channels)
    weight = getattr(layer, "weight", None) if isinstance(layer, _NORMS) else None
    return len(weight) if isinstance(weight, Tensor) and weight.ndim == 1 else 0


def _takes(layer: nn.Module | None, channels: int) -> bool:
    if isinstance(layer, nn.Linear):
        return is_spread(channels, layer.in_features)
    return isinstance(layer, _CONVOLUTIONS) and layer.in_channels == channels


def _made_by(layer: nn.Module | None) -> Iterator[tuple[Tensor, int]]:
    """Its parameters that scale with what it makes, and along which axis."""
    weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
    if isinstance(weight, Tensor):
        yield weight, 1 if isinstance(layer, _TRANSPOSED) else 0
    if isinstance(bias, Tensor):
        yield bias, 0


def _scale_read(layer: nn.Module | None, factors: Tensor) -> None:
    if isinstance(layer, nn.Linear):
        each = layer.in_features // len(factors)  # of a flattened image every channel has many features
        layer.weight.mul_(factors.repeat_interleave(each).to(layer.weight.dtype))
    elif isinstance(layer, _CONVOLUTIONS):
        own = factors.reshape(layer.groups, -1)  # what each group reads
        each = own.repeat_interleave(layer.out_channels // layer.groups, 0).to(layer.weight.dtype)
        layer.weight.mul_(each.reshape(*each.shape, *(1,) * (layer.weight.ndim - 2)))


def _shaped(factors: Tensor, like: Tensor, axis: int) -> Tensor:
    return factors.to(like.dtype).reshape([-1 if i == axis else 1 for i in range(like.ndim)])


class _Seen(ExitStack):
    """The sizes of what layers read while it is open, by feature."""

    def __init__(self, module: nn.Module, paths: set[str]) -> None:
        super().__init__()
        self._low: dict[str, Tensor] = {}
        self._high: dict[str, Tensor] = {}
        self._squares: dict[str, list[Tensor]] = {}
        modules = dict(module.named_modules())
        for path in sorted(paths):
            self.callback(modules[path].register_forward_pre_hook(partial(self._note, path)).remove)

    def _note(self, path: str, layer: nn.Module, args: tuple[Any, ...]) -> None:
        read = plain(args[0])
        others = [i for i in range(read.ndim) if i != (read.ndim - 1 if isinstance(layer, nn.Linear) else 1)]
        low, high = read.amin(others), read.amax(others)
        self._low[path] = torch.minimum(low, self._low.get(path, low))
        self._high[path] = torch.maximum(high, self._high.get(path, high))
        self._squares.setdefault(path, []).append(read.double().square().mean(others))

    def values(self, path: str, channels: int) -> Values | None:
        """None of a layer that was not run."""
        if path not in self._low:
            return None
        squares = torch.stack(self._squares[path]).mean(0)
        low, high, energy = (_rows(t, channels) for t in (self._low[path], self._high[path], squares))
        return Values(low.min(axis=1), high.max(axis=1), energy.mean(axis=1))


def _offered(modules: dict[str, nn.Module], seen: _Seen, link: Link) -> tuple[float, Rewrite] | None:
    producer = modules[link.producer]
    channels = _channels(producer)
    values = [seen.values(reader, channels) for reader in link.readers]
    read = [
        Read(Weights.of(_read_weights(modules[r], channels)), v)
        for r, v in zip(link.readers, values, strict=True) if v is not None
    ]  # fmt: skip
    if len(read) < len(values):
        return None
    made = None if isinstance(producer, _NORMS) else Weights.of(_made_weights(producer))
    return offered(link, made, read)


def _made_weights(layer: nn.Module) -> Array:
    """Those by which each channel is made, one row a channel."""
    weight, axis = next(_made_by(layer))
    return _rows(plain(weight).movedim(axis, 0), weight.shape[axis])


def _read_weights(layer: nn.Module, channels: int) -> Array:
    """Those by which each channel is read, one row a channel."""
    weight = plain(layer.weight)
    if isinstance(layer, nn.Linear):
        return _rows(weight.T, channels)
    by_group = weight.reshape(layer.groups, -1, *weight.shape[1:])
    return _rows(by_group.movedim(2, 1), channels)


def _rows(tensor: Tensor, count: int) -> Array:
    return np.asarray(tensor.double().reshape(count, -1).numpy())


def _results(module: nn.Module, batch: Batch) -> list[Array]:
    with undisturbed(module), torch.no_grad():
        return [to_numpy(tensor) for tensor in outputs_of(call(module, feeds(module, batch)))]
