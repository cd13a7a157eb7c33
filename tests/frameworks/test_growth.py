"""The work grows with the model, not with its square, however its ops lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.growth import Net, equal_ops, layers, model
from inc_tb.frameworks.onnx.graph import Graph
from inc_tb.frameworks.onnx.likeness import Likeness
from inc_tb.frameworks.onnx.match import Matching
from inc_tb.frameworks.onnx.model import Model

WORK = ((Matching, "_fits"), (Likeness, "_weight_likeness"), (Likeness, "_settings"), (Likeness, "_computation"))


def products(net: Net, count: int) -> str:
    x = net.rounded("x")
    return net.add("Sum", *(net.add("MatMul", x, "w") for _ in range(count)))


def behind_one_product(net: Net, count: int) -> str:
    x = net.rounded(net.add("MatMul", net.rounded("x"), "w"))
    return net.add("Sum", *(net.add("Relu", x) for _ in range(count)))


def only_in_the_reference(net: Net, count: int) -> str:
    x = net.rounded("x")
    if not net.is_quantized:
        for _ in range(count):
            net.add("Sigmoid", x)
    return net.add("MatMul", x, "w")


@pytest.mark.parametrize("make", [equal_ops, layers, products, behind_one_product, only_in_the_reference])
def test_matching_twice_as_many_ops_compares_twice_as_often(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[Net, int], str]
) -> None:
    compared = [0]
    for place, name in WORK:
        monkeypatch.setattr(place, name, _counted(getattr(place, name), compared))
    found = []
    for count in (200, 400):
        compared[0] = 0
        graphs = [Graph(Model(model(make, count, is_quantized=quantized))) for quantized in (False, True)]
        matching = Matching(*graphs)
        found.append(compared[0])
        if make is not only_in_the_reference:
            assert not matching.missing
            assert [m.twin.index for m in matching.matches.values()] == list(range(len(matching.matches)))
    assert found[1] <= 2.1 * found[0]


def _counted(plain: Callable[..., Any], compared: list[int]) -> Callable[..., Any]:
    def counted(*given: Any) -> Any:
        compared[0] += 1
        return plain(*given)

    return counted
