from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from onnxruntime.quantization import QuantType

from inc_tb import OnnxRuntimeQuantizer
from inc_tb.frameworks.onnx import FRAMEWORK
from inc_tb.frameworks.onnx.adapter import OnnxAdapter
from tests.frameworks import onnx_zoo as zoo
from tests.frameworks.contracts.adapter import AdapterContract, TableContract
from tests.frameworks.contracts.framework import FrameworkContract
from tests.frameworks.contracts.quantizer import QuantizerContract
from tests.frameworks.contracts.switchable import SwitchableContract
from tests.frameworks.contracts.timer import TimerContract
from tests.frameworks.contracts.tiny import Tiny, X

CASES = {
    "qdq": (zoo.cnn, lambda path, feeds: zoo.static(path, feeds)),
    "qoperator": (zoo.branches, lambda path, feeds: zoo.static(path, feeds, form="QOperator", per_channel=True)),
    "dynamic": (zoo.attention, lambda path, _: zoo.dynamic(path)),
    "dynamic-optimized": (zoo.attention, lambda path, _: zoo.optimized(zoo.dynamic(path))),
    "two-inputs": (zoo.tokens, lambda path, feeds: zoo.static(path, feeds)),
    "half": (zoo.half_mlp, lambda path, feeds: zoo.static(path, feeds)),
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[zoo.Net, Path, Path]:
    make, quantize = CASES[request.param]
    net = make()
    path = net.save(tmp_path_factory.mktemp(request.param))
    return net, path, quantize(path, zoo.data(net, 4, length=5))


class TestOnnx(AdapterContract):
    @pytest.fixture
    def adapter(self, case: tuple[zoo.Net, Path, Path]) -> OnnxAdapter:
        return OnnxAdapter(*case[1:])

    @pytest.fixture
    def batch(self, case: tuple[zoo.Net, Path, Path]) -> dict[str, zoo.Array]:
        return zoo.data(case[0], 3, length=5)

    @pytest.fixture
    def expected_ops(self, case: tuple[zoo.Net, Path, Path]) -> list[str]:
        """All but those that give no real numbers."""
        return [node.name for node in case[0].nodes if node.op_type != "ArgMax"]


TINY: dict[str, Callable[[Path], Path]] = {
    "qdq": lambda path: zoo.static(path, {"x": X}, reduce_range=False),
    "qoperator": lambda path: zoo.static(path, {"x": X}, form="QOperator", per_channel=True, reduce_range=False),
    "dynamic": lambda path: zoo.dynamic(path, weight_type=QuantType.QInt8, reduce_range=False),
}


def made_tiny(way: str, folder: Path) -> Tiny:
    path = zoo.tiny_net().save(folder)
    return Tiny(path, TINY[way](path))


@pytest.fixture(scope="module", params=TINY)
def each_tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return made_tiny(request.param, tmp_path_factory.mktemp(request.param))


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
    @pytest.fixture(scope="class")
    @classmethod
    def tiny(cls, each_tiny: Tiny) -> Tiny:
        return each_tiny


class TestQuantizer(QuantizerContract):
    make = staticmethod(OnnxRuntimeQuantizer)
    wrong: ClassVar = {"calibrator": "maximum"}

    @pytest.fixture(scope="class")
    @classmethod
    def tiny(cls, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
        return made_tiny("qdq", tmp_path_factory.mktemp("tiny"))


class TestDynamicQuantizer(TestQuantizer):
    settings: ClassVar = {"approach": "dynamic"}
    wrong: ClassVar = {"approach": "dynamics"}


class TestFramework(FrameworkContract):
    framework = FRAMEWORK

    @pytest.fixture
    def models(self, tmp_path: Path) -> list[Any]:
        paths = [zoo.tiny_net().save(tmp_path, name) for name in ("model.onnx", "MODEL2.ONNX")]
        return [*paths, str(paths[0]), zoo.tiny_net().model()]


def test_the_kind_of_number_is_converted_where_nothing_is_lost(tmp_path: Path) -> None:
    net = zoo.mlp()
    reference = net.save(tmp_path)
    feeds = zoo.data(net)
    adapter = OnnxAdapter(reference, zoo.static(reference, feeds))
    whole: dict[str, Any] = {"x": np.rint(feeds["x"] * 4)}
    wanted = [pair.quantized for pair in adapter.run({"x": whole["x"].astype(np.float32)})]
    for dtype in (np.float64, np.int32, np.int8):
        found = [pair.quantized for pair in adapter.run({"x": whole["x"].astype(dtype)})]
        for a, b in zip(wanted, found, strict=True):
            np.testing.assert_array_equal(a, b)
