"""Models of FX and torch.export against the values of their nodes, which fx.Interpreter gives, and against numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from torch import fx

from tests.frameworks import torch_truth as truth
from tests.frameworks import torch_zoo as zoo
from tests.frameworks.torch_truth import Case, Grid, Weight
from tests.frameworks.torch_zoo import Array, plain

pytestmark = zoo.MARKS

BATCHES = [zoo.images(5, 20), zoo.images(3, 21)]
WEIGHTED = ("conv", "block.a", "block.b", "up", "down")
TRACED = {
    "conv": "conv", "bn": "bn", "/relu": "relu", "block.a": "block_a", "block.relu": "block_relu", "block.b": "block_b",
    "block/add": "add", "up": "up", "/matmul": "matmul", "/div": "truediv", "/softmax": "softmax",
    "/matmul_1": "matmul_1", "down": "down", "/mean": "mean",
}  # fmt: skip
"""Op -> node of fx.symbolic_trace."""
EXPORTED = {
    "conv": "conv2d", "/relu": "relu", "block.a": "conv2d_1", "block.relu": "relu_", "block.b": "conv2d_2",
    "block/add": "add", "up": "linear", "/matmul": "matmul", "/div": "div", "/softmax": "softmax",
    "/matmul_1": "matmul_1", "down": "linear_1", "/mean": "mean",
}  # fmt: skip
"""Op -> node of the quantized model; of the batch norm nothing is left."""
CONVERTED = {
    "conv": "conv", "block.a": "block_a", "block.b": "block_b", "block/add": "add_1", "up": "up", "/matmul": "matmul_2",
    "/div": "truediv", "/softmax": "softmax", "/matmul_1": "matmul_3", "down": "down", "/mean": "mean",
}  # fmt: skip
FX_FOLDED = {"bn": "conv", "/relu": "conv", "block.relu": "block.a"}


def graph_case(
    reference: Any,
    quantized: fx.GraphModule,
    nodes: Mapping[str, str],
    folded: Mapping[str, str],
    weights: Mapping[str, Weight],
    dynamic: tuple[str, ...] = (),
) -> Case:
    case = truth.graph_case(zoo.made(zoo.Functional), quantized, BATCHES, TRACED, nodes, folded, dynamic)
    return replace(case, reference=reference or case.reference, weights=weights)


def reference_weights() -> dict[str, Array]:
    model = zoo.made(zoo.Functional)
    own = {op: plain(model.get_submodule(op).weight) for op in WEIGHTED}
    return {**own, "conv": truth.folded(model.conv.weight, model.bn)}


def fx_static(per_channel: bool) -> Case:
    quantized = zoo.functional_models("fx" if per_channel else "fx-per-tensor").quantized
    weights = {
        op: truth.packed_weight(x, quantized.get_submodule(op).weight(), 1e-4) for op, x in reference_weights().items()
    }
    return graph_case(None, quantized, CONVERTED, FX_FOLDED, weights)


def pt2e(is_dynamic: bool = False, refer: Callable[..., Any] | None = None) -> Case:
    model, quantized, _ = zoo.functional_models("pt2e-dynamic" if is_dynamic else "pt2e")
    weights = {}
    for i, (op, x) in enumerate(reference_weights().items()):
        scale = plain(getattr(quantized, f"_scale_{i}"))
        integers = getattr(quantized, f"_frozen_param{i}").numpy().astype(np.float32)
        back = integers * scale.reshape(-1, *[1] * (x.ndim - 1))
        weights[op] = Weight(x, back, 0, scale, tolerance=1e-4)
    dynamic = (*WEIGHTED, "block/add") if is_dynamic else ()
    reference = refer(zoo.exported(model, zoo.images())) if refer is not None else None
    return graph_case(reference, quantized, EXPORTED, {"bn": "conv"}, weights, dynamic)


def neural_compressor(is_dynamic: bool = False) -> Case:
    """Its files keep float weights, with the batch norm folded in, and round them when they run."""
    quantized = zoo.functional_models("inc-dynamic" if is_dynamic else "inc-static").quantized
    nodes = {node.name: node for node in quantized.graph.nodes}
    weights = {}
    for i, (op, x) in enumerate(reference_weights().items()):
        own = plain(quantized.get_submodule(op).weight)
        if is_dynamic:
            scale = np.float32(nodes[f"quantize_per_tensor_default{f'_{i}' if i else ''}"].args[1])
            back = Grid(scale, 0, -128, 127).round(own)
            weights[op] = Weight(x, back, 0, np.array([scale]), "int8", "per tensor", tolerance=1e-4)
        else:
            scale = plain(getattr(quantized, f"_scale_{i}"))
            weights[op] = Weight(x, Grid(scale, 0 * scale, -128, 127).round(own, 0), 0, scale, tolerance=1e-4)
    dynamic = (*WEIGHTED, "block/add") if is_dynamic else ()
    return graph_case(None, quantized, EXPORTED, {"bn": "conv"}, weights, dynamic)


CASES: dict[str, Callable[[], Case]] = {
    "fx": lambda: fx_static(True),
    "fx-per-tensor": lambda: fx_static(False),
    "pt2e": pt2e,
    "pt2e-dynamic": lambda: pt2e(True),
    "pt2e-exported-program": lambda: pt2e(False, lambda program: program),
    "pt2e-dynamic-exported-module": lambda: pt2e(True, lambda program: program.module()),
    "inc-static": neural_compressor,
    "inc-dynamic": lambda: neural_compressor(True),
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


def linear(case: Case, x: Array, op: str) -> Array:
    return x @ case.weights[op].quantized.T + plain(zoo.made(zoo.Functional).get_submodule(op).bias)


def test_a_linear_layer_by_plain_arithmetic() -> None:
    """Its input's rounding belongs to it, as that of its weights; its output is not rounded."""
    case = made("pt2e")
    for pairs in case.pairs:
        before = pairs["/matmul_1", "output"].reference
        wanted = linear(case, case.grids["/matmul_1"].round(before), "down")
        np.testing.assert_allclose(pairs["down", "isolated"].quantized, wanted, rtol=1e-4, atol=1e-6)


