"""Which call is which, where modules, weights and tensors serve more than once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from tests.frameworks import torch_truth as truth
from tests.frameworks import torch_zoo as zoo
from tests.frameworks.torch_truth import Case, compared, expect, graph_case
from tests.frameworks.torch_zoo import plain

pytestmark = zoo.MARKS

ROWS = [zoo.rows(5, 20, 16), zoo.rows(3, 21, 16)]


def pick(values: Mapping[str, Any], nodes: Mapping[str, str]) -> dict[str, Any]:
    return {op: values[node] for op, node in nodes.items()}


def check_graph(case: Case) -> None:
    truth.check_ops(case)
    for role in ("output", "isolated", "input"):
        truth.check_pairs(case, role)


class Repeated(nn.Module):
    """One layer three times."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.t = nn.Linear(16, 16), nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.t(self.a(x))
        return x


REPEATED = dict(zip("a t a/2 t/2 a/3 t/3".split(), "a t a_1 t_1 a_2 t_2".split(), strict=True))
REPEATED_EXPORTED = dict(zip(REPEATED, "linear tanh linear_1 tanh_1 linear_2 tanh_2".split(), strict=True))


@pytest.mark.parametrize("kind", ["dynamic", "torchao-like", "bf16"])
def test_calls_of_one_module_are_counted(kind: str) -> None:
    model = zoo.made(Repeated)
    quantized = {"dynamic": zoo.dynamic, "torchao-like": zoo.by_hand, "bf16": zoo.bf16}[kind](model)
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    adapter, pairs = compared(model, quantized, ROWS[0])
    mine, theirs = zoo.hooked(model, ROWS[0], ["a", "t"]), zoo.hooked(quantized, ROWS[0], ["a", "t"], dtype)
    assert [op.name for op in adapter.ops()] == list(REPEATED)
    expect(pairs, "output", {op: (mine[op], theirs[op]) for op in REPEATED})
    sources = {"a": ROWS[0]["x"], "a/2": mine["t"], "a/3": mine["t/2"]}
    with torch.no_grad():
        alone = {op: plain(quantized.a(torch.from_numpy(x).to(dtype))) for op, x in sources.items()}
    expect(pairs, "isolated", {op: (mine[op], y) for op, y in alone.items()})
    assert {op for op, role in pairs if role == "weight"} == {"a", "a/2", "a/3"}


def test_calls_of_one_module_are_counted_in_fx() -> None:
    model = zoo.made(Repeated)
    check_graph(graph_case(model, zoo.fx_static(model, zoo.rows(8, width=16)), ROWS, REPEATED, REPEATED))


@pytest.mark.parametrize("is_exported", [False, True])
def test_calls_of_one_module_are_counted_in_exported_graphs(is_exported: bool) -> None:
    model = zoo.made(Repeated)
    case = graph_case(model, zoo.pt2e(model, zoo.rows(8, width=16)), ROWS, REPEATED, REPEATED_EXPORTED)
    case.reference = zoo.exported(model, ROWS[0]) if is_exported else model
    check_graph(case)


class OneRelu(nn.Module):
    """As ResNet: one ReLU for all places, some of which are fused with what is before them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.a(x))
        y = self.relu(torch.sin(x))
        return self.c(self.relu(y + self.b(x)))


ONE_RELU = dict(
    zip("a relu /sin relu/2 b /add relu/3 c".split(), "a relu sin relu_1 b add relu_2 c".split(), strict=True)
)


def test_one_relu_for_all_that_is_fused_here_and_there() -> None:
    model = zoo.made(OneRelu)
    nodes = {"a": "a", "/sin": "sin", "relu/2": "relu_1", "b": "b", "/add": "add_relu", "c": "c"}
    quantized = zoo.fx_static(model, zoo.rows(8, width=16))
    check_graph(graph_case(model, quantized, ROWS, ONE_RELU, nodes, {"relu": "a", "relu/3": "/add"}))


def test_one_relu_for_all_in_an_exported_graph() -> None:
    model = zoo.made(OneRelu)
    names = "linear relu sin relu_1 linear_1 add relu_2 linear_2".split()
    quantized = zoo.pt2e(model, zoo.rows(8, width=16))
    check_graph(graph_case(model, quantized, ROWS, ONE_RELU, dict(zip(ONE_RELU, names, strict=True))))


class Relus(nn.Module):
    """The first and the last function are fused with what is before them, the other one is not."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.a(x))
        x = functional.relu(torch.sin(x))
        return self.c(functional.relu(x + self.b(x)))


def test_functions_that_are_fused_here_and_there() -> None:
    model = zoo.made(Relus)
    traced = dict(
        zip("a /relu /sin /relu_1 b /add /relu_2 c".split(), "a relu sin relu_1 b add relu_2 c".split(), strict=True)
    )
    nodes = {"a": "a", "/sin": "sin", "/relu_1": "relu_1", "b": "b", "/add": "add_relu", "c": "c"}
    quantized = zoo.fx_static(model, zoo.rows(8, width=16))
    check_graph(graph_case(model, quantized, ROWS, traced, nodes, {"/relu": "a", "/relu_2": "/add"}))


