"""Changes of weights that leave what a model computes as it is, and make it easier to quantize.

A channel that is far larger than the others takes the range of a whole tensor. It is scaled down in the layer that
makes it, and up in every layer that reads it. Factors are powers of two, which change no digit.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from inc_tb.errors import ModelError
from inc_tb.frameworks.ops import Batch
from inc_tb.frameworks.registry import describe
from inc_tb.frameworks.torch.arguments import call, feeds
from inc_tb.frameworks.torch.opening import opened
from inc_tb.frameworks.torch.runners import open_runner
from inc_tb.frameworks.torch.state import undisturbed
from inc_tb.frameworks.torch.steps import Step, Trace
from inc_tb.frameworks.torch.values import outputs_of, plain
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
_STRENGTHS = (0.25, 0.5, 0.75, 1.0)
"""How much of what a channel is larger by goes into the weights."""
_WORTH = 0.5
"""What of the error may be left by a change that is worth it."""
_SAME = 1e-5
"""Of the largest result: what may differ."""
_SAMPLES, _ELEMENTS = 8, 1 << 20
"""Of what is read, kept to try factors on."""
_LARGEST = 16
"""Of factors, as a power of two."""


class _Link(NamedTuple):
    """A layer, and all that read what it makes."""

    producer: str
    readers: tuple[str, ...]


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
        scored = [found for link in links if (found := _offered(module, link, seen)) is not None]
    rewrites = [rewrite for _, rewrite in sorted(scored, key=lambda found: found[0])]
    return _holding(module, rewrites, given[0])


def apply_rewrites(model: Any, rewrites: Sequence[Rewrite]) -> nn.Module:
    """A copy with these changes; the names of its modules stay."""
    module = copy.deepcopy(opened(model))
    modules = dict(module.named_modules())
    with torch.no_grad():
        for rewrite in rewrites:
            _apply(modules, rewrite, describe(model))
    return module


def _apply(modules: dict[str, nn.Module], rewrite: Rewrite, name: str) -> None:
    layers = [modules.get(op) for op in rewrite.ops]
    factors = torch.tensor(rewrite.values, dtype=torch.float64)
    fits = len(layers) > 1 and layers[0] is not None and _channels(layers[0]) == len(factors)
    fits = fits and all(isinstance(layer, _READERS) and _takes(layer, len(factors)) for layer in layers[1:])
    if rewrite.kind not in ("equalize", "smooth") or not fits or not bool((factors > 0).all()):
        raise ModelError(
            f"{name}: has no {listed(rewrite.ops)} of {len(factors)} channels to change so ({rewrite.kind}); "
            "expected the model that the change was found for. Give that one."
        )
    producer, *readers = layers
    for tensor, axis in _made_by(producer):
        tensor.div_(_shaped(factors, tensor, axis))
    for reader in readers:
        _scale_read(reader, factors)


def _links(module: nn.Module, trace: Trace) -> Iterator[_Link]:
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
            yield _Link(step.path, tuple(dict.fromkeys(readers)))


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
        return bool(layer.in_features % channels == 0)
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
        layer.weight.mul_(_spread(factors, layer.in_features).to(layer.weight.dtype))
    elif isinstance(layer, _CONVOLUTIONS):
        own = factors.reshape(layer.groups, -1)  # what each group reads
        each = own.repeat_interleave(layer.out_channels // layer.groups, 0).to(layer.weight.dtype)
        layer.weight.mul_(each.reshape(*each.shape, *(1,) * (layer.weight.ndim - 2)))


def _spread(factors: Tensor, features: int) -> Tensor:
    """Of a flattened image every channel has many features."""
    return factors.repeat_interleave(features // len(factors))


def _shaped(factors: Tensor, like: Tensor, axis: int) -> Tensor:
    return factors.to(like.dtype).reshape([-1 if i == axis else 1 for i in range(like.ndim)])


class _Seen(ExitStack):
    """What layers read while it is open: the largest of each feature, and some of it."""

    def __init__(self, module: nn.Module, paths: set[str]) -> None:
        super().__init__()
        self.largest: dict[str, Tensor] = {}
        self.some: dict[str, Tensor] = {}
        modules = dict(module.named_modules())
        for path in sorted(paths):
            self.callback(modules[path].register_forward_pre_hook(partial(self._note, path)).remove)

    def _note(self, path: str, layer: nn.Module, args: tuple[Any, ...]) -> None:
        read = plain(args[0])
        axis = read.ndim - 1 if isinstance(layer, nn.Linear) else 1
        largest = read.abs().amax([i for i in range(read.ndim) if i != axis])
        self.largest[path] = torch.maximum(largest, self.largest[path]) if path in self.largest else largest
        each = max(1, read.numel() // max(1, len(read)))
        self.some.setdefault(path, read[: max(1, min(_SAMPLES, _ELEMENTS // each))].clone())


def _offered(module: nn.Module, link: _Link, seen: _Seen) -> tuple[float, Rewrite] | None:
    """The factors that leave the least error of rounding, if they are worth it, and what share of it they leave."""
    if not all(reader in seen.some for reader in link.readers):
        return None
    modules = dict(module.named_modules())
    producer, readers = modules[link.producer], [(modules[r], seen.some[r]) for r in link.readers]
    channels = _channels(producer)
    made = torch.stack([seen.largest[r].reshape(channels, -1).amax(1) for r in link.readers]).amax(0).double()
    read = torch.stack([_read_weights(layer, channels) for layer, _ in readers]).amax(0)
    before = _error(producer, readers, torch.ones(channels, dtype=torch.float64))
    # A channel that shows nothing on these data may still have weights that are far larger than the others'.
    sizes = [made] if isinstance(producer, _NORMS) else [made, _made_weights(producer)]
    tried = [_factors(size, read, strength) for size in sizes for strength in _STRENGTHS]
    errors = [_error(producer, readers, factors) for factors in tried]
    best = int(np.argmin(errors))
    if not errors[best] < _WORTH * before:
        return None
    kind = "smooth" if isinstance(producer, nn.LayerNorm | nn.RMSNorm) else "equalize"
    by = best // len(_STRENGTHS)
    because = _because(link, sizes[by], tried[best], ("results", "weights")[by])
    ops = [link.producer, *link.readers]
    return errors[best] / before, Rewrite(kind, ops, because, link.producer, tried[best].tolist())


def _because(link: _Link, sizes: Tensor, factors: Tensor, what: str) -> str:
    worst, usual = int(sizes.argmax()), float(sizes.median())
    ratio = f"{float(sizes[worst]) / usual:.3g} times that of the median channel" if usual > 0 else "most have none"
    changed = int((factors != 1).sum())
    return (
        f"channel {worst} of the {what} of {link.producer} reaches {float(sizes[worst]):.3g}, {ratio}; {changed} of "
        f"{len(factors)} channels are scaled in {link.producer}, and back in {listed(link.readers)}"
    )


def _factors(made: Tensor, read: Tensor, strength: float) -> Tensor:
    """Powers of two around 1; a channel that nobody makes or reads is left as it is."""
    is_live = (made > 0) & (read > 0)
    logs = torch.where(is_live, strength * made.log2() - (1 - strength) * read.log2(), torch.nan)
    if not bool(is_live.any()):
        return torch.ones_like(made)
    rounded = torch.nan_to_num((logs - logs.nanmedian()).round(), nan=0.0).clamp(-_LARGEST, _LARGEST)
    return torch.exp2(rounded)


def _made_weights(layer: nn.Module) -> Tensor:
    """The largest weight by which each channel is made."""
    weight, axis = next(_made_by(layer))
    return plain(weight).double().abs().amax([i for i in range(weight.ndim) if i != axis])


def _read_weights(layer: nn.Module, channels: int) -> Tensor:
    """The largest weight by which each channel is read."""
    weight = plain(layer.weight).double().abs()
    if isinstance(layer, nn.Linear):
        return weight.amax(0).reshape(channels, -1).amax(1)
    by_group = weight.reshape(layer.groups, -1, *weight.shape[1:])
    return by_group.amax([1, *range(3, by_group.ndim)]).reshape(-1)


def _error(producer: nn.Module, readers: Sequence[tuple[nn.Module, Tensor]], factors: Tensor) -> float:
    """Of what the readers give, relative to it, with one range a tensor of 8 bits."""
    found = 0.0
    for layer, some in readers:
        own = layer(some.to(layer.weight.dtype))
        scaled = copy.deepcopy(layer)
        _scale_read(scaled, factors)
        scaled.weight.copy_(_rounded(scaled.weight, symmetric=True))
        axis = some.ndim - 1 if isinstance(layer, nn.Linear) else 1
        read = some / _shaped(_spread(factors, some.shape[axis]), some, axis)
        theirs = scaled(_rounded(read, symmetric=False).to(layer.weight.dtype))
        found += float((own - theirs).double().square().sum() / own.double().square().sum().clamp_min(1e-30))
    return found / len(readers) + _producer_error(producer, readers[0][0], factors)


def _producer_error(producer: nn.Module, reader: nn.Module, factors: Tensor) -> float:
    """Of the weights that make the channels, each by the weight by which it is read."""
    if isinstance(producer, _NORMS):
        return 0.0
    weight, axis = next(_made_by(producer))
    by = _shaped(factors, weight, axis)
    lost = (_rounded(weight / by, symmetric=True) * by - weight).double().square()
    others = [i for i in range(weight.ndim) if i != axis]
    read = _read_weights(reader, len(factors)).square()
    whole = float((weight.double().square().sum(others) * read).sum())
    return float((lost.sum(others) * read).sum()) / whole if whole > 0 else 0.0


def _rounded(values: Tensor, *, symmetric: bool) -> Tensor:
    if symmetric:
        scale = values.abs().amax().clamp_min(1e-30) / 127
        return (values / scale).round() * scale
    low, high = values.amin().clamp_max(0), values.amax().clamp_min(0)
    scale = ((high - low) / 255).clamp_min(1e-30)
    return (((values - low) / scale).round()) * scale + low


def _holding(module: nn.Module, rewrites: Sequence[Rewrite], batch: Batch) -> list[Rewrite]:
    """Those that leave the results as they are: all together, or else each by itself."""
    own = _results(module, batch)

    def holds(tried: Sequence[Rewrite]) -> bool:
        theirs = _results(apply_rewrites(module, tried), batch)
        return all(_is_same(a, b) for a, b in zip(own, theirs, strict=True))

    if not rewrites or holds(rewrites):
        return list(rewrites)
    kept: list[Rewrite] = []
    for rewrite in rewrites:
        if holds([*kept, rewrite]):
            kept.append(rewrite)
    return kept


def _results(module: nn.Module, batch: Batch) -> list[Tensor]:
    with undisturbed(module), torch.no_grad():
        return [plain(tensor).double() for tensor in outputs_of(call(module, feeds(module, batch)))]


def _is_same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or not torch.isfinite(one).equal(torch.isfinite(other)):
        return False
    one, other = (torch.nan_to_num(t, posinf=0, neginf=0) for t in (one, other))
    return not one.numel() or bool((one - other).abs().max() <= _SAME * one.abs().max())
