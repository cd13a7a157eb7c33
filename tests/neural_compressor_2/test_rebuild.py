"""Trials of the real Neural Compressor, imported, whose models our quantizers make once more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inc_tb
from inc_tb.sources.neural_compressor.rebuilding import is_foreign, translated
from inc_tb.tuning.loop import rebuild
from tests.neural_compressor_2.tuned import CULPRITS, HARD, IMAGES, Loader, accuracy, config, fit


def trials(logs: Path) -> list[Any]:
    found = [inc_tb.load(folder) for folder in sorted(logs.glob("*/trial-*"))]
    assert len(found) > 2
    return found


def test_onnx(workspace: Path, tmp_path: Path) -> None:
    import onnxruntime

    fit(conf=config("mse_v2", 8))
    inc_tb.import_workspace(workspace, tmp_path / "logs")

    def evaluate(path: Path) -> float:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return accuracy(session.run(None, {"input": IMAGES})[0])

    found = []
    for run in trials(tmp_path / "logs"):
        assert is_foreign(run.trial)
        tool, trial, samples, notes = translated(run.trial, run.diagnosis, HARD)
        made = rebuild(HARD, {"input": IMAGES[:200]}, trial, tmp_path / "a.onnx", samples=samples, quantizer=tool)
        assert sorted(trial.fallback) == sorted(run.trial.fallback)
        assert abs(evaluate(made) - run.trial.accuracy) < 0.05
        assert not any("bit was left unused" in note for note in notes)  # config() tells it
        found.append(sorted(trial.fallback))
    assert CULPRITS in found


def test_torch(workspace: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from tests.hard_network import Network, evaluation

    torch.manual_seed(1)
    network = Network().eval()
    images = torch.tensor(IMAGES)
    evaluate = evaluation(network, images)
    fit(evaluate, config("mse_v2", 6), network, Loader(convert=torch.tensor))
    inc_tb.import_workspace(workspace, tmp_path / "logs")

    kept = []
    for run in trials(tmp_path / "logs"):
        tool, trial, _, _ = translated(run.trial, run.diagnosis, network)
        prepared = tool.prepare(network, tmp_path)
        made = tool.quantize(prepared, tmp_path, [{"image": IMAGES[:200]}], trial.config, trial.fallback)
        assert sorted(trial.fallback) == sorted(run.trial.fallback)
        assert abs(evaluate(made) - run.trial.accuracy) < 0.1
        kept += trial.fallback
    assert kept


def test_mxnet(workspace: Path, tmp_path: Path) -> None:
    pytest.importorskip("mxnet")
    from tests.mxnet import zoo
    from tests.mxnet.test_tune import centered

    network = centered(zoo.with_outliers(zoo.made("residual")))
    data = zoo.images(64, 4)
    own = zoo.results(network, data)
    loader = zoo.loader()
    loader.batch_size = 8

    def evaluate(model: Any) -> float:
        return float((zoo.results(model, data).argmax(1) == own.argmax(1)).mean())

    fit(evaluate, config("mse", 24), network, loader)
    inc_tb.import_workspace(workspace, tmp_path / "logs")
    calibration = [{"data": rows} for rows in np.array_split(zoo.images(16), 2)]
    kept, alike = [], []
    for run in trials(tmp_path / "logs"):
        tool, trial, _, notes = translated(run.trial, run.diagnosis, network)
        made = rebuild(network, calibration, trial, tmp_path / run.trial.name, quantizer=tool)
        if not any("activation_algorithm differed" in note for note in notes):
            assert abs(evaluate(tool.shown(made)) - run.trial.accuracy) < 0.1
            alike.append(run.trial.accuracy)
        assert bool(trial.fallback) == bool(run.trial.fallback)
        kept += trial.fallback
    assert kept
    assert min(alike) < 0.5 < max(alike)
