"""Small PyTorch models, and what quantizes them."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn
from torch.ao import quantization as ao
from torch.ao.nn.quantized import FloatFunctional
from torch.ao.quantization import quantize_fx
from torch.nn import functional

from tests.frameworks.contracts import tiny

Array = npt.NDArray[Any]
Feeds = dict[str, Array]
ENGINES = ("x86", "qnnpack", "onednn", "fbgemm")
MARKS = [
    *(pytest.mark.filterwarnings(text) for text in (
        "ignore:torch.ao.quantization is deprecated:DeprecationWarning",
        "ignore:.*quantized tensor creation functions:UserWarning",
        "ignore:.*reduce_range:UserWarning",
        "ignore:.*torch.jit:DeprecationWarning",
        "ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning",
    )),
    pytest.mark.usefixtures("one_thread"),
]  # fmt: skip
"""What torch itself and torchao warn of; arrays as small as these are only slower with several threads."""


class Models(NamedTuple):
    reference: Any
    quantized: Any
    batch: Feeds


class Cnn(nn.Module):
    """For eager quantization: stubs, Conv + BatchNorm + ReLU, Conv + ReLU, a sum, two kinds of pooling."""

    fused = (("conv1", "bn1", "relu1"), ("block.conv", "block.relu"), ("conv3", "bn3"))

    def __init__(self) -> None:
        super().__init__()
        self.quant = ao.QuantStub()
        self.conv1, self.bn1, self.relu1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.block = nn.Sequential()
        self.block.add_module("conv", nn.Conv2d(8, 8, 3, padding=1))
        self.block.add_module("relu", nn.ReLU())
        self.conv3, self.bn3 = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)
        self.skip = FloatFunctional()
        self.gap, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(8, 5)
        self.dequant = ao.DeQuantStub()

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu1(self.bn1(self.conv1(self.quant(x)))))
        x = self.skip.add(x, self.bn3(self.conv3(self.block(x))))
        return self.dequant(self.fc(self.gap(x).flatten(1)))


class Mlp(nn.Module):
    """Linear layers with a ReLU and a Tanh between them; as wide as the groups of weight-only quantization need."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act1 = nn.Linear(32, 32), nn.ReLU()
        self.fc2, self.act2 = nn.Linear(32, 64), nn.Tanh()
        self.fc3 = nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(self.act2(self.fc2(self.act1(self.fc1(x)))))


