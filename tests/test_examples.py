"""Every example runs as its text says, and its log can be read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import inc_tb

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, folder: Path) -> str:
    command = [sys.executable, str(EXAMPLES / name), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_tested() -> None:
    source = "".join(path.read_text() for path in Path(__file__).parent.rglob("test_*examples.py"))
    for path in EXAMPLES.glob("*.py"):
        assert f'"{path.name}"' in source


def test_onnx_fallback(tmp_path: Path) -> None:
    assert "trial 2" in run("onnx_fallback.py", tmp_path)
    first, second = (inc_tb.load(tmp_path / f"trial-00{i}").trial for i in (1, 2))
    assert first.accuracy < first.baseline - 0.2
    assert second.accuracy > second.baseline - 0.01


def test_existing_logging(tmp_path: Path) -> None:
    assert "step 20" in run("existing_logging.py", tmp_path)
    assert set(inc_tb.load(tmp_path / "training").diagnoses) == {0, 10, 20}


def test_tune_onnx(tmp_path: Path) -> None:
    printed = run("tune_onnx.py", tmp_path)
    first, cured, last = (inc_tb.load(tmp_path / f"trial-00{i}").trial for i in (1, 2, 3))
    assert first.accuracy < first.baseline - 0.2
    assert first.accuracy < cured.accuracy < cured.target
    assert cured.config["per_channel"]
    assert last.accuracy >= last.target
    assert last.fallback == ["/conv1/Conv", "/conv2/Conv"]
    assert (tmp_path / "best_model.onnx").is_file()
    assert 'nodes_to_exclude=[\n        "/conv1/Conv",' in printed


def test_shapley_objective(tmp_path: Path) -> None:
    run("shapley_objective.py", tmp_path)
    first, second = (inc_tb.load(tmp_path / f"trial-00{i}").trial.objectives for i in (1, 3))
    assert set(first) == {"latency_ms", "size_kb", "shapley_mse"}
    assert second["shapley_mse"] < first["shapley_mse"] / 10


def test_shapley_values_are_those_of_the_definition() -> None:
    """With a linear score a part's value is its weight times what it adds, whatever the order."""
    from examples import shapley_objective as example

    class Linear:
        def run(self, _: None, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
            return [feeds["image"].reshape(-1, 64) @ weights]

    rng = np.random.default_rng(0)
    weights, images, blank = rng.normal(size=(64, 3)), rng.normal(size=(2, 1, 8, 8)), rng.normal(size=(1, 8, 8))
    example.onnxruntime = SimpleNamespace(InferenceSession=lambda _: Linear())
    found = example.shapley_values("", images, blank, np.array([0, 2]))
    parts = (images - blank)[:, 0] * np.stack([weights[:, 0], weights[:, 2]]).reshape(2, 8, 8)
    expected = parts.reshape(2, 4, 2, 4, 2).sum(axis=(2, 4)).reshape(2, 16)
    assert found == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
def test_qat_training(tmp_path: Path) -> None:
    assert "step 200" in run("qat_training.py", tmp_path)
    assert set(inc_tb.load(tmp_path / "qat").diagnoses) == set(range(20, 201, 20))


@pytest.mark.slow
def test_train_demo_model(tmp_path: Path) -> None:
    accuracy = float(run("train_demo_model.py", tmp_path).split()[-1])
    assert accuracy > 0.93
    assert (tmp_path / "digits_cnn.onnx").stat().st_size > 50_000


@pytest.mark.alone
def test_slow_int8(tmp_path: Path) -> None:
    """The machine may be busy, but convolutions with ranges found at run time are many times slower."""
    told = run("slow_int8.py", tmp_path)
    assert "quantizing made" in told
    assert "trial 2" in told
    first, second = (inc_tb.load(tmp_path / f"trial-00{i}") for i in (1, 2))
    assert {"/conv2/Conv", "/conv3/Conv"} <= set(first.suggestions[-1].ops)
    assert first.suggestions[-1].rule == "slower_in_int8"
    before, after = (run.profile.total.int8_us / run.profile.total.fp32_us for run in (first, second))
    assert after < before / 2
