from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from inc_tb.adapters.tensorflow.adapter import TensorFlowAdapter
from tests.adapters import tensorflow_zoo as zoo
from tests.adapters.contract import AdapterContract


class Models(NamedTuple):
    reference: Any
    quantized: Any
    batch: zoo.Feeds
    ops: list[str]


def graph_to_lite() -> Models:
    graph_def = zoo.hard()
    return Models(graph_def, zoo.lite(graph_def, "full", zoo.digits(32)), {"input": zoo.digits(3, 50)}, HARD_OPS)


def graph_to_fake() -> Models:
    graph_def = zoo.hard()
    roundings = {"input": zoo.fake_quant(0, 1), "v0/cg/conv0/Relu": zoo.fake_quant(0, 300)}
    roundings |= {"v0/cg/conv1/kernel": zoo.fake_quant([-1] * 32, [1] * 32), "v0/avgpool": zoo.round_trip(0, 20)}
    return Models(graph_def, zoo.rewritten(graph_def, roundings), {"input": zoo.digits(3, 50)}, HARD_OPS)


def keras_to_lite() -> Models:
    model = zoo.keras_net()
    content = zoo.lite(model, "int8", zoo.keras_images(16))
    return Models(model, content, {"img": zoo.keras_images(3, 5)}, KERAS_OPS)


HARD_OPS = [n.name for n in zoo.hard().node if n.op not in ("Const", "Placeholder", "Identity")]
KERAS_OPS = [
    f"net_1/{name}" for name in (
        "conv0_1/convolution", "bn0_1/batchnorm/mul_1", "bn0_1/batchnorm/add_1", "act0_1/Relu6", "dw_1/depthwise",
        "bn1_1/batchnorm/mul_1", "bn1_1/batchnorm/add_1", "hs_1/add", "hs_1/Relu6", "hs_1/truediv", "hs_1/mul",
        "pw_1/convolution", "pw_1/BiasAdd", "add_1/Add", "gap_1/Mean", "fc_1/MatMul", "fc_1/BiasAdd", "fc_1/Softmax",
    )
]  # fmt: skip
CASES = {"graph-lite": graph_to_lite, "graph-fake": graph_to_fake, "keras-lite": keras_to_lite}


@pytest.fixture(scope="module", params=CASES)
def models(request: pytest.FixtureRequest) -> Models:
    return CASES[request.param]()


class TestTensorFlow(AdapterContract):
    @pytest.fixture
    def adapter(self, models: Models) -> TensorFlowAdapter:
        return TensorFlowAdapter(models.reference, models.quantized)

    @pytest.fixture
    def batch(self, models: Models) -> zoo.Feeds:
        return models.batch

    @pytest.fixture
    def expected_ops(self, models: Models) -> list[str]:
        return models.ops


def test_the_kind_of_number_is_converted_where_nothing_is_lost() -> None:
    graph_def = zoo.hard()
    adapter = TensorFlowAdapter(graph_def, zoo.lite(graph_def, "full", zoo.digits(32)))
    whole = np.rint(zoo.digits(2))
    wanted = [pair.quantized for pair in adapter.run({"input": whole})]
    for dtype in (np.float64, np.int32, np.int8):
        found = [pair.quantized for pair in adapter.run({"input": whole.astype(dtype)})]
        for a, b in zip(wanted, found, strict=True):
            np.testing.assert_array_equal(a, b)
