"""The examples with TensorFlow run as their texts say."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import inc_tb
from tests.test_examples import run


@pytest.mark.slow
def test_tensorflow_outlier_op(tmp_path: Path) -> None:
    printed = run("tensorflow_outlier_op.py", tmp_path)
    first, by_mse, cured = (inc_tb.load(tmp_path / f"trial-00{i}").trial for i in (1, 2, 3))
    assert first.accuracy < first.baseline - 0.2
    assert by_mse.accuracy < by_mse.baseline - 0.1
    assert len(by_mse.fallback) == 5
    assert cured.fallback[0] == "v0/cg/conv0/conv2d/Conv2D"
    assert all(op.startswith("v0/cg/conv0/conv2d/") for op in cured.fallback)  # with what is computed together with it
    assert cured.accuracy > cured.baseline - 0.01
    place, of = map(int, re.search(r"Conv2D is number (\d+) of (\d+)", printed).groups())
    assert place > of - 3

    found = inc_tb.load(tmp_path / "trial-001").diagnosis
    assert found.suggestions[0].rule == "weights_per_tensor"
    row = list(found.ops["name"]).index("v0/cg/conv0/conv2d/Conv2D")
    assert found.ops["w_min"][row] == -20
    assert found.ops["w_channel_ratio"][row] > 20
    others = np.delete(np.array(found.ops["w_max"], float), row)
    assert np.nanmax(np.abs(others)) < 20
