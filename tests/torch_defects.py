"""Small PyTorch networks trained on digits, each with one defect that int8 cannot take; tests/defects.py for torch.

A CNN with residuals and batch norms, one with depthwise convolutions, an MLP and a transformer. What is spoilt, where
and how badly follows from a seed, and changes nothing in fp32. benchmarks/torch_ranking.py finds the truth about them.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from inc_tb.demo import load_digits
from tests.defects import _HUGE, Array, _between, samples

_STEPS = 150
_NEXT_TO_NOTHING = 0.001
MARKS = [
    pytest.mark.filterwarnings(text)
    for text in (
        "ignore:torch.ao.quantization is deprecated:DeprecationWarning",
        "ignore:.*quantized tensor creation functions:UserWarning",
        "ignore:.*reduce_range:UserWarning",
        "ignore:.*torch.jit:DeprecationWarning",
        "ignore:TypedStorage is deprecated:UserWarning",
        "ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning",
    )
]
"""What torch itself and torchao say when models are quantized and run."""


@dataclass
class Case:
    kind: str
    seed: int
    network: str
    healthy: nn.Module
    """Computes the same as fp32."""
    fp32: nn.Module
    culprits: tuple[str, ...]
    """Whose result is spoilt, and who reads it; or the one whose weights are."""
    how: str

    @cached_property
    def expected(self) -> Array:
        return outputs(self.fp32, samples("truth"))


class Link:
    """What one module writes and one other reads."""

    def __init__(self, model: nn.Module, ends: tuple[str, str]) -> None:
        self.producer, self.consumer = ends
        self.written = [model.get_submodule(self.producer)]
        norm = f"{self.producer.rpartition('.')[0]}.norm"
        if norm.removesuffix(".norm") and norm in dict(model.named_modules()):
            self.written = [model.get_submodule(norm)]
        self.reads = model.get_submodule(self.consumer)

    def scale_written(self, channel: int | slice, factor: float) -> None:
        with torch.no_grad():
            for module in self.written:
                module.weight[channel] *= factor
                module.bias[channel] *= factor

    def scale_read(self, channel: int, factor: float) -> None:
        with torch.no_grad():
            weight = self.reads.weight
            is_depthwise = isinstance(self.reads, nn.Conv2d) and self.reads.groups > 1
            (weight if is_depthwise else weight.transpose(0, 1))[channel] *= factor


class Layer(nn.Module):
    """A convolution and its batch norm, perhaps with an activation."""

    def __init__(self, reads: int, writes: int, size: int, *, stride: int = 1, groups: int = 1, relu: bool = True):
        super().__init__()
        self.conv = nn.Conv2d(reads, writes, size, stride, size // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(writes)
        self.act: nn.Module | None = nn.ReLU() if relu else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        return x if self.act is None else self.act(x)


class Block(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.a = Layer(width, inner, 3)
        self.b = Layer(inner, width, 3, relu=False)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.b(self.a(x)) + x)


class Residual(nn.Module):
    """Convolutions, batch norms and activations are modules; `+` is a function."""

    links = (
        ("block0.a.conv", "block0.b.conv"), ("block1.a.conv", "block1.b.conv"),
        ("next1.conv", "head"),
    )  # fmt: skip
    sums = (("block0.b.conv", "block0/add", "next0.conv"), ("block1.b.conv", "block1/add", "next1.conv"))

    def __init__(self) -> None:
        super().__init__()
        self.stem = Layer(1, 12, 3)
        self.block0 = Block(12, 12)
        self.next0 = Layer(12, 16, 3, stride=2)
        self.block1 = Block(16, 16)
        self.next1 = Layer(16, 24, 3)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(24, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.next0(self.block0(self.stem(image)))
        x = self.next1(self.block1(x))
        return self.head(torch.flatten(self.pool(x), 1))


class Inverted(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.expand = Layer(width, inner, 1, relu=False)
        self.depthwise = Layer(inner, inner, 3, groups=inner, relu=False)
        self.project = Layer(inner, width, 1, relu=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.depthwise(functional.relu(self.expand(x))))
        return torch.add(x, self.project(inner))


class Depthwise(nn.Module):
    """Activations and sums are functions."""

    links = (
        ("block0.expand.conv", "block0.depthwise.conv"), ("block0.depthwise.conv", "block0.project.conv"),
        ("down.conv", "mix.conv"), ("block1.expand.conv", "block1.depthwise.conv"),
        ("block1.depthwise.conv", "block1.project.conv"), ("last.conv", "head"),
    )  # fmt: skip
    sums = (("block1.project.conv", "block1/add", "last.conv"),)

    def __init__(self) -> None:
        super().__init__()
        self.stem = Layer(1, 12, 3)
        self.block0 = Inverted(12, 24)
        self.down = Layer(12, 12, 3, stride=2, groups=12)
        self.mix = Layer(12, 12, 1, relu=False)
        self.block1 = Inverted(12, 24)
        self.last = Layer(12, 24, 1)
        self.head = nn.Linear(24, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.mix(self.down(self.block0(self.stem(image))))
        x = functional.adaptive_avg_pool2d(self.last(self.block1(x)), 1)
        return self.head(x.flatten(1))


class Mlp(nn.Module):
    """A chain: links are everywhere."""

    links = (("body.0", "body.2"), ("body.2", "body.4"), ("body.4", "body.6"), ("body.6", "head"))
    sums: tuple[tuple[str, str, str], ...] = ()

    def __init__(self) -> None:
        super().__init__()
        sizes = (64, 32, 24, 32, 24)
        layers = [nn.Linear(*pair) for pair in itertools.pairwise(sizes)]
        self.body = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))
        self.head = nn.Linear(24, 10)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.body(image.flatten(1)))


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.matmul(self.q(x), self.k(x).transpose(1, 2)) / 4
        return self.out(torch.matmul(torch.softmax(scores, -1), self.v(x)))


class Transformer(nn.Module):
    """Each row of the picture is a token."""

    links = (("attention.v", "attention.out"), ("widen", "narrow"))
    sums: tuple[tuple[str, str, str], ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.place = nn.Parameter(torch.randn(8, 16) / 4)
        self.norm0, self.norm1 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.attention = Attention(16)
        self.widen, self.narrow = nn.Linear(16, 32), nn.Linear(32, 16)
        self.head = nn.Linear(16, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.embed(image.flatten(1, 2)) + self.place
        x = x + self.attention(self.norm0(x))
        x = x + self.narrow(functional.relu(self.widen(self.norm1(x))))
        return self.head(x.mean(1))


NETWORKS: Mapping[str, type[Any]] = {
    "residual": Residual, "depthwise": Depthwise, "mlp": Mlp, "transformer": Transformer,
}  # fmt: skip


def trained(network: str, seed: int) -> Any:
    """A copy of its own."""
    return copy.deepcopy(_trained(network, seed))


@cache
def _trained(network: str, seed: int) -> nn.Module:
    images, labels, held_out = load_digits()
    pictures, right, rows = torch.tensor(images), torch.tensor(labels), torch.tensor(np.flatnonzero(~held_out))
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = NETWORKS[network]()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(_STEPS):
            some = rows[torch.randperm(len(rows))[:128]]
            optimizer.zero_grad()
            functional.cross_entropy(model(pictures[some]), right[some]).backward()
            optimizer.step()
    for parameter in model.parameters():
        parameter.grad = None
    return model.eval()


@contextmanager
def one_thread() -> Iterator[None]:
    """The same weights wherever it runs, and faster for arrays as small as these."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def seeded(kind: Callable[[], nn.Module], seed: int = 1) -> Any:
    """Not trained, but the same every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return kind().eval()


def state(model: nn.Module) -> dict[str, Any]:
    """Everything about a model that running it must not change."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        own = vars(module)
        found[path] = (sorted(own), module.training, len(own["_forward_hooks"]), len(own["_forward_pre_hooks"]))
        for name, value in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            found[f"{path}.{name}"] = (
                id(value),
                value.requires_grad,
                value.grad is None,
                value.detach().numpy().tolist(),
            )
    return found


