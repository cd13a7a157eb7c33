"""Networks made at random, each run by the test itself, module by module, and compared number by number."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn
from torch.ao import quantization as ao
from torch.ao.nn.quantized import FloatFunctional

from tests.frameworks import torch_truth as truth
from tests.frameworks import torch_zoo as zoo
from tests.frameworks.torch_truth import DYNAMIC, Case, Grid, Truth, Weight
from tests.frameworks.torch_zoo import Array, Feeds, plain

pytestmark = zoo.MARKS


class Step(NamedTuple):
    op: str
    kind: str
    sources: tuple[int, ...]
    part_of: str = ""
    """The layer that static quantization makes it part of."""


class Net(nn.Module):
    """Layers, batch norms, activations and sums of earlier values, all of one shape."""

    def __init__(self, seed: int, is_eager: bool) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        self.has_channels = bool(rng.integers(2))
        self.is_eager = is_eager
        self.quant, self.dequant = (ao.QuantStub(), ao.DeQuantStub()) if is_eager else (nn.Identity(), nn.Identity())
        self.steps: list[Step] = []
        self.ends = [0]
        adds = 0
        for i in range(6):
            kind = str(rng.choice(["layer", "layer", "layer", "tanh", "relu", "add"])) if i else "layer"
            source = self.ends[-1]
            if kind == "layer":
                self._layer(f"layer{i}", source, rng)
            elif kind == "tanh":
                self._step(f"tanh{i}", nn.Tanh(), source)
            elif kind == "relu":
                self._step(f"relu{i}", nn.ReLU(), source)
            else:
                self.steps.append(Step(f"/add_{adds}" if adds else "/add", "add", (source, int(rng.choice(self.ends)))))
                self.add_module(f"sum{adds}", FloatFunctional() if is_eager else nn.Identity())
                adds += 1
            self.ends.append(len(self.steps))

    def _layer(self, name: str, source: int, rng: np.random.Generator) -> None:
        groups, size = ((1, 1), (1, 3), (4, 3))[rng.integers(3)]
        layer = nn.Conv2d(4, 4, size, padding=size // 2, groups=groups) if self.has_channels else nn.Linear(16, 16)
        nn.init.normal_(layer.weight, std=1.5 / np.sqrt(layer.weight[0].numel()))
        self._step(name, layer, source)
        if self.has_channels and rng.integers(2):
            self._step(f"{name}_norm", nn.BatchNorm2d(4), len(self.steps), name)
        if rng.integers(2):
            self._step(f"{name}_relu", nn.ReLU(inplace=bool(rng.integers(2))), len(self.steps), name)

    def _step(self, op: str, module: nn.Module, source: int, part_of: str = "") -> None:
        self.add_module(op, module)
        self.steps.append(Step(op, type(module).__name__, (source,), part_of))

    def run(self, x: Any) -> list[Any]:
        """The input, and what each step makes."""
        values = [self.quant(x)]
        for step in self.steps:
            values.append(self.call(step, *(values[i] for i in step.sources)))
        return values

    def call(self, step: Step, *given: Any) -> Any:
        if step.kind != "add":
            return self.get_submodule(step.op)(given[0])
        if not self.is_eager:
            return given[0] + given[1]
        return self.get_submodule(f"sum{step.op.removeprefix('/add').removeprefix('_') or 0}").add(*given)

    def forward(self, x: Tensor) -> Tensor:
        return self.dequant(self.run(x)[-1])

    @property
    def fused(self) -> list[list[str]]:
        chains: dict[str, list[str]] = {}
        for step in self.steps:
            if step.part_of:
                chains.setdefault(step.part_of, [step.part_of]).append(step.op)
        return list(chains.values())


def batch_of(net: Net, samples: int, seed: int) -> Feeds:
    shape = (samples, 4, 5, 5) if net.has_channels else (samples, 16)
    return {"x": np.random.default_rng(seed).normal(size=shape).astype(np.float32)}


def by_step(net: Net, x: Tensor) -> list[Any]:
    """The same without anything done in place, so that every value is still there at the end."""
    apart = copy.deepcopy(net)
    for module in apart.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
    with torch.no_grad():
        return apart.run(x)


def eager_case(net: Net, quantized: Any, kernels: str = "") -> Case:
    """With kernels it is static: the modules of a chain are one, with the name of the first; else each is by itself."""
    parts = {step.op: step.part_of for step in net.steps if step.part_of and kernels}
    ends = {parts.get(step.op, step.op): i + 1 for i, step in enumerate(net.steps)}
    steps = [step for step in net.steps if step.op not in parts]

    def find(batch: Feeds) -> Truth:
        x = torch.from_numpy(batch["x"])
        mine, theirs = by_step(net, x), by_step(quantized, x)
        isolated = {}
        for step in steps:
            given = [like(mine[i], theirs[i]) for i in step.sources]
            with torch.no_grad():
                isolated[step.op] = plain(quantized.call(step, *(value.clone() for value in given)))
        reference, outputs = ({op: plain(values[i]) for op, i in ends.items()} for values in (mine, theirs))
        first = steps[0].op
        inputs = {first: (batch["x"], plain(theirs[0]))} if theirs[0].is_quantized else {}
        return Truth(reference, outputs, isolated, inputs)

    batches = [batch_of(net, 5, 30), batch_of(net, 2, 31)]
    with zoo.engine(kernels or "x86"):
        results = by_step(quantized, torch.from_numpy(batches[0]["x"]))
    grids = {op: truth.per_tensor(results[i]) for op, i in ends.items() if results[i].is_quantized}
    return Case(net, quantized, batches, find, {}, grids, parts, kernels=kernels or "x86")


def like(value: Tensor, other: Tensor) -> Tensor:
    return truth.to_grid(plain(value), truth.per_tensor(other)) if other.is_quantized else value


def own_weights(net: Net, is_folded: bool) -> dict[str, Array]:
    found = {}
    for step in net.steps:
        if step.kind in ("Conv2d", "Linear"):
            norm = dict(net.named_children()).get(f"{step.op}_norm") if is_folded else None
            weight = net.get_submodule(step.op).weight
            found[step.op] = truth.folded(weight, norm) if norm is not None else plain(weight)
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kernels", zoo.ENGINES)
def test_static(kernels: str, seed: int) -> None:
    net = zoo.made(lambda: Net(seed, True), seed)
    quantized = zoo.static(net, batch_of(net, 16, 40), kernels)
    case = eager_case(net, quantized, kernels)
    weights = own_weights(net, True)
    case.weights = {op: truth.packed_weight(w, quantized.get_submodule(op).weight(), 1e-4) for op, w in weights.items()}
    check(case)


@pytest.mark.parametrize("seed", range(10, 16))
def test_dynamic(seed: int) -> None:
    net = zoo.made(lambda: Net(seed, False), seed)
    quantized = zoo.dynamic(net)
    case = eager_case(net, quantized)
    case.weights = {op: Weight(w, w, dtype="") for op, w in own_weights(net, False).items()}
    if not net.has_channels:
        case.weights = {
            op: truth.packed_weight(w.reference, quantized.get_submodule(op).weight()) for op, w in case.weights.items()
        }
        case.grids = dict.fromkeys(case.weights, DYNAMIC)
    check(case)


@pytest.mark.parametrize("name", ["Int8DynamicActivationInt8WeightConfig", "Int8WeightOnlyConfig"])
@pytest.mark.parametrize("seed", [10, 12, 14])
def test_torchao(seed: int, name: str) -> None:
    import torchao.quantization

    net = zoo.made(lambda: Net(seed, False), seed)
    quantized = zoo.torchao(net, getattr(torchao.quantization, name)())
    case = eager_case(net, quantized)
    case.weights = {op: Weight(w, w, dtype="") for op, w in own_weights(net, False).items()}
    if not net.has_channels:
        for op, weight in case.weights.items():
            stored = quantized.get_submodule(op).weight
            scale = plain(stored.scale)
            back = stored.qdata.numpy().astype(np.float32) * scale
            case.weights = {**case.weights, op: Weight(weight.reference, back, 0, scale.ravel())}
        if "Dynamic" in name:
            case.grids = dict.fromkeys(case.weights, Grid(None, None, -128, 127, "int8"))
    check(case)


@pytest.mark.parametrize("seed", range(20, 26))
def test_fx(seed: int) -> None:
    """Whatever activation is gone was made part of what is before it."""
    net = zoo.made(lambda: Net(seed, False), seed)
    quantized = zoo.fx_static(net, batch_of(net, 16, 40))
    traced = fx.symbolic_trace(net)
    names = {step.op: step.op for step in net.steps if step.kind != "add"}
    found = {str(n.target): n.name for n in quantized.graph.nodes if n.op == "call_module"}
    nodes = {op: found[op] for op in names if op in found}
    sums = [n.name for n in quantized.graph.nodes if n.op == "call_function" and "add" in n.name]
    named = [n.name for n in traced.graph.nodes if n.op == "call_function"]
    adds = [step.op for step in net.steps if step.kind == "add"]
    nodes |= dict(zip(adds, sums, strict=True))
    folded: dict[str, str] = {}
    for step in net.steps:
        if step.op not in nodes:
            before = net.steps[step.sources[0] - 1].op
            folded[step.op] = folded.get(before, before)
    check_graph(net, quantized, {**names, **dict(zip(adds, named, strict=True))}, nodes, folded)


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("seed", range(30, 34))
def test_pt2e(seed: int, is_dynamic: bool) -> None:
    """Only batch norms are gone; of every kind the first node is the first op."""
    net = zoo.made(lambda: Net(seed, False), seed)
    quantized = zoo.pt2e(net, batch_of(net, 16, 40), is_dynamic)
    prefixes = {"Conv2d": "conv2d", "Linear": "linear", "Tanh": "tanh", "ReLU": "relu", "add": "add"}
    waiting = {
        kind: [n.name for n in quantized.graph.nodes if n.op == "call_function" and n.name.startswith(prefix)]
        for kind, prefix in prefixes.items()
    }
    kept = [step for step in net.steps if step.kind in prefixes]
    nodes = {step.op: waiting[step.kind].pop(0) for step in kept}
    assert not any(waiting.values())
    named = [n.name for n in fx.symbolic_trace(net).graph.nodes if n.op == "call_function"]
    traced = {step.op: named.pop(0) if step.kind == "add" else step.op for step in net.steps}
    folded = {step.op: step.part_of for step in net.steps if step.kind == "BatchNorm2d"}
    check_graph(net, quantized, traced, nodes, folded, is_dynamic)


def check_graph(
    net: Net,
    quantized: fx.GraphModule,
    traced: Mapping[str, str],
    nodes: Mapping[str, str],
    folded: Mapping[str, str],
    is_dynamic: bool = False,
) -> None:
    case = truth.graph_case(net, quantized, [batch_of(net, 5, 30), batch_of(net, 2, 31)], traced, nodes, folded)
    weights = own_weights(net, True)
    if hasattr(quantized, "_frozen_param0"):
        found = {}
        for i, (op, w) in enumerate(weights.items()):
            scale = plain(getattr(quantized, f"_scale_{i}"))
            integers = getattr(quantized, f"_frozen_param{i}").numpy().astype(np.float32)
            found[op] = Weight(w, integers * scale.reshape(-1, *[1] * (w.ndim - 1)), 0, scale, tolerance=1e-4)
        case.weights = found
    else:
        modules = {op: quantized.get_submodule(op).weight() for op in weights}
        case.weights = {op: truth.packed_weight(w, modules[op], 1e-4) for op, w in weights.items()}
    if is_dynamic:
        case.grids = {**case.grids, **{op.name: DYNAMIC for op in case.adapter.ops() if op.activation is not None}}
        assert set(case.weights) <= set(case.grids)
    check(case)


def check(case: Case) -> None:
    truth.check_ops(case)
    for role in ("output", "isolated", "input"):
        truth.check_pairs(case, role)
    truth.check_weights(case)
    truth.check_columns(case)
    truth.check_quantization(case)
