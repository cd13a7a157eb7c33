"""Tunings of PyTorch models under log(), with the real Neural Compressor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import inc_tb
from inc_tb.integrations.neural_compressor import log
from tests.hard_network import Network, evaluation
from tests.neural_compressor_2.tuned import IMAGES, Loader, config, fit, history


@pytest.fixture
def network() -> Network:
    torch.manual_seed(0)
    return Network().eval()


def loader() -> Loader:
    return Loader(convert=torch.tensor)


def runs(logdir: Path) -> list[Any]:
    return [inc_tb.load(path) for path in sorted(logdir.glob("trial-*"))]


def types(run: Any) -> dict[str, str]:
    return dict(zip(run.ops["name"], run.ops["weight_dtype"], strict=True))


def test_static(network: Network, tmp_path: Path, workspace: Path) -> None:
    with log(tmp_path):
        fit(evaluation(network, torch.tensor(IMAGES)), config("mse_v2", 6), network, loader())
    found = runs(tmp_path)
    assert [run.trial.accuracy for run in found] == list(history(workspace).values())
    assert len(found) > 2
    first = found[0]
    assert first.trial.accuracy < first.trial.target < first.trial.baseline == 1.0
    assert (first.diagnosis.reference, first.diagnosis.samples) == ("Network", 32)
    assert {"conv1", "conv2"} <= set(first.suggestions[0].ops)
    kept = {op for run in found for op in run.trial.fallback}
    assert kept
    for run in found:
        assert [name for name in ("conv1", "conv2", "fc") if not types(run)[name]] == sorted(run.trial.fallback)


def test_dynamic(network: Network, tmp_path: Path) -> None:
    with log(tmp_path):
        fit(evaluation(network, torch.tensor(IMAGES)), config(approach="dynamic"), network, loader())
    first = runs(tmp_path)[0]
    assert first.trial.config["activation_quant_mode"] == "dynamic"
    assert types(first) | {"fc": "int8", "conv1": ""} == types(first)


def test_no_evaluation(network: Network, tmp_path: Path) -> None:
    """It then quantizes the only model that there is, in place."""
    with log(tmp_path):
        assert fit(None, config(), network, loader()) is not None
    (run,) = runs(tmp_path)
    assert types(run)["conv1"] == "int8"
    assert run.diagnosis.notes == []


def test_a_dataloader_of_torch_and_batches_by_name(network: Network, tmp_path: Path) -> None:
    """Random numbers and what the loader counts are as they would be without a log."""
    rows = [({"image": torch.tensor(image)}, 0) for image in IMAGES[:64]]
    data = torch.utils.data.DataLoader(rows, batch_size=8, shuffle=True)
    with log(tmp_path, samples=20):
        fit(None, config(), network, data)
    (run,) = runs(tmp_path)
    assert run.diagnosis.samples == 20