def outputs(model: nn.Module, images: Array) -> Array:
    with torch.no_grad():
        found: Array = model(torch.tensor(images)).numpy()
    return found


def accuracy(model: nn.Module) -> float:
    """Of held-out digits that nothing else sees."""
    images, labels, held_out = load_digits()
    return float((outputs(model, images[held_out]).argmax(1) == labels[held_out]).mean())


def calibration() -> list[dict[str, Array]]:
    return [{"image": rows} for rows in np.array_split(samples("calibration"), 4)]


def probed() -> dict[str, Array]:
    return {"image": samples("probe")}


def made(kind: str, seed: int, network: str = "") -> Case:
    """One defect of this kind at a random place of a random network, or of this one."""
    random = np.random.default_rng([list(KINDS).index(kind), seed])
    fit = [name for name, it in NETWORKS.items() if kind != "residual" or it.sums]
    network = network or str(random.choice(fit))
    healthy = trained(network, seed % 2)
    fp32, culprits, how = KINDS[kind](healthy, random)
    return Case(kind, seed, network, healthy, fp32, culprits, how)


Made = tuple[nn.Module, tuple[str, ...], str]


def _outlier_channel(healthy: Any, random: np.random.Generator) -> Made:
    """Scaled up and divided back."""
    ends = _choice(random, healthy.links)
    channel, factor = _channel(healthy, ends, random), _between(random, *_HUGE)
    fp32 = copy.deepcopy(healthy)
    link = Link(fp32, ends)
    link.scale_written(channel, factor)
    link.scale_read(channel, 1 / factor)
    return fp32, ends, f"a channel x {factor:.0f}"


