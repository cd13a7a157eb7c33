"""Eager models against numbers that the test itself takes with plain hooks, or works out with numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.frameworks import torch_truth as truth
from tests.frameworks import torch_zoo as zoo
from tests.frameworks.torch_truth import DYNAMIC, Case, Grid, Truth, Weight
from tests.frameworks.torch_zoo import Array, Feeds, plain

pytestmark = [*zoo.MARKS, pytest.mark.usefixtures("exact_products")]

CNN = {"conv1": "relu1", "pool": "pool", "block.conv": "block.relu", "conv3": "bn3", "gap": "gap", "fc": "fc"}
"""Op -> the module behind which it is compared in the reference."""
ADD = "skip.activation_post_process"
MLP = ("fc1", "act1", "fc2", "act2", "fc3")
LINEAR = ("fc1", "fc2", "fc3")


def static(kernels: str) -> Case:
    model = zoo.made(zoo.Cnn)
    quantized = zoo.static(model, zoo.images(12), kernels)
    conv1, add = (Grid(m.scale, m.zero_point, 0, 255) for m in (quantized.conv1, quantized.skip))
    own = {op: quantized.get_submodule(op) for op in ("block.conv", "conv3", "fc")}
    grids = {"conv1": conv1, "pool": conv1, "/add": add, "gap": add}
    grids |= {op: Grid(m.scale, m.zero_point, 0, 255) for op, m in own.items()}
    image = Grid(float(quantized.quant.scale), int(quantized.quant.zero_point), 0, 255)

    def find(batch: Feeds) -> Truth:
        mine = zoo.hooked(model, batch, [*CNN.values(), ADD])
        theirs = zoo.hooked(quantized, batch, [*CNN, ADD])
        reference = {**{op: mine[end] for op, end in CNN.items()}, "/add": mine[ADD]}

        def read(op: str) -> Any:
            return truth.to_grid(reference[op], grids[op])

        alone = {
            "conv1": quantized.conv1(truth.to_grid(batch["x"], image)),
            "pool": quantized.pool(read("conv1")),
            "block.conv": quantized.block.conv(read("pool")),
            "conv3": quantized.conv3(read("block.conv")),
            "/add": quantized.skip.add(read("pool"), read("conv3")),
            "gap": quantized.gap(read("/add")),
            "fc": quantized.fc(read("gap").flatten(1)),
        }
        outputs = {**{op: theirs[op] for op in CNN}, "/add": theirs[ADD]}
        isolated = {op: plain(value) for op, value in alone.items()}
        return Truth(reference, outputs, isolated, {"conv1": (batch["x"], image.round(batch["x"]))})

    mine = {
        "conv1": truth.folded(model.conv1.weight, model.bn1),
        "block.conv": plain(model.block.conv.weight),
        "conv3": truth.folded(model.conv3.weight, model.bn3),
        "fc": plain(model.fc.weight),
    }
    weights = {op: truth.packed_weight(x, quantized.get_submodule(op).weight(), 1e-4) for op, x in mine.items()}
    parts = {"bn1": "conv1", "relu1": "conv1", "block.relu": "block.conv", "bn3": "conv3"}
    return Case(model, quantized, [zoo.images(7, 20), zoo.images(5, 21)], find, weights, grids, parts, kernels=kernels)


def tokens(*kinds: type[nn.Module]) -> Case:
    model = zoo.made(zoo.Tokens)
    quantized = zoo.dynamic(model, *kinds)
    modules = ("embedding", "lstm", "proj", "head")

    def find(batch: Feeds) -> Truth:
        reference, outputs = (zoo.hooked(m, batch, modules) for m in (model, quantized))
        mask = batch["mask"][..., None]
        for values in (reference, outputs):
            values["/mul"] = values["proj"] * mask
        with torch.no_grad():
            alone = {
                "embedding": quantized.embedding(torch.from_numpy(batch["ids"])),
                "lstm": quantized.lstm(torch.from_numpy(reference["embedding"]))[0],
                "proj": quantized.proj(torch.from_numpy(reference["lstm"])),
                "/mul": torch.from_numpy(reference["/mul"]),
                "head": quantized.head(torch.from_numpy(reference["/mul"])),
            }
        return Truth(reference, outputs, {op: plain(value) for op, value in alone.items()})

    own = {op: plain(model.get_submodule(op).weight) for op in ("embedding", "proj", "head")}
    weights = {op: symmetric(own[op]) for op in ("proj", "head")}
    grids = dict.fromkeys(("proj", "head"), DYNAMIC)
    lstm = plain(model.lstm.weight_ih_l0)
    if nn.Embedding in kinds:
        weights |= {"embedding": by_row(own["embedding"]), "lstm": Weight(lstm, lstm, dtype="")}
    else:
        weights |= {"embedding": Weight(own["embedding"], own["embedding"], 1, dtype=""), "lstm": symmetric(lstm)}
        grids["lstm"] = DYNAMIC
    return Case(model, quantized, [zoo.tokens(4, 20), zoo.tokens(3, 21)], find, weights, grids)


def bag() -> Case:
    model = zoo.made(zoo.Bag)
    quantized = zoo.dynamic(model, nn.Linear, nn.EmbeddingBag)

    def find(batch: Feeds) -> Truth:
        reference, outputs = (zoo.hooked(m, batch, ("bag", "fc")) for m in (model, quantized))
        alone = {"bag": outputs["bag"], "fc": plain(quantized.fc(torch.from_numpy(reference["bag"])))}
        return Truth(reference, outputs, alone)

    weights = {"bag": by_row(plain(model.bag.weight)), "fc": symmetric(plain(model.fc.weight))}
    return Case(model, quantized, [{"ids": zoo.tokens(4, 20)["ids"]}], find, weights, {"fc": DYNAMIC})


def mlp(
    quantize: Callable[[nn.Module], Any],
    weigh: Callable[[Array, Any], Weight],
    grid: Grid | None = None,
    dtype: torch.dtype = torch.float32,
) -> Case:
    model = zoo.made(zoo.Mlp)
    quantized = quantize(model)

    def find(batch: Feeds) -> Truth:
        reference = zoo.hooked(model, batch, MLP)
        outputs = zoo.hooked(quantized, {"x": batch["x"]}, MLP, dtype)
        alone, x = {}, batch["x"]
        for op in MLP:
            with torch.no_grad():
                alone[op] = plain(quantized.get_submodule(op)(torch.from_numpy(x).to(dtype)))
            x = reference[op]
        return Truth(reference, outputs, alone)

    weights = {op: weigh(plain(model.get_submodule(op).weight), quantized.get_submodule(op)) for op in LINEAR}
    grids: Mapping[str, Grid] = dict.fromkeys(LINEAR, grid) if grid is not None else {}  # type: ignore[arg-type]
    return Case(model, quantized, [zoo.rows(6, 20), zoo.rows(3, 21)], find, weights, grids)


def symmetric(w: Array) -> Weight:
    """Eight bits for the whole tensor, as torch's default for dynamic quantization has it."""
    scale = np.float32(np.abs(w).max() / np.float32(127.5))
    return Weight(w, Grid(scale, 0, -128, 127).round(w), 0, np.array([scale]), "int8", "per tensor")


