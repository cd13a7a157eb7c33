from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

from inc_tb import TensorFlowQuantizer
from inc_tb.frameworks.tensorflow import FRAMEWORK
from inc_tb.frameworks.tensorflow.adapter import TensorFlowAdapter
from tests.frameworks import tensorflow_zoo as zoo
from tests.frameworks.contracts.adapter import AdapterContract, TableContract
from tests.frameworks.contracts.framework import FrameworkContract
from tests.frameworks.contracts.quantizer import QuantizerContract
from tests.frameworks.contracts.switchable import SwitchableContract
from tests.frameworks.contracts.timer import TimerContract
from tests.frameworks.contracts.tiny import STEP, WEIGHTS, Tiny


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


def fake_quantized() -> Any:
    """As by training with fake quantization: what ops read, and all weights."""
    largest = 127 * STEP
    rounded = {f"{name}.w": zoo.fake_quant(-largest, largest, narrow=True) for name in WEIGHTS}
    rounded |= {"x": zoo.fake_quant(-1, 1), "relu": zoo.fake_quant(0, 2.25)}
    return zoo.rewritten(zoo.tiny_graph(), rounded)


TINY: dict[str, Callable[[], Any]] = {"lite": zoo.tiny_lite, "fake": fake_quantized}


@cache
def made_tiny(way: str) -> Tiny:
    return Tiny(zoo.tiny_graph(), TINY[way]())


@pytest.fixture(scope="module", params=TINY)
def each_tiny(request: pytest.FixtureRequest) -> Tiny:
    return made_tiny(request.param)


class TestTable(TableContract):
    @pytest.fixture(scope="class")
    @classmethod
    def tiny(cls, each_tiny: Tiny) -> Tiny:
        return each_tiny


class TestSwitches(SwitchableContract):
    @pytest.fixture(scope="class")
    @classmethod
    def tiny(cls, each_tiny: Tiny) -> Tiny:
        return each_tiny


class TestTimer(TimerContract):
    """Of the graph, and of the TFLite file."""

    @pytest.fixture(scope="class")
    @classmethod
    def tiny(cls, each_tiny: Tiny) -> Tiny:
        return each_tiny


class TestLiteQuantizer(QuantizerContract):
    make = staticmethod(TensorFlowQuantizer)
    wrong: ClassVar = {"activation_type": "int4"}

    @staticmethod
    def told(op: str) -> str:
        """TFLite joins an activation with the op before it, and numbers what it has to tell from a tensor."""
        return {"first": "first;relu", "second": "second1"}.get(op, op)

    @pytest.fixture(scope="class")
    @classmethod
    def tiny(cls) -> Tiny:
        return made_tiny("lite")


class TestSavedModelQuantizer(TestLiteQuantizer):
    settings: ClassVar = {"approach": "saved-model"}
    wrong: ClassVar = {"approach": "saved"}
    told = staticmethod(QuantizerContract.told)


class TestFramework(FrameworkContract):
    framework = FRAMEWORK

    @pytest.fixture
    def models(self, tmp_path: Path) -> list[Any]:
        graph_def, lite = zoo.tiny_graph(), made_tiny("lite").quantized
        files = {"model.pb": graph_def.SerializeToString(), "model.tflite": lite, "model.keras": b"", "model.h5": b""}
        for name, content in files.items():
            (tmp_path / name).write_bytes(content)
        return [graph_def, lite, bytearray(lite), zoo.keras_net(), tmp_path, *(tmp_path / name for name in files)]


def test_the_kind_of_number_is_converted_where_nothing_is_lost() -> None:
    graph_def = zoo.hard()
    adapter = TensorFlowAdapter(graph_def, zoo.lite(graph_def, "full", zoo.digits(32)))
    whole = np.rint(zoo.digits(2))
    wanted = [pair.quantized for pair in adapter.run({"input": whole})]
    for dtype in (np.float64, np.int32, np.int8):
        found = [pair.quantized for pair in adapter.run({"input": whole.astype(dtype)})]
        for a, b in zip(wanted, found, strict=True):
            np.testing.assert_array_equal(a, b)
