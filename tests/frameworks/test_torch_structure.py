"""Modules that return or read more than a tensor, and ops that have no counterpart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import inc_tb
from inc_tb.frameworks.torch.adapter import TorchAdapter
from tests.frameworks import torch_truth as truth
from tests.frameworks import torch_zoo as zoo
from tests.frameworks.torch_truth import compared, expect, graph_case
from tests.frameworks.torch_zoo import plain

pytestmark = zoo.MARKS

ROWS = [zoo.rows(5, 20, 16), zoo.rows(3, 21, 16)]
SEQUENCES = {"x": np.random.default_rng(3).normal(size=(4, 5, 16)).astype(np.float32)}


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_the_state_of_a_recurrent_layer(kind: type[nn.Module]) -> None:
    """What the next op reads is the second tensor of a tuple."""

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = kind(16, 8, batch_first=True), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            state = self.cell(x)[1]
            return self.head((state[0] if isinstance(state, tuple) else state)[-1])

    model = zoo.made(Last)
    quantized = zoo.dynamic(model, nn.Linear, kind)
    _, pairs = compared(model, quantized, SEQUENCES)
    x = torch.from_numpy(SEQUENCES["x"])
    with torch.no_grad():
        mine, theirs = model.cell(x), quantized.cell(x)
        state = mine[1][0] if isinstance(mine[1], tuple) else mine[1]
        alone = quantized.head(state[-1])
        expect(pairs, "output", {"cell": (plain(mine), plain(theirs)), "head": (plain(model(x)), plain(quantized(x)))})
    expect(pairs, "isolated", {"cell": (plain(mine), plain(theirs)), "head": (plain(model(x)), plain(alone))})


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.att, self.fc = nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, weights = self.att(x, x, x)
        return self.fc(y), weights


@pytest.mark.parametrize("kind", ["dynamic", "pt2e"])
def test_attention_of_torch(kind: str) -> None:
    """A module that returns a tuple; an exported graph has only its nodes, the last of which is not what it is for."""
    model = zoo.made(Attention)
    quantized = zoo.dynamic(model) if kind == "dynamic" else zoo.pt2e(model, SEQUENCES)
    adapter, pairs = compared(model, quantized, SEQUENCES)
    assert [op.name for op in adapter.ops()] == ["att", "fc"]
    x = torch.from_numpy(SEQUENCES["x"])
    with torch.no_grad():
        att, fc = plain(model.att(x, x, x)), plain(model(x))
        expect(pairs, "output", {"fc": (fc, plain(quantized(x)))})
    found = pairs["att", "output"]
    np.testing.assert_allclose(found.reference, att, rtol=1e-5, atol=1e-6)
    # torchao rounds the weights of its projections, quantize_dynamic leaves them alone.
    np.testing.assert_allclose(found.quantized, att, atol=1e-6 if kind == "dynamic" else 0.01 * np.abs(att).max())


def test_a_layer_of_a_transformer() -> None:
    """Its fast path calls none of its modules; ops are found nevertheless."""
    model = zoo.made(lambda: nn.Sequential(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), nn.Linear(16, 4)))
    quantized = zoo.dynamic(model)
    batch = {"input": SEQUENCES["x"]}
    adapter, pairs = compared(model, quantized, batch)
    names = "0.self_attn 0/add 0.norm1 0.linear1 0/relu 0.linear2 0/add_1 0.norm2 1".split()
    assert [op.name for op in adapter.ops()] == names
    paths = [name for name in names if "/" not in name]
    mine, theirs = (zoo.hooked(m, batch, paths) for m in (model, quantized))
    expect(pairs, "output", {path: (mine[path], theirs[path]) for path in paths})


def test_a_layer_of_a_transformer_in_an_exported_graph() -> None:
    """Its attention stays in fp32, so it adds nothing."""
    model = zoo.made(lambda: nn.Sequential(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), nn.Linear(16, 4)))
    batch = {"input": SEQUENCES["x"]}
    _, pairs = compared(model, zoo.pt2e(model, batch), batch)
    mine = zoo.hooked(model, batch, ["0.self_attn"])["0.self_attn"]
    for role in ("output", "isolated"):
        expect(pairs, role, {"0.self_attn": (mine, mine)})


def test_outputs_of_transformers() -> None:
    """A model and its parts return ModelOutput; names are the paths that its configuration files know."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=20, max_position_embeddings=16, **sizes)
    model = zoo.made(lambda: transformers.BertModel(config))
    quantized = zoo.dynamic(model)
    batch = {"input_ids": zoo.tokens()["ids"], "attention_mask": np.ones((4, 5), np.int64)}
    adapter, pairs = compared(model, quantized, batch)
    linear = [path for path, module in model.named_modules() if isinstance(module, nn.Linear)]
    assert {op.name for op in adapter.ops() if op.type == "Linear"} == set(linear)
    assert all(op.compared_at == op.name for op in adapter.ops())
    mine, theirs = (zoo.hooked(m, batch, linear) for m in (model, quantized))
    expect(pairs, "output", {path: (mine[path], theirs[path]) for path in linear})