def _unread_channel(healthy: Any, random: np.random.Generator) -> Made:
    """A huge value that nobody reads."""
    ends = _choice(random, healthy.links)
    channel, factor = _channel(healthy, ends, random), _between(random, *_HUGE)
    Link(healthy, ends).scale_read(channel, 0)
    fp32 = copy.deepcopy(healthy)
    Link(fp32, ends).scale_written(channel, factor)
    return fp32, ends, f"a channel x {factor:.0f}, not read"


def _huge_weights(healthy: Any, random: np.random.Generator) -> Made:
    """For what is always zero: all other weights are too small for a step, also with a scale for each channel."""
    whole = [ends for ends in healthy.links if getattr(healthy.get_submodule(ends[1]), "groups", 1) == 1]
    ends = _choice(random, whole)
    channel, factor = _channel(healthy, ends, random), _between(random, *_HUGE)
    Link(healthy, ends).scale_written(channel, 0)
    fp32 = copy.deepcopy(healthy)
    Link(fp32, ends).scale_read(channel, factor)
    return fp32, ends[1:], f"weights x {factor:.0f} for zeros"


def _residual(healthy: Any, random: np.random.Generator) -> Made:
    """One channel of a branch is so large that the sum has no steps left for the others; nobody reads it."""
    branch, total, consumer = _choice(random, healthy.sums)
    ends = branch, consumer
    channel, factor = _channel(healthy, ends, random), _between(random, *_HUGE)
    link = Link(healthy, ends)
    link.scale_written(slice(None), _NEXT_TO_NOTHING)
    link.scale_read(channel, 0)
    fp32 = copy.deepcopy(healthy)
    Link(fp32, ends).scale_written(channel, factor / _NEXT_TO_NOTHING)
    return fp32, (total, consumer), f"a channel x {factor:.0f} in {branch}, not read"


KINDS: Mapping[str, Callable[[Any, np.random.Generator], Made]] = {
    "outlier channel": _outlier_channel, "unread channel": _unread_channel, "huge weights": _huge_weights,
    "residual": _residual,
}  # fmt: skip


def _choice(random: np.random.Generator, among: Sequence[Any]) -> Any:
    return among[int(random.integers(len(among)))]


def _channel(model: nn.Module, ends: tuple[str, str], random: np.random.Generator) -> int:
    """One that is in use where it is read."""
    seen: list[Tensor] = []
    handle = model.get_submodule(ends[1]).register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    outputs(model, samples("calibration"))
    handle.remove()
    values = seen[0].numpy()
    size = values.std(axis=(0, 1) if values.ndim == 3 else (0, *range(2, values.ndim)))
    return int(random.choice(np.flatnonzero(size >= np.median(size))))
