"""What FX is told to keep in fp32: functions by their place, methods by their name, and whatever only follows them."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import inc_tb
from inc_tb import TorchQuantizer
from inc_tb.frameworks.models import open_results, open_switches
from tests.torch_defects import MARKS, one_thread, seeded

pytestmark = MARKS
NOWHERE = Path("/nonexistent")
SIZE = 8


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


class Parts(nn.Module):
    """What the networks below are made of."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b = (nn.Conv2d(SIZE, SIZE, 3, padding=1) for _ in range(2))
        self.norm, self.act, self.last = nn.BatchNorm2d(SIZE), nn.ReLU6(), nn.LayerNorm(SIZE)
        self.head, self.drop = nn.Linear(SIZE, 5), nn.Dropout(0.1)
        self.way = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.way(self, x))


def methods(m: Any, x: Tensor) -> Tensor:
    return m.b(m.a(x).relu()).relu().mean((2, 3))


def methods_in_place(m: Any, x: Tensor) -> Tensor:
    y = m.a(x).relu_().add(x)
    y += x
    return y.mean((2, 3)).view(x.size(0), x.shape[1] * 2 // 2) * x.mean((2, 3))


def functions(m: Any, x: Tensor) -> Tensor:
    """Of the two relus the first becomes part of a convolution, so that the second is the first one that FX counts."""
    return functional.relu(m.b(functional.relu(m.a(x))) + x).mean((2, 3))


def joined(m: Any, x: Tensor) -> Tensor:
    x = torch.relu(m.a(x))
    y = torch.relu(x + torch.relu(m.b(x)))
    return torch.flatten(functional.adaptive_avg_pool2d(torch.cat([y, x], 1)[:, :SIZE], 1), 1)


def modules_called_twice(m: Any, x: Tensor) -> Tensor:
    return m.act(m.norm(m.a(m.act(m.a(x))))).mean((2, 3))


def gates(m: Any, x: Tensor) -> Tensor:
    return m.a(x).sigmoid().mul(m.b(x).tanh()).sum((2, 3))


def rearranged(m: Any, x: Tensor) -> Tensor:
    x = functional.softmax(functional.hardtanh(m.a(x)).clamp(0, 3).reshape(x.shape[0], -1), -1)
    return x.view(-1, SIZE, 4, 4).permute(0, 2, 3, 1).contiguous()[:, 0, 0].squeeze()


def normed(m: Any, x: Tensor) -> Tensor:
    return m.drop(m.last(functional.hardswish(m.a(x)).flatten(2).transpose(1, 2)).mean(1))


def cut(m: Any, x: Tensor) -> Tensor:
    return functional.max_pool2d(functional.gelu(m.a(x)), 2).chunk(2, 1)[0].repeat(1, 2, 1, 1).mean([2, 3])


WAYS = [methods, methods_in_place, functions, joined, modules_called_twice, gates, rearranged, normed, cut]


def rows() -> list[dict[str, np.ndarray]]:
    return [{"x": np.random.default_rng(0).normal(size=(16, SIZE, 4, 4)).astype(np.float32) * 3}]


def quantized(model: nn.Module, keep: list[str], data: Any) -> nn.Module:
    tool = TorchQuantizer(approach="static")
    return tool.quantize(tool.prepare(model, NOWHERE), NOWHERE, data, tool.settings, keep)


def by_recipe(model: nn.Module, keep: list[str], data: Any) -> nn.Module:
    tool = TorchQuantizer(approach="static")
    ready, batch = tool.prepare(model, NOWHERE), (torch.tensor(data[0]["x"]),)
    given = {"model": ready, "example_inputs": batch, "calibration_batches": [batch]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(tool.recipe(tool.settings, keep), given)
    made: nn.Module = given["quantized"]
    return made


def roundings(model: Any) -> int:
    return sum(node.target is torch.quantize_per_tensor for node in model.graph.nodes)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_with_everything_kept_nothing_is_rounded(way: Callable[[Any, Tensor], Tensor]) -> None:
    data, model = rows(), seeded(lambda: Parts(way)).eval()
    whole = quantized(model, [], data)
    assert roundings(whole)
    switches = open_switches(model, whole)
    switches.trace(data[0])
    units = [unit.name for unit in switches.units]
    expected = open_results(model)(data[0])[0]
    for made in (quantized(model, units, data), by_recipe(model, units, data)):
        assert roundings(made) == 0
        np.testing.assert_allclose(open_results(made)(data[0])[0], expected, rtol=1e-3, atol=1e-4)


def test_a_function_behind_fused_ones_is_counted_as_fx_counts_it() -> None:
    """Only the second relu, behind the sum, is a call of its own in FX; told as the second one it would be rounded."""
    tool = TorchQuantizer(approach="static")
    tool.prepare(seeded(lambda: Parts(functions)), NOWHERE)
    text = tool.recipe(tool.settings, ["/relu_1"])
    assert '.set_module_name_object_type_order("", torch.nn.functional.relu, 0, None)' in text
    assert '.set_module_name("a", None)' in tool.recipe(tool.settings, ["/relu"])  # of which it is part


class Nested(nn.Module):
    """The relu between `front` and `back` is a method, in a block like the other one."""

    def __init__(self, channels: int = 24) -> None:
        super().__init__()
        self.front, self.back = nn.Conv2d(1, channels, 3, padding=1), nn.Conv2d(channels, channels, 3, padding=1)
        self.head = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.back(self.front(x).relu()).relu().mean((2, 3)))


def spoilt(kind: Callable[[], nn.Module], front: str = "front", back: str = "back") -> nn.Module:
    """The same function with two channels between two layers that are thousands of times as large as the others."""
    model: nn.Module = seeded(kind).eval()
    ends = model.get_submodule(front), model.get_submodule(back)
    with torch.no_grad():
        for channel in (3, 7):
            ends[0].weight[channel] *= 5000.0
            ends[0].bias[channel] *= 5000.0
            ends[1].weight[:, channel] /= 5000.0
    return model


class Functions(Nested):
    def forward(self, x: Tensor) -> Tensor:
        x = functional.hardtanh(self.front(x), 0.0, 1e9)
        return self.head(functional.adaptive_avg_pool2d(torch.relu(self.back(torch.cat([x], 1))), 1).flatten(1))


class InPlace(Nested):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.back(self.front(x).relu_().contiguous()).relu_().mean((2, 3)).view(-1, 24))