class Leaky(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(nn.functional.leaky_relu(self.first(x)))


@pytest.mark.parametrize("quantize", [lambda m, _: zoo.dynamic(m), zoo.fx_static], ids=["eager", "fx"])
def test_a_name_that_ends_with_relu_is_no_fused_activation(quantize: Callable[[nn.Module, zoo.Feeds], Any]) -> None:
    model, batch = zoo.made(Leaky), zoo.rows()
    adapter, _ = compared(model, quantize(model, batch), batch)
    assert [(op.name, op.type) for op in adapter.ops()] == [
        ("first", "Linear"), ("/leaky_relu", "leaky_relu"), ("last", "Linear"),
    ]  # fmt: skip


class Wrapped(nn.Module):
    """A module of somebody's own, without any module inside, that returns more than a tensor."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.weight = nn.Parameter(torch.randn(16, 16) / 4)

    def forward(self, x: Tensor) -> Any:
        y = functional.linear(x, self.weight)
        if self.kind == "dict":
            return {"count": 3, "y": y}
        if self.kind == "list":
            return [None, y]
        from transformers.modeling_outputs import BaseModelOutput

        return BaseModelOutput(last_hidden_state=y)


@pytest.mark.parametrize("kind", ["dict", "list", "model-output"])
def test_modules_that_return_more_than_a_tensor(kind: str) -> None:
    """What an op makes from the reference's values needs those values also where they come in a dict."""

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.fc = Wrapped(kind), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            made = self.inner(x)
            return {"logits": self.fc(made[1] if kind == "list" else list(made.values())[-1])}

    model = zoo.made(Outer)
    quantized = zoo.dynamic(model)
    with torch.no_grad():
        quantized.inner.weight.mul_(0.9)
    _, pairs = compared(model, quantized, ROWS[0])
    x = torch.from_numpy(ROWS[0]["x"])
    with torch.no_grad():
        mine = functional.linear(x, model.inner.weight)
        theirs = functional.linear(x, quantized.inner.weight)
        results = plain(model.fc(mine)), plain(quantized.fc(theirs))
        expect(pairs, "output", {"inner": (plain(mine), plain(theirs)), "fc": results})
        expect(pairs, "isolated", {"fc": (results[0], plain(quantized.fc(mine)))})


def test_a_batch_norm_of_an_exported_program_has_its_own_epsilon() -> None:
    model = zoo.made(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, eps=0.1), nn.ReLU()))
    batch = {"input": zoo.images()["x"]}
    quantized = zoo.pt2e(model, batch)
    for reference in (model, zoo.exported(model, batch)):
        _, pairs = compared(reference, quantized, batch)
        assert not truth.differences(pairs["0", "weight"].reference, truth.folded(model[0].weight, model[1]), "weight")


def test_positions_that_depend_on_no_input() -> None:
    """An embedding of positions is an op in every kind of graph."""

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.fc = nn.Embedding(5, 16), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x + self.table(torch.arange(5)))

    model = zoo.made(Positions)
    for quantized in (zoo.dynamic(model), zoo.pt2e(model, SEQUENCES)):
        adapter, pairs = compared(model, quantized, SEQUENCES)
        assert [op.name for op in adapter.ops()] == ["table", "/add", "fc"]
        table = plain(model.table.weight)
        expect(pairs, "output", {"table": (table, table)})


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.act, self.b, self.unused = nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.act(self.a(x)))


def test_ops_without_counterpart_have_a_reason() -> None:
    model = zoo.made(Plain)
    quantized = zoo.dynamic(model)
    quantized.act = nn.Identity()
    found = inc_tb.diagnose(model, quantized, ROWS)
    assert list(found.ops["name"]) == ["a", "act", "b"]
    assert found.missing == {"act": "the quantized model has no counterpart of it"}
    mine, theirs = (np.concatenate([zoo.hooked(m, batch, ["b"])["b"] for batch in ROWS]) for m in (model, quantized))
    np.testing.assert_allclose(found.ops["a_mse"][2], ((mine - theirs) ** 2).mean(), rtol=1e-5)


def test_ops_of_other_shapes_have_a_reason() -> None:
    model = zoo.made(Plain)
    quantized = zoo.dynamic(model)
    quantized.b = nn.Linear(16, 6)
    found = inc_tb.diagnose(model, quantized, ROWS)
    assert list(found.missing) == ["b"]
    assert "(5, 4)" in found.missing["b"]
    assert "(5, 6)" in found.missing["b"]


def test_units_and_blocks() -> None:
    """What is fused changes precision together; a block is the module that an op is in."""
    model = zoo.made(zoo.Cnn)
    adapter = TorchAdapter(model, zoo.static(model, zoo.images()))
    adapter.trace(zoo.images())
    units = {op.name: op.unit for op in adapter.ops()}
    parts = {"bn1": "conv1", "relu1": "conv1", "block.relu": "block.conv", "bn3": "conv3"}
    assert units == {name: parts.get(name, name) for name in units}
    blocks = {op.name: op.block for op in adapter.ops()}
    assert blocks == {name: "block" if name.startswith("block.") else "" for name in blocks}


def test_an_op_of_two_readers_of_which_one_rounds() -> None:
    """The sum gets the ReLU's result as it is, the linear layer gets it rounded."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.a(x))
            return torch.sin(x) + self.b(x)

    model = zoo.made(Two)
    quantized = zoo.pt2e(model, zoo.rows(8, width=16))
    traced = {"a": "a", "/relu": "relu", "/sin": "sin", "b": "b", "/add": "add"}
    nodes = {"a": "linear", "/relu": "relu", "/sin": "sin", "b": "linear_1", "/add": "add"}
    truth.check_pairs(graph_case(model, quantized, ROWS, traced, nodes), "isolated")