def by_row(w: Array) -> Weight:
    """Embeddings: each row has its own range, and a zero point that is no whole number."""
    low, high = w.min(1, keepdims=True), w.max(1, keepdims=True)
    scale = (high - low) / np.float32(255)
    zero = -low / scale
    return Weight(w, (np.clip(np.rint(w / scale + zero), 0, 255) - zero) * scale, 1, None, "uint8", "per channel")


def torchao_int8(w: Array, module: Any) -> Weight:
    scale = np.abs(w).max(1, keepdims=True) / np.float32(127.5)
    np.testing.assert_allclose(plain(module.weight.scale), scale, rtol=1e-6)
    integers = module.weight.qdata.numpy().astype(np.float32)
    assert np.abs(integers - np.clip(w / scale, -128, 127)).max() < 0.5001
    return Weight(w, integers * scale, 0, scale.ravel())


def torchao_int4(w: Array, module: Any) -> Weight:
    """The largest of a group is 7.5 steps away from 0, which is rounded either way."""
    groups = w.reshape(len(w), -1, 16)
    scale = np.abs(groups).max(-1, keepdims=True) / np.float32(7.5)
    integers = module.weight.qdata.numpy().astype(np.float32).reshape(groups.shape)
    assert np.abs(integers - np.clip(groups / scale, -8, 7)).max() < 0.5001
    return Weight(w, (integers * scale).reshape(w.shape), 0, None, "int4", "per block")


def neural_compressor(w: Array, module: Any) -> Weight:
    """Eight numbers of four bits in every 32, the inputs of one output below each other."""
    words = module.qweight.numpy().view(np.uint32)
    integers = np.stack([(words >> np.uint32(4 * i)) & 15 for i in range(8)], axis=1).reshape(-1, words.shape[1])
    scales = np.repeat(module.scales.numpy(), 16, axis=0)
    assert scales.dtype == np.float16
    unpacked = ((integers.astype(np.float16) - 8) * scales).astype(np.float32)
    return Weight(w, unpacked.T, 0, None, "int4", "per block")


def by_hand(w: Array, module: Any) -> Weight:
    scale = np.abs(w).max(1, keepdims=True) / np.float32(127)
    return Weight(w, np.rint(w / scale) * scale, 0, None, "")


def half(w: Array, module: Any) -> Weight:
    bits = w.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32)
    return Weight(w, rounded.view(np.float32), 0, None, "")


def torchao(name: str, **options: Any) -> Callable[[nn.Module], Any]:
    def quantize(model: nn.Module) -> Any:
        import torchao.quantization

        return zoo.torchao(model, getattr(torchao.quantization, name)(**options))

    return quantize