class Registered(nn.Module):
    """A module under two names, and weights under three."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(16, 16)
        self.b = self.a
        self.c = nn.Linear(16, 16)
        self.c.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))


REGISTERED = dict(zip("a /tanh a/2 /tanh_1 c".split(), "a tanh a_1 tanh_1 c".split(), strict=True))


def test_modules_and_weights_with_several_names() -> None:
    """Dynamic quantization replaces the first name only; the module stays in fp32 under the other one."""
    model = zoo.made(Registered)
    quantized = zoo.dynamic(model)
    adapter, pairs = compared(model, quantized, ROWS[0])
    assert type(quantized.b) is nn.Linear
    assert [op.name for op in adapter.ops()] == list(REGISTERED)
    mine = {op: plain(v) for op, v in pick(truth.node_values(fx.symbolic_trace(model), ROWS[0]), REGISTERED).items()}
    theirs = zoo.hooked(quantized, ROWS[0], ["a", "b", "c"])
    expect(pairs, "output", {op: (mine[op], theirs[path]) for op, path in {"a": "a", "a/2": "b", "c": "c"}.items()})
    weight = plain(model.a.weight)
    back = plain(quantized.a.weight())
    expect(pairs, "weight", {"a": (weight, back), "a/2": (weight, weight), "c": (weight, back)})


@pytest.mark.parametrize("kind", ["fx", "pt2e"])
def test_modules_and_weights_with_several_names_in_graphs(kind: str) -> None:
    """FX calls one module twice, which then has one scale for what it makes: that of the last call."""
    model, rows = zoo.made(Registered), zoo.rows(8, width=16)
    quantized = zoo.fx_static(model, rows) if kind == "fx" else zoo.pt2e(model, rows)
    names = REGISTERED.values() if kind == "fx" else "linear tanh linear_1 tanh_1 linear_2".split()
    case = graph_case(model, quantized, ROWS, REGISTERED, dict(zip(REGISTERED, names, strict=True)))
    check_graph(case)
    weights = {pair.op: pair.reference for pair in case.adapter.weights()}
    assert set(weights) == {"a", "a/2", "c"}
    for found in weights.values():
        np.testing.assert_array_equal(found, plain(model.a.weight))


def test_tied_weights() -> None:
    """The table of an embedding is the head, too; only the head is quantized."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(20, 16), nn.Linear(16, 20, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.embedding(ids))

    model = zoo.made(Tied)
    _, pairs = compared(model, zoo.dynamic(model), {"ids": zoo.tokens()["ids"]})
    table = plain(model.embedding.weight)
    scale = np.float32(np.abs(table).max() / np.float32(127.5))
    expect(
        pairs, "weight", {"embedding": (table, table), "head": (table, truth.Grid(scale, 0, -128, 127).round(table))}
    )


class InPlace(nn.Module):
    """Everything that can be is done in place."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.r, self.b, self.c = nn.Linear(16, 16), nn.ReLU(inplace=True), nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.r(self.a(x))
        y = self.b(x)
        y += x
        z = self.c(y)
        z.mul_(2)
        return functional.relu(z, inplace=True)


IN_PLACE = dict(zip("a r b /add c /mul /relu".split(), "a r b add c mul_ relu".split(), strict=True))


@pytest.mark.parametrize("kind", ["dynamic", "bf16"])
def test_values_that_are_changed_in_place(kind: str) -> None:
    model = zoo.made(InPlace)
    quantized, dtype = (zoo.dynamic(model), torch.float32) if kind == "dynamic" else (zoo.bf16(model), torch.bfloat16)
    adapter, pairs = compared(model, quantized, ROWS[0])
    assert [op.name for op in adapter.ops()] == list(IN_PLACE)
    x = torch.from_numpy(ROWS[0]["x"])
    values = []
    for m, given in ((model, x), (quantized, x.to(dtype))):
        with torch.no_grad():
            a = m.a(given)
            r = a.relu()
            b = m.b(r)
            c = m.c(b + r)
        found = {"a": a, "r": r, "b": b, "/add": b + r, "c": c, "/mul": 2 * c, "/relu": (2 * c).relu()}
        values.append({op: plain(value) for op, value in found.items()})
    expect(pairs, "output", {op: (values[0][op], values[1][op]) for op in IN_PLACE})
    mine = {op: torch.from_numpy(value).to(dtype) for op, value in values[0].items()}
    with torch.no_grad():
        alone = {
            "r": mine["a"].relu(),
            "b": quantized.b(mine["r"]),
            "/add": mine["b"] + mine["r"],
            "/mul": 2 * mine["c"],
        }
    expect(pairs, "isolated", {op: (values[0][op], plain(value)) for op, value in alone.items()})


def test_values_that_are_changed_in_place_in_an_exported_graph() -> None:
    model = zoo.made(InPlace)
    names = "linear relu_ linear_1 add_ linear_2 mul_ relu__1".split()
    quantized = zoo.pt2e(model, zoo.rows(8, width=16))
    case = graph_case(model, quantized, ROWS, IN_PLACE, dict(zip(IN_PLACE, names, strict=True)))
    check_graph(case)
    table = case.column("a_min")
    assert table["a"] < 0 < -table["b"]