class Functional(nn.Module):
    """Functions outside of modules: relu, add, matmul, softmax, mean."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.block = Residual(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(functional.relu(self.bn(self.conv(x))))
        x = self.up(x.flatten(2).transpose(1, 2))
        weights = torch.softmax(torch.matmul(x, x.transpose(-1, -2)) / 4, -1)
        return self.down(torch.matmul(weights, x)).mean(1)


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.a = nn.Conv2d(channels, channels, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.b = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(self.relu(self.a(x)))


class Tokens(nn.Module):
    """Token numbers and a mask in, a dict out; an embedding, an LSTM that returns a tuple, and linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.lstm = nn.LSTM(16, 12, batch_first=True)
        self.proj = nn.Linear(12, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Any]:
        hidden, (_, state) = self.lstm(self.embedding(ids))
        hidden = self.proj(hidden) * mask.unsqueeze(-1)
        return {"logits": self.head(hidden), "state": state, "best": hidden.argmax(-1)}


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(20, 16, mode="sum", include_last_offset=False)
        self.fc = nn.Linear(16, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.fc(self.bag(ids.flatten(), torch.arange(0, ids.numel(), ids.shape[1])))


class TinyNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name, weights in tiny.WEIGHTS.items():
            self.add_module(name, nn.Linear(*reversed(weights.shape), bias=False))
            self.get_submodule(name).weight.data = torch.tensor(weights)
        self.relu, self.softmax = nn.ReLU(), nn.Softmax(-1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.relu(self.first(x))
        return self.softmax(self.second(x)), self.side(x)


def made(kind: Callable[[], nn.Module], seed: int = 1) -> Any:
    """In evaluation mode, with batch norms that do something."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind()
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                nn.init.uniform_(module.weight, 0.5, 2)
                nn.init.normal_(module.bias)
                nn.init.normal_(module.running_mean, std=0.1)
                nn.init.uniform_(module.running_var, 0.5, 2)
    return model.eval()


def images(samples: int = 6, seed: int = 9, channels: int = 3, size: int = 6) -> Feeds:
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(samples, channels, size, size)).astype(np.float32)}


def rows(samples: int = 6, seed: int = 9, width: int = 32) -> Feeds:
    return {"x": np.random.default_rng(seed).normal(size=(samples, width)).astype(np.float32)}


def tokens(samples: int = 4, seed: int = 9, length: int = 5) -> Feeds:
    rng = np.random.default_rng(seed)
    mask = rng.uniform(0.5, 1, (samples, length)).astype(np.float32)
    return {"ids": rng.integers(0, 20, (samples, length)), "mask": mask}


def given(batch: Mapping[str, Array]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array.copy()) for name, array in batch.items()}


@contextmanager
def engine(name: str) -> Iterator[None]:
    """Kernels of eager and FX quantization; some look at it when they run, not only when they are packed."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = name
    try:
        yield
    finally:
        torch.backends.quantized.engine = before


def dynamic(model: nn.Module, *kinds: type[nn.Module]) -> Any:
    """Linear and LSTM, unless told; embeddings are weight-only."""
    configs = {
        kind: ao.float_qparams_weight_only_qconfig
        if issubclass(kind, nn.Embedding | nn.EmbeddingBag)
        else ao.default_dynamic_qconfig
        for kind in kinds or (nn.Linear, nn.LSTM)
    }
    return ao.quantize_dynamic(model, configs)


def static(model: nn.Module, batch: Feeds, name: str = "x86", fuse: Sequence[Sequence[str]] | None = None) -> Any:
    with engine(name):
        pairs = [list(names) for names in (getattr(model, "fused", ()) if fuse is None else fuse)]
        fused = ao.fuse_modules(copy.deepcopy(model), pairs) if pairs else copy.deepcopy(model)
        fused.qconfig = ao.get_default_qconfig(name)
        prepared = ao.prepare(fused)
        prepared(**given(batch))
        return ao.convert(prepared)


def fx_static(model: nn.Module, batch: Feeds, per_channel: bool = True) -> Any:
    """One scale for each tensor of weights is what qnnpack's configuration says; the kernels are the same."""
    mapping = ao.get_default_qconfig_mapping("x86" if per_channel else "qnnpack")
    prepared = quantize_fx.prepare_fx(copy.deepcopy(model), mapping, tuple(given(batch).values()))
    prepared(**given(batch))
    return quantize_fx.convert_fx(prepared)


def exported(model: nn.Module, batch: Feeds) -> torch.export.ExportedProgram:
    any_number = torch.export.Dim("n", min=1, max=1024)
    arguments = given(batch)
    return torch.export.export(
        copy.deepcopy(model), tuple(arguments.values()), dynamic_shapes=tuple({0: any_number} for _ in arguments)
    )


def pt2e(model: nn.Module, batch: Feeds, is_dynamic: bool = False) -> Any:
    """With torchao's X86InductorQuantizer."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    program = exported(model, batch)
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config(is_dynamic=is_dynamic))
    prepared = prepare_pt2e(program.module(), quantizer)
    prepared(**given(batch))
    return convert_pt2e(prepared)


@cache
def functional_models(kind: str) -> Models:
    """`Functional`, quantized in one of the ways that take a while; nobody may change it."""
    model, calibration = made(Functional), images(8)
    ways: Mapping[str, Callable[..., Any]] = {"fx": fx_static, "pt2e": pt2e, "inc": inc_pt2e}
    way, _, variant = kind.partition("-")
    options = {"per-tensor": {"per_channel": False}, "dynamic": {"is_dynamic": True}}.get(variant, {})
    return Models(model, ways[way](model, calibration, **options), images(5, 20))


def torchao(model: nn.Module, config: Any) -> Any:
    """With torchao's quantize_."""
    from torchao.quantization import quantize_

    found = copy.deepcopy(model)
    quantize_(found, config)
    return found


def int4_config(group: int = 16, acts: bool = False) -> Any:
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, IntxWeightOnlyConfig
    from torchao.quantization.granularity import PerGroup

    if acts:
        return Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(group))
    return IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(group))


def qat(model: nn.Module, batch: Feeds, *, steps: int = 2) -> Any:
    """Eager quantization-aware training, some steps in."""
    model = copy.deepcopy(model).train()
    pairs = [list(names) for names in getattr(model, "fused", ())]
    fused = ao.fuse_modules_qat(model, pairs) if pairs else model
    fused.qconfig = ao.get_default_qat_qconfig("x86")
    return trained(ao.prepare_qat(fused), batch, steps)