class Reduced(Nested):
    """What is between has no weights, and other names than in ONNX."""

    def forward(self, x: Tensor) -> Tensor:
        x = functional.interpolate(self.front(x).relu(), scale_factor=2).mean((2, 3), keepdim=True)
        return self.head(self.back(x).relu().flatten(1))


def error(model: nn.Module, made: Any, x: Tensor) -> float:
    with torch.no_grad():
        expected = model(x)
        return float((made(x) - expected).square().mean() / expected.var(0).mean())


@pytest.mark.parametrize("kind", [Nested, Functions, InPlace, Reduced])
@pytest.mark.parametrize("is_probed", [False, True], ids=["from the table", "probed"])
def test_the_first_config_pasted_into_fx_brings_back_what_was_lost(kind: type[Nested], is_probed: bool) -> None:
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    model, x = spoilt(kind), torch.rand(48, 1, 8, 8, generator=torch.Generator().manual_seed(0))

    def fx(mapping: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            prepared = prepare_fx(copy.deepcopy(model), mapping, (x,))
            prepared(x)
            return convert_fx(prepared)

    made = fx(get_default_qconfig_mapping())
    data = {"x": x.numpy()}
    found = inc_tb.probe(model, made, data).diagnosis if is_probed else inc_tb.diagnose(model, made, data)
    first = found.suggestions[0]
    assert {"front", "back"} < set(first.ops)  # both ends, and what is between them
    given: dict[str, Any] = {}
    exec(first.recipes["torch"], given)
    lost, left = error(model, made, x), error(model, fx(given["qconfig_mapping"]), x)
    assert lost > 0.1
    assert left < 0.1 * lost
