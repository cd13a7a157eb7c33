"""Tunings of MXNet models under log(), with the real Neural Compressor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inc_tb
from inc_tb.integrations.neural_compressor import log
from tests.neural_compressor_2.tuned import config, fit, history

pytest.importorskip("mxnet")


def test_a_network_of_gluon(tmp_path: Path, workspace: Path) -> None:
    from tests.mxnet import zoo

    network = zoo.made("depthwise")
    data = zoo.images(64, 4)
    own = zoo.results(network, data)
    loader = zoo.loader()
    loader.batch_size = 8

    def evaluate(model: Any) -> float:
        return float((zoo.results(model, data).argmax(1) == own.argmax(1)).mean())

    with log(tmp_path, samples=8):
        fit(evaluate, config(trials=2), network, loader)
    runs = [inc_tb.load(path) for path in sorted(tmp_path.glob("trial-*"))]
    assert [run.trial.accuracy for run in runs] == list(history(workspace).values())
    first = runs[0]
    assert first.trial.baseline == 1.0
    assert first.diagnosis.samples == 8
    assert first.diagnosis.notes == []
    assert "int8" in set(first.ops["weight_dtype"])
    assert np.isfinite(first.ops["a_sqnr_db"]).sum() > 3
