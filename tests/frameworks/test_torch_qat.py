"""Models in quantization-aware training, against the same models run by hand with and without fake quantization."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.ao import quantization as ao

import inc_tb
from inc_tb.frameworks.torch.adapter import TorchAdapter
from tests.frameworks import torch_truth as truth
from tests.frameworks import torch_zoo as zoo
from tests.frameworks.torch_truth import Case, Grid, Truth, Weight, node_values
from tests.frameworks.torch_zoo import Array, Feeds, plain

pytestmark = zoo.MARKS

BATCHES = [zoo.images(5, 20), zoo.images(3, 21)]
CNN = {"conv1": "relu1", "pool": "pool", "block.conv": "block.relu", "conv3": "bn3", "gap": "gap", "fc": "fc"}
CNN_FOLDED = {"bn1": "conv1", "relu1": "conv1", "block.relu": "block.conv", "bn3": "conv3"}
ADD = "skip.activation_post_process"
TRACED = {
    "conv": "relu", "block.a": "block_relu", "block.b": "block_b", "block/add": "add", "up": "up", "/matmul": "matmul",
    "/div": "truediv", "/softmax": "softmax", "/matmul_1": "matmul_1", "down": "down", "/mean": "mean",
}  # fmt: skip
"""Op -> node of the fp32 model's trace."""
PREPARED = {**TRACED, "conv": "conv", "block.a": "block_a"}
FX_FOLDED = {"bn": "conv", "/relu": "conv", "block.relu": "block.a"}
OBSERVERS = {
    "conv": 1, "block.a": 2, "block.b": 3, "block/add": 4, "up": 7, "/matmul": 9, "/softmax": 10, "/matmul_1": 11,
    "down": 12, "/mean": 13,
}  # fmt: skip
"""Op -> number of the fake quantizer behind it."""


def at_rest(model: nn.Module, rounds: bool = True) -> Any:
    """A copy in evaluation mode that observes nothing, with or without fake quantization."""
    found = copy.deepcopy(model).eval().apply(ao.disable_observer)
    for module in found.modules():
        if not rounds and isinstance(getattr(module, "enabled", None), bool):  # torchao's
            module.enabled = False
    return found if rounds else found.apply(ao.disable_fake_quant)


def grid_of(fake: Any, dtype: str = "uint8") -> Grid:
    return Grid(float(fake.scale), int(fake.zero_point), fake.quant_min, fake.quant_max, dtype)


def weight_of(mine: Array, theirs: Array, fake: Any) -> Weight:
    scale, zero = plain(fake.scale), fake.zero_point.numpy()
    return Weight(mine, Grid(scale, zero, -128, 127).round(theirs, 0), 0, scale, tolerance=1e-4)


def eager(is_alone: bool) -> Case:
    trained = zoo.qat(zoo.made(zoo.Cnn), zoo.images(8))
    model = at_rest(trained, rounds=False) if is_alone else zoo.made(zoo.Cnn)
    ends = {op: op for op in CNN} if is_alone else CNN
    running = at_rest(trained)
    fakes = {op: running.get_submodule(op).activation_post_process for op in ("conv1", "block.conv", "conv3", "fc")}
    fakes["/add"] = running.skip.activation_post_process
    image = running.quant.activation_post_process

    def find(batch: Feeds) -> Truth:
        mine = zoo.hooked(model, batch, [*ends.values(), ADD])
        theirs = zoo.hooked(running, batch, [*CNN, ADD])
        reference = {**{op: mine[end] for op, end in ends.items()}, "/add": mine[ADD]}
        x = torch.from_numpy(batch["x"])

        def read(op: str) -> Any:
            value = torch.from_numpy(reference[op])
            return fakes[op](value) if op in fakes else value

        with torch.no_grad():
            alone = {
                "conv1": running.conv1(image(x)),
                "pool": running.pool(read("conv1")),
                "block.conv": running.block.conv(read("pool")),
                "conv3": running.conv3(read("block.conv")),
                "/add": running.skip.add(read("pool"), read("conv3")),
                "gap": running.gap(read("/add")),
                "fc": running.fc(read("gap").flatten(1)),
            }
        outputs = {**{op: theirs[op] for op in CNN}, "/add": theirs[ADD]}
        isolated = {op: plain(value) for op, value in alone.items()}
        return Truth(reference, outputs, isolated, {"conv1": (batch["x"], plain(image(x)))})

    own = zoo.made(zoo.Cnn)
    norms = {"conv1": own.bn1, "conv3": own.bn3}
    weights = {}
    for op in ("conv1", "block.conv", "conv3", "fc"):
        module = running.get_submodule(op)
        theirs = truth.folded(module.weight, module.bn) if op in norms else plain(module.weight)
        weight = own.get_submodule(op).weight
        apart = truth.folded(weight, norms[op]) if op in norms else plain(weight)
        weights[op] = weight_of(theirs if is_alone else apart, theirs, module.weight_fake_quant)
    grids = {op: grid_of(fake) for op, fake in fakes.items()}
    given = None if is_alone else model
    return Case(given, trained, BATCHES, find, weights, grids, {} if is_alone else CNN_FOLDED)


