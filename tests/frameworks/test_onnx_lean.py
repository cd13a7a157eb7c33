from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from inc_tb.frameworks.onnx.lean import make_lean, weights_of
from inc_tb.frameworks.onnx.model import DEQUANTIZE, Model
from inc_tb.frameworks.onnx.sessions import Session
from inc_tb.frameworks.ops import Batch
from tests.frameworks import onnx_zoo as zoo


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Batch]:
    """Two layers large enough to matter, and one that is not."""
    net, folder = zoo.Net(0), tmp_path_factory.mktemp("lean")
    x = net.input("x", "n", 64)
    y = net.op("Mul", "product", net.linear("left", x, 64, 128), net.linear("right", x, 64, 128))
    net.output(net.linear("last", y, 128, 8))
    int8 = zoo.static(net.save(folder, "net.onnx"), zoo.data(net, 4), act="QUInt8", per_channel=True)
    return Model(int8), zoo.data(net, 5)


def with_an_equal_tensor(model: Model) -> tuple[onnx.ModelProto, str]:
    """It gives the product, the same dequantized once more, and the sum of the two."""
    (at,) = (node for node in model.nodes if node.op_type == DEQUANTIZE and node.input[0].startswith("product"))
    more = [
        helper.make_node(DEQUANTIZE, list(at.input), ["again"], "again"),
        helper.make_node("Add", [at.output[0], "again"], ["doubled"], "doubled"),
    ]
    return model.with_outputs([*model.outputs, at.output[0], "doubled"], more), at.output[0]


def dequantized(proto: onnx.ModelProto) -> list[str]:
    return [node.output[0] for node in proto.graph.node if node.op_type == DEQUANTIZE]


def test_weights_are_given_and_equal_tensors_computed_once_with_the_same_values(case: tuple[Model, Batch]) -> None:
    model, feeds = case
    (plain, _), (lean, product) = with_an_equal_tensor(model), with_an_equal_tensor(model)
    given = make_lean(lean, weights_of(model, 1 << 20))
    assert [array.shape for array in given.values()] == [(64, 128), (64, 128)]
    assert set(dequantized(plain)) - set(dequantized(lean)) == {*given, "again"}
    assert sum(t.ByteSize() for t in lean.graph.initializer) < sum(t.ByteSize() for t in plain.graph.initializer) / 2
    wanted = Session(model, plain, arena=True).run(feeds)
    found = Session(model, lean, arena=True, weights=given).run(feeds)
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert product in dequantized(lean)


def test_what_is_asked_for_stays_even_where_it_is_computed_twice(case: tuple[Model, Batch]) -> None:
    model, feeds = case
    lean, _ = with_an_equal_tensor(model)
    lean.graph.output.append(helper.make_empty_tensor_value_info("again"))
    make_lean(lean, {})
    *_, product, doubled, again = Session(model, lean, arena=True).run(feeds)
    np.testing.assert_array_equal(product, again)
    np.testing.assert_array_equal(product + again, doubled)


def test_weights_that_do_not_fit_stay_as_they_are(case: tuple[Model, Batch]) -> None:
    assert len(weights_of(case[0], 4 * 64 * 128)) == 1
    assert not weights_of(case[0], 4 * 64 * 128 - 1)
