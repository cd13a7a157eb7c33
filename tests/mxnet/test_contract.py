from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

from inc_tb import MxnetQuantizer
from inc_tb.frameworks.mxnet import FRAMEWORK
from inc_tb.frameworks.mxnet.adapter import MxnetAdapter
from tests.frameworks.contracts.adapter import AdapterContract, TableContract
from tests.frameworks.contracts.framework import FrameworkContract
from tests.frameworks.contracts.quantizer import QuantizerContract
from tests.frameworks.contracts.switchable import SwitchableContract
from tests.frameworks.contracts.timer import TimerContract
from tests.frameworks.contracts.tiny import Tiny
from tests.mxnet import zoo

DEPTHWISE = [
    "net_conv0_fwd", "net_batchnorm0_fwd", "net_relu0_fwd", "net_conv1_fwd", "net_batchnorm1_fwd", "net_relu1_fwd",
    "net_conv2_fwd", "net_pool0_fwd", "net_flatten0_flatten0", "net_dense0_fwd",
]  # fmt: skip


class Case(NamedTuple):
    network: str
    calibration: str = "naive"
    excluded: tuple[str, ...] = ()


CASES = {
    "residual-naive": Case("residual"),
    "residual-entropy": Case("residual", "entropy"),
    "residual-1": Case("residual-1"),
    "depthwise": Case("depthwise"),
    "dense": Case("dense"),
    "concat": Case("concat"),
    "kept": Case("depthwise", excluded=("sg_mkldnn_conv_bn_act_1", "net_pool0_fwd")),
    "run-time-ranges": Case("residual-1", "none"),
    "called-twice": Case("twice"),
}


@pytest.fixture(scope="module", params=CASES)
def models(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    return zoo.pair(*CASES[request.param])


class TestMxnet(AdapterContract):
    @pytest.fixture
    def adapter(self, models: tuple[Any, Any]) -> MxnetAdapter:
        return MxnetAdapter(*models)

    @pytest.fixture
    def batch(self) -> dict[str, zoo.Array]:
        return {"data": zoo.images(3, 5)}

    @pytest.fixture
    def expected_ops(self, models: tuple[Any, Any]) -> list[str]:
        names = zoo.op_names(models[0])
        seen = [names[:i].count(name) for i, name in enumerate(names)]
        return [f"{name}/{n + 1}" if n else name for name, n in zip(names, seen, strict=True)]


def test_names_are_the_users() -> None:
    adapter = MxnetAdapter(*zoo.pair("depthwise"))
    adapter.trace({"data": zoo.images(2)})
    assert [op.name for op in adapter.ops()] == DEPTHWISE
    units = {op.name: (op.unit, op.module) for op in adapter.ops()}
    assert units["net_relu0_fwd"] == ("net_conv0_fwd", "sg_mkldnn_conv_bn_act_0")
    assert units["net_pool0_fwd"] == ("net_pool0_fwd", "net_pool0_fwd")
    assert units["net_dense0_fwd"] == ("net_dense0_fwd", "sg_mkldnn_fully_connected_0")


def test_the_kind_of_number_is_converted_where_nothing_is_lost() -> None:
    adapter = MxnetAdapter(*zoo.pair("dense"))
    whole = np.rint(zoo.images(2))
    wanted = [pair.quantized for pair in adapter.run({"data": whole})]
    for dtype in (np.float64, np.int32, np.int8):
        found = [pair.quantized for pair in adapter.run({"data": whole.astype(dtype)})]
        for a, b in zip(wanted, found, strict=True):
            np.testing.assert_array_equal(a, b)


def test_another_instance_of_the_same_network_is_recognized() -> None:
    """gluon gives each instance other names."""
    adapter = MxnetAdapter(zoo.made("depthwise", "net3_"), zoo.pair("depthwise")[1])
    pairs = [p for p in adapter.run({"data": zoo.images(2)}) if p.role == "output"]
    assert [p.op for p in pairs][:2] == ["net3_conv0_fwd", "net3_conv1_fwd"]
    assert all(np.abs(p.reference - p.quantized).max() < 0.1 * np.abs(p.reference).max() for p in pairs)


def test_a_batch_that_does_not_fit_the_memory_is_run_in_parts() -> None:
    data = {"data": zoo.images(7)}
    whole = {(p.op, p.role): p for p in MxnetAdapter(*zoo.pair("depthwise")).run(data)}
    parts: dict[tuple[str, str], list[zoo.Array]] = {}
    for p in MxnetAdapter(*zoo.pair("depthwise"), memory_budget=100_000).run(data):
        parts.setdefault((p.op, p.role), []).append(p.quantized)
    assert parts.keys() == whole.keys()
    assert all(len(found) > 1 for found in parts.values())
    for key, found in parts.items():
        np.testing.assert_allclose(np.concatenate(found), whole[key].quantized, rtol=1e-5, atol=1e-6)


class TestTwoInputs(AdapterContract):
    @pytest.fixture
    def adapter(self) -> MxnetAdapter:
        return MxnetAdapter(*zoo.two_inputs())

    @pytest.fixture
    def batch(self) -> dict[str, zoo.Array]:
        return {"data0": zoo.tokens(3, 5), "data1": zoo.images(3, 5)}

    @pytest.fixture
    def expected_ops(self) -> list[str]:
        return [
            "two_embedding0_fwd", "two_dense0_fwd", "two_layernorm0_layernorm0", "two_mean0", "two_dense1_fwd",
            "two__plus0", "two_activation0", "two_dense2_fwd",
        ]  # fmt: skip


def made_tiny() -> Tiny:
    return Tiny(*zoo.tiny_pair(), zoo.TINY_NAMES, "data")


class TestTable(TableContract):
    @pytest.fixture(scope="class")
    @classmethod
    def tiny(cls) -> Tiny:
        return made_tiny()


class TestSwitches(SwitchableContract):
    @pytest.fixture(scope="class")
    @classmethod
    def tiny(cls) -> Tiny:
        return made_tiny()


class TestTimer(TimerContract):
    @pytest.fixture(scope="class")
    @classmethod
    def tiny(cls) -> Tiny:
        return made_tiny()


class TestQuantizer(QuantizerContract):
    make = staticmethod(MxnetQuantizer)
    wrong: ClassVar = {"calibration": "minmax"}

    @pytest.fixture(scope="class")
    @classmethod
    def tiny(cls) -> Tiny:
        return made_tiny()

    @staticmethod
    def told(op: str) -> str:
        """What oneDNN makes of the three layers."""
        at = ["net_first_fwd", "net_second_fwd", "net_side_fwd"].index(op)
        return f"sg_mkldnn_fully_connected_{at}"


class TestFramework(FrameworkContract):
    framework = FRAMEWORK

    @pytest.fixture
    def models(self, tmp_path: Path) -> list[Any]:
        network = zoo.tiny_pair()[0]
        network.export(str(tmp_path / "net"))
        files = [tmp_path / name for name in ("net-symbol.json", "net-0000.params")]
        symbol = zoo.mx.sym.load(str(files[0]))
        return [network, symbol, (symbol, {}, {}), tmp_path, tmp_path / "net", *files]