def fx(is_alone: bool) -> Case:
    trained = zoo.qat_fx(zoo.made(zoo.Functional), zoo.images(8))
    own = zoo.made(zoo.Functional)
    running, silent = at_rest(trained), at_rest(trained, rounds=False)
    fakes = {op: getattr(running, f"activation_post_process_{i}") for op, i in OBSERVERS.items()}
    traced = torch.fx.symbolic_trace(own)

    def read(op: str, value: Any) -> Array:
        with torch.no_grad():
            return plain(fakes[op](value) if op in fakes else value)

    def find(batch: Feeds) -> Truth:
        model, nodes = (silent, PREPARED) if is_alone else (traced, TRACED)
        values = node_values(model, batch)
        reference = {op: plain(values[node]) for op, node in nodes.items()}
        theirs = node_values(running, batch)
        alone = node_values(running, batch, {PREPARED[op]: value for op, value in reference.items()})
        outputs, isolated = ({op: read(op, v[node]) for op, node in PREPARED.items()} for v in (theirs, alone))
        rounded = plain(running.activation_post_process_0(torch.from_numpy(batch["x"])))
        return Truth(reference, outputs, isolated, {"conv": (batch["x"], rounded)})

    weights = {}
    for op in ("conv", "block.a", "block.b", "up", "down"):
        module, weight = running.get_submodule(op), own.get_submodule(op).weight
        theirs = truth.folded(module.weight, module.bn) if op == "conv" else plain(module.weight)
        apart = truth.folded(weight, own.bn) if op == "conv" else plain(weight)
        weights[op] = weight_of(theirs if is_alone else apart, theirs, module.weight_fake_quant)
    grids = {op: grid_of(fake) for op, fake in fakes.items()}
    return Case(None if is_alone else own, trained, BATCHES, find, weights, grids, {} if is_alone else FX_FOLDED)


def torchao(is_alone: bool) -> Case:
    trained = zoo.qat_torchao(zoo.made(zoo.Mlp), zoo.rows(8))
    model = at_rest(trained, rounds=False) if is_alone else zoo.made(zoo.Mlp)
    running = at_rest(trained)
    ops = ("fc1", "act1", "fc2", "act2", "fc3")

    def find(batch: Feeds) -> Truth:
        reference, outputs = (zoo.hooked(m, batch, ops) for m in (model, running))
        isolated, x = {}, batch["x"]
        for op in ops:
            with torch.no_grad():
                isolated[op] = plain(running.get_submodule(op)(torch.from_numpy(x)))
            x = reference[op]
        return Truth(reference, outputs, isolated)

    weights = {}
    for op in ("fc1", "fc2", "fc3"):
        theirs = plain(running.get_submodule(op).weight)
        scale = np.abs(theirs.reshape(len(theirs), -1, 16)).max(-1, keepdims=True) / np.float32(7.5)
        rounded = plain(running.get_submodule(op).weight_fake_quantizer(torch.from_numpy(theirs)))
        steps = rounded.reshape(*scale.shape[:2], 16) / scale
        np.testing.assert_allclose(steps, np.rint(steps), atol=1e-5)
        assert np.abs(steps - np.clip(theirs.reshape(steps.shape) / scale, -8, 7)).max() < 0.5001
        weights[op] = Weight(plain(model.get_submodule(op).weight), rounded, 0, None, "int4", "per block")
    grids = dict.fromkeys(("fc1", "fc2", "fc3"), Grid(None, None, -128, 127, "int8"))
    return Case(None if is_alone else model, trained, [zoo.rows(6, 20), zoo.rows(3, 21)], find, weights, grids)


CASES: dict[str, Callable[[], Case]] = {
    "eager": lambda: eager(False),
    "eager-alone": lambda: eager(True),
    "fx": lambda: fx(False),
    "fx-alone": lambda: fx(True),
    "torchao": lambda: torchao(False),
    "torchao-alone": lambda: torchao(True),
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


def test_the_converted_model_says_what_training_said() -> None:
    """Fake quantization rounds where the real one does, so each op adds nearly the same error.

    Not quite: `convert` lets the observers of weights look once more, and only real kernels round what pooling gives.
    """
    trained = zoo.qat(zoo.made(zoo.Cnn), zoo.images(8), steps=4)
    reference = at_rest(trained, rounds=False)
    converted = ao.convert(copy.deepcopy(trained).eval())
    fake, real = (
        inc_tb.diagnose(reference, model, BATCHES).to_pandas() for model in (copy.deepcopy(trained), converted)
    )
    assert list(fake.index) == list(real.index)
    for op in ("conv1", "block.conv", "conv3", "/add"):
        np.testing.assert_allclose(fake.loc[op, "w_sqnr_db"], real.loc[op, "w_sqnr_db"], atol=0.5)
        np.testing.assert_allclose(fake.loc[op, "act_scale"], real.loc[op, "act_scale"], rtol=1e-6)
        np.testing.assert_allclose(fake.loc[op, "a_sqnr_db"], real.loc[op, "a_sqnr_db"], atol=1)
        np.testing.assert_allclose(fake.loc[op, "added_sqnr_db"], real.loc[op, "added_sqnr_db"], atol=1.5)


def test_a_model_without_its_fake_quantization_keeps_up_with_training() -> None:
    """The reference shares its parameters with the model, so one adapter does for the whole training."""
    batch = zoo.images()
    trained = zoo.qat(zoo.made(zoo.Cnn), batch)
    adapter = TorchAdapter(None, trained)
    adapter.trace(batch)
    zoo.trained(trained, batch, 1)
    expected = zoo.hooked(at_rest(trained, rounds=False), batch, ["fc"])["fc"]
    found = next(pair for pair in adapter.run(batch) if (pair.op, pair.role) == ("fc", "output"))
    np.testing.assert_allclose(found.reference, expected, rtol=1e-5, atol=1e-6)
