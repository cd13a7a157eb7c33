from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inc_tb.adapters.onnx.adapter import OnnxAdapter
from tests.adapters import onnx_zoo as zoo
from tests.adapters.contract import AdapterContract

CASES = {
    "qdq": (zoo.cnn, lambda path, feeds: zoo.static(path, feeds)),
    "qoperator": (zoo.branches, lambda path, feeds: zoo.static(path, feeds, form="QOperator", per_channel=True)),
    "dynamic": (zoo.attention, lambda path, _: zoo.dynamic(path)),
    "dynamic-optimised": (zoo.attention, lambda path, _: zoo.optimised(zoo.dynamic(path))),
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