def qat_fx(model: nn.Module, batch: Feeds, *, steps: int = 2) -> Any:
    mapping = ao.get_default_qat_qconfig_mapping("x86")
    model = copy.deepcopy(model).train()
    return trained(quantize_fx.prepare_qat_fx(model, mapping, tuple(given(batch).values())), batch, steps)


def qat_torchao(model: nn.Module, batch: Feeds, *, steps: int = 2) -> Any:
    from torchao.quantization.qat import QATConfig

    return trained(torchao(model, QATConfig(int4_config(acts=True), step="prepare")), batch, steps)


def trained(model: nn.Module, batch: Feeds, steps: int) -> Any:
    """Left in training mode, as it is between two steps."""
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(**given(batch)).square().mean().backward()
        optimizer.step()
    return model


def without_log(function: Callable[..., Any]) -> Callable[..., Any]:
    """Neural Compressor logs a lot, and imports things that warn."""

    def call(*args: Any, **kwargs: Any) -> Any:
        logging.disable(logging.CRITICAL)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return function(*args, **kwargs)
        finally:
            logging.disable(logging.NOTSET)

    return call


@without_log
def inc_rtn(model: nn.Module, **settings: Any) -> Any:
    """Weight-only, four bits in groups of 16; fails where transformers is imported later than Neural Compressor."""
    import transformers  # noqa: F401
    from neural_compressor.torch.quantization import RTNConfig, convert, prepare

    return convert(prepare(copy.deepcopy(model), RTNConfig(**{"bits": 4, "group_size": 16, **settings})))


@without_log
def inc_pt2e(model: nn.Module, batch: Feeds, is_dynamic: bool = False) -> Any:
    from neural_compressor.torch.export import export
    from neural_compressor.torch.quantization import DynamicQuantConfig, StaticQuantConfig, convert, prepare

    arguments = tuple(given(batch).values())
    shapes = tuple({0: torch.export.Dim("n", min=1, max=1024)} for _ in arguments)
    program = export(copy.deepcopy(model), arguments, dynamic_shapes=shapes)
    prepared = prepare(program, DynamicQuantConfig() if is_dynamic else StaticQuantConfig(), example_inputs=arguments)
    prepared(*arguments)
    return convert(prepared)


def bf16(model: nn.Module) -> Any:
    return copy.deepcopy(model).to(torch.bfloat16)


class HandLinear(nn.Module):
    """Somebody's own: whole numbers and a scale for each output, which torch knows nothing about."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("integers", torch.round(linear.weight.detach() / self.scale).to(torch.int8))
        self.bias = linear.bias

    @property
    def weight(self) -> Tensor:
        return self.integers.float() * self.scale

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


def by_hand(model: nn.Module) -> Any:
    found = copy.deepcopy(model)
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear):
            parent, _, name = path.rpartition(".")
            setattr(found.get_submodule(parent), name, HandLinear(module))
    return found


def state(model: nn.Module) -> dict[str, Any]:
    """Everything that running a model must not change."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        found[f"{path}.training"] = module.training
        found[f"{path}.hooks"] = len(module._forward_hooks) + len(module._forward_pre_hooks)
        for name, value in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            is_plain = type(value) in (Tensor, nn.Parameter)
            found[f"{path}.{name}"] = plain(value) if is_plain else type(value).__name__
            found[f"{path}.{name}.grad"] = None if value.grad is None else plain(value.grad)
    return found


def plain(value: Any) -> Array:
    """Any tensor, or the first real one of a tuple or dict, as float32."""
    if isinstance(value, tuple | list):
        return plain(value[0])
    if isinstance(value, dict):
        return plain(next(iter(value.values())))
    value = value.detach()
    return (value.dequantize() if value.is_quantized else value).float().numpy().copy()


def hooked(
    model: nn.Module, batch: Feeds, paths: Collection[str], dtype: torch.dtype = torch.float32
) -> dict[str, Array]:
    """What modules return, by plain forward hooks, in evaluation mode; the second call of `a` is `a/2`."""
    found: dict[str, Array] = {}
    was_training = model.training
    model.eval()

    def keep(path: str) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, value: Any) -> None:
            count = sum(key.partition("/")[0] == path for key in found)
            found[path if not count else f"{path}/{count + 1}"] = plain(value)

        return hook

    handles = [model.get_submodule(path).register_forward_hook(keep(path)) for path in paths]
    tensors = given(batch)
    with torch.no_grad():
        model(**{name: t.to(dtype) if t.is_floating_point() else t for name, t in tensors.items()})
    for handle in handles:
        handle.remove()
    model.train(was_training)
    return found