def test_a_linear_layer_of_fx_by_plain_arithmetic() -> None:
    case = made("fx")
    for pairs in case.pairs:
        before = pairs["/matmul_1", "output"].reference
        real = linear(case, case.grids["/matmul_1"].round(before), "down")
        far = np.abs(pairs["down", "isolated"].quantized - case.grids["down"].round(real)) > 1e-5
        assert far.mean() < 0.02


def test_a_dynamic_linear_layer_by_plain_arithmetic() -> None:
    case = made("pt2e-dynamic")
    for pairs in case.pairs:
        before = pairs["/matmul_1", "output"].reference
        low, high = min(before.min(), 0), max(before.max(), 0)
        scale = np.float32((high - low) / 255)
        wanted = linear(case, Grid(scale, -np.rint(low / scale), 0, 255).round(before), "down")
        np.testing.assert_allclose(pairs["down", "isolated"].quantized, wanted, rtol=1e-4, atol=1e-6)


def test_functions_by_plain_arithmetic() -> None:
    """The FX model adds and takes the softmax of what was rounded to the grids of what they read."""
    case = made("fx")
    for pairs in case.pairs:
        mine = {
            op: case.grids[op].round(pair.reference)
            for (op, role), pair in pairs.items()
            if role == "output" and op in case.grids
        }
        total = case.grids["block/add"].round(mine["conv"] + mine["block.b"])
        far = np.abs(pairs["block/add", "isolated"].quantized - total) > 1e-5
        assert far.mean() < 0.02
        scores = pairs["/div", "output"].reference
        e = np.exp(scores - scores.max(-1, keepdims=True))
        wanted = case.grids["/softmax"].round(e / e.sum(-1, keepdims=True))
        far = np.abs(pairs["/softmax", "isolated"].quantized - wanted) > 1e-5
        assert far.mean() < 0.02
