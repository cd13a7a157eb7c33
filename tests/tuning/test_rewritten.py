"""Tunings whose best trial has rewritten the fp32 model: what is left of them, and that it can be made again."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from onnxruntime.quantization import CalibrationDataReader

import inc_tb
from inc_tb import Trial, Tuned
from inc_tb.tuning.loop import rebuild
from tests.outliers import Plain, injected, lost, samples
from tests.torch_defects import MARKS, one_thread
from tests.tuning.test_tune import HARD, accuracy, calibration, results, tune_hard

pytestmark = MARKS


class Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self._left = iter({"input": rows} for rows in np.split(calibration(), 8))

    def get_next(self) -> Any:
        return next(self._left, None)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    return tune_hard(tmp_path_factory.mktemp("rewritten"), rewrite=True, diagnosis_samples=0)


def test_the_hard_model_needs_nothing_in_fp32(tuned: Tuned) -> None:
    assert tuned.met
    assert tuned.best.fallback == []
    (rewrite,) = tuned.best.config["rewrites"]
    assert (rewrite["kind"], rewrite["ops"]) == ("equalize", ["/conv1/Conv", "/conv2/Conv"])
    assert tuned.trials[0].config["rewrites"] == []
    assert any("rewrite of the fp32 model that change" in note for note in tuned.best.notes)


def test_the_printed_recipe_gives_the_best_model(tuned: Tuned, tmp_path: Path) -> None:
    run = tuned.model.parent / tuned.best.name
    assert f"with the 1 rewrite of {run}" in tuned.recipe.splitlines()[0]
    again = tmp_path / "again.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(tuned.recipe, {"model_output": again, "calibration_data_reader": Reader()})
    images = calibration()
    assert np.array_equal(results(again, images), results(tuned.model, images))


def test_the_trial_is_made_again_and_so_is_its_fp32_model(tuned: Tuned, tmp_path: Path) -> None:
    again = rebuild(HARD, calibration(), tuned.best, tmp_path / "again.onnx", logdir=tuned.model.parent)
    assert again.read_bytes() == tuned.model.read_bytes()
    rewritten = inc_tb.apply(HARD, tuned.model.parent / tuned.best.name)
    (tmp_path / "fp32.onnx").write_bytes(rewritten.SerializeToString())
    images = calibration()
    assert np.array_equal(results(tmp_path / "fp32.onnx", images), results(HARD, images))


def test_a_trial_from_before_there_were_rewrites_is_made_again(tuned: Tuned, tmp_path: Path) -> None:
    config = {name: value for name, value in tuned.best.config.items() if name not in ("rewrites", "op_types")}
    old = Trial("trial-009", config=config, fallback=["/conv1/Conv", "/conv2/Conv"])
    made = rebuild(HARD, calibration(), old, tmp_path / "old.onnx", logdir=tmp_path)
    assert accuracy(str(made)) > tuned.trials[0].accuracy  # type: ignore[operator]


def test_a_pytorch_model_its_recipe_and_the_stored_one(tmp_path: Path) -> None:
    model, data = injected(Plain, "grouped", ("last",), 0, 400.0), samples(Plain, 0)
    x = torch.from_numpy(data["x"])

    def outputs(found: Any) -> Any:
        with torch.no_grad():
            return found(x).numpy()

    own = outputs(model)
    tool = inc_tb.TorchQuantizer(approach="static", per_channel=False)
    with one_thread():
        found = inc_tb.tune(
            model, [data], lambda candidate: 1 - lost(own, outputs(candidate)), quantizer=tool, objectives=(),
            diagnosis_samples=0, tolerance=0.05, logdir=tmp_path / "log",
        )  # fmt: skip
        assert found.met
        assert (found.best.fallback, len(found.best.config["rewrites"])) == ([], 1)
        assert f"model = inc_tb.apply(model, {str(tmp_path / 'log' / found.best.name)!r})" in found.recipe
        given = {"model": model, "example_inputs": (x,), "calibration_batches": [(x,)]}
        exec(found.recipe, given)
        assert np.array_equal(outputs(given["quantized"]), outputs(found.quantized))
        stored = inc_tb.save(found, tmp_path / "stored")
        loaded = inc_tb.load_model(stored, injected(Plain, "grouped", ("last",), 3, 1.0))  # whatever its weights are
        assert np.array_equal(outputs(loaded), outputs(found.quantized))
    assert msgspec.convert(found.best.config["rewrites"], list[inc_tb.Rewrite])[0].ops == ["grouped", "last"]
