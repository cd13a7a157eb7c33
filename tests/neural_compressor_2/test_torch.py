"""Tunings of PyTorch models under log(), with the real Neural Compressor."""

from __future__ import annotations

import gc
import sys
import weakref
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

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


@pytest.mark.parametrize("has_generator", [False, True])
def test_a_dataloader_of_torch_and_batches_by_name(has_generator: bool, network: Network, tmp_path: Path) -> None:
    """The samples of each trial are those that it would see without a log."""
    rows = [({"image": torch.tensor(image)}, 0) for image in IMAGES[:64]]
    evaluate, conf = evaluation(network, torch.tensor(IMAGES)), config(trials=3, calibration_sampling_size=[16])
    drawn: list[list[list[int]]] = []
    for logged in (nullcontext(), log(tmp_path, samples=20)):
        torch.manual_seed(0)
        seen: list[list[int]] = []

        def collate(batch: list[Any], seen: list[list[int]] = seen) -> Any:
            seen.append([next(i for i, row in enumerate(rows) if row is given) for given in batch])
            return torch.utils.data.default_collate(batch)

        generator = torch.Generator().manual_seed(3) if has_generator else None
        data = torch.utils.data.DataLoader(rows, 8, shuffle=True, generator=generator, collate_fn=collate)
        with logged:
            fit(evaluate, conf, network, data)
        drawn.append([batch for batch in seen if len(batch) == 8])
    assert len(drawn[0]) >= 6
    assert drawn[1] == drawn[0]
    assert [run.diagnosis.samples for run in runs(tmp_path)] == [20] * 3


def test_no_calibration_dataloader(network: Network, tmp_path: Path) -> None:
    """What the fp32 model is evaluated with is taken."""
    from neural_compressor import quantization

    images = torch.tensor(IMAGES[:200])
    evaluate = evaluation(network, images)
    calibrations = {"dynamic": None, "static": lambda model: model(images[:40])}
    for approach, calibrate in calibrations.items():
        with log(tmp_path / approach):
            quantization.fit(network, config(trials=1, approach=approach), calib_func=calibrate, eval_func=evaluate)
        (run,) = runs(tmp_path / approach)
        assert run.diagnosis.samples == 32
        assert types(run)["fc"] == "int8"


class Normed(nn.Module):
    """What SmoothQuant can take the scales of."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(64, 32), nn.LayerNorm(32), nn.Linear(32, 10)

    def forward(self, image: torch.Tensor) -> Any:
        return self.last(self.norm(self.first(image.flatten(1))))


def test_smooth_quant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers are rescaled, and are no longer those of the fp32 model."""
    unused = ModuleType("peft")  # it is imported for models of another kind
    unused.PeftModel = type("PeftModel", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "peft", unused)
    network = Normed().eval()
    recipes = {"smooth_quant": True, "smooth_quant_args": {"alpha": 0.5, "folding": True}}
    with log(tmp_path):
        fit(evaluation(network, torch.tensor(IMAGES)), config(recipes=recipes), network, loader())
    (run,) = runs(tmp_path)
    assert run.trial.config["smooth_quant"]
    assert any(note.startswith("not diagnosed: SmoothQuant") for note in run.trial.notes)
    assert run.diagnoses == {}


@pytest.mark.parametrize("diagnose", [False, True])
def test_models_are_not_kept(diagnose: bool, tmp_path: Path) -> None:
    kept = []
    with log(tmp_path, diagnose=diagnose) as logged:
        for _ in range(2):
            network = Network().eval()
            kept.append(weakref.ref(network))
            fit(evaluation(network, torch.tensor(IMAGES)), config(trials=1), network, loader())
            del network
        gc.collect()
        assert [model() is not None for model in kept] == [False, diagnose]
    gc.collect()
    assert [model() for model in kept] == [None, None]
    assert len(logged.runs) == 2