CASES: dict[str, Callable[[], Case]] = {
    **{f"static-{name}": (lambda name=name: static(name)) for name in zoo.ENGINES},
    "dynamic": tokens,
    "dynamic-embedding": lambda: tokens(nn.Linear, nn.Embedding),
    "dynamic-bag": bag,
    "dynamic-mlp": lambda: mlp(zoo.dynamic, lambda w, _: symmetric(w), DYNAMIC),
    "torchao-int8-dynamic": lambda: mlp(
        torchao("Int8DynamicActivationInt8WeightConfig"), torchao_int8, Grid(None, None, -128, 127, "int8")
    ),
    "torchao-int8": lambda: mlp(torchao("Int8WeightOnlyConfig"), torchao_int8),
    "torchao-int4": lambda: mlp(lambda model: zoo.torchao(model, zoo.int4_config()), torchao_int4),
    "torchao-int4-dynamic": lambda: mlp(
        lambda model: zoo.torchao(model, zoo.int4_config(acts=True)),
        torchao_int4,
        Grid(None, None, -128, 127, "int8"),
    ),
    "inc-rtn": lambda: mlp(zoo.inc_rtn, neural_compressor),
    "by-hand": lambda: mlp(zoo.by_hand, by_hand),
    "bf16": lambda: mlp(zoo.bf16, half, dtype=torch.bfloat16),
}
made = cache(lambda name: CASES[name]())


@pytest.mark.parametrize("name", CASES)
def test_ops(name: str) -> None:
    truth.check_ops(made(name))


@pytest.mark.parametrize("role", ["output", "isolated", "input"])
@pytest.mark.parametrize("name", CASES)
def test_pairs(name: str, role: str) -> None:
    truth.check_pairs(made(name), role)


@pytest.mark.parametrize("name", CASES)
def test_weights(name: str) -> None:
    truth.check_weights(made(name))


@pytest.mark.parametrize("name", CASES)
def test_columns(name: str) -> None:
    truth.check_columns(made(name))


@pytest.mark.parametrize("name", CASES)
def test_quantization(name: str) -> None:
    truth.check_quantization(made(name))


def linear_dynamic(x: Array, weight: Weight, module: Any) -> Array:
    """Seven bits for the range of the whole batch, which includes 0: what fbgemm's kernel does."""
    low, high = min(x.min(), 0), max(x.max(), 0)
    scale = np.float32((high - low) / 127)
    return Grid(scale, np.rint(-low / scale), 0, 127).round(x) @ weight.quantized.T + plain(module.bias())


def linear_static(x: Array, weight: Weight, module: Any, read: Grid) -> Array:
    real = read.round(x) @ weight.quantized.T + plain(module.bias())
    return Grid(module.scale, module.zero_point, 0, 255).round(real)


def linear_per_row(x: Array, weight: Weight, module: Any) -> Array:
    scale = np.abs(x).max(1, keepdims=True) / np.float32(127.5)
    return (np.clip(np.rint(x / scale), -128, 127) * scale) @ weight.quantized.T + plain(module.bias)


def linear_asymmetric_rows(x: Array, weight: Weight, module: Any) -> Array:
    low, high = np.minimum(x.min(1, keepdims=True), 0), np.maximum(x.max(1, keepdims=True), 0)
    scale = (high - low) / np.float32(255)
    zero = np.clip(-128 - np.rint(low / scale), -128, 127)
    integers = np.clip(np.rint(x / scale) + zero, -128, 127)
    return ((integers - zero) * scale) @ weight.quantized.T + plain(module.bias)


def linear(x: Array, weight: Weight, module: Any) -> Array:
    return x @ weight.quantized.T + plain(module.bias)


@pytest.mark.parametrize(
    ("name", "op", "compute", "share"),
    [
        ("dynamic-mlp", "fc2", linear_dynamic, 0.0),
        ("dynamic", "head", linear_dynamic, 0.0),
        ("torchao-int8-dynamic", "fc2", linear_per_row, 0.02),
        ("torchao-int4-dynamic", "fc2", linear_asymmetric_rows, 0.02),
        ("torchao-int8", "fc3", linear, 0.0),
        ("torchao-int4", "fc1", linear, 0.0),
        ("by-hand", "fc2", linear, 0.0),
        ("static-x86", "fc", linear_static, 0.02),
        ("static-onednn", "fc", linear_static, 0.02),
    ],
)
def test_added_error_is_that_of_the_arithmetic(name: str, op: str, compute: Callable[..., Array], share: float) -> None:
    """Without any of torch's kernels; `share` of the values may be rounded the other way, from the middle."""
    case = made(name)
    source = next(o.inputs for o in case.adapter.ops() if o.name == op)
    for batch, pairs in zip(case.batches, case.pairs, strict=True):
        x = pairs[source[0], "output"].reference if source else batch["x"]
        more = [case.grids[source[0]]] if compute is linear_static else []
        x = x.reshape(len(x), -1) if compute is linear_static else x
        wanted = compute(x, case.weights[op], case.quantized.get_submodule(op), *more)
        found = pairs[op, "isolated"].quantized
        far = np.abs(found - wanted) > 1e-5 * np.abs(wanted).max()
        assert far.mean() <= share
