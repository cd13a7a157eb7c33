"""Every example runs as its text says, and its log can be read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import inc_tb
from inc_tb.profiling.profile import Profile
from inc_tb.records import ProfileRow

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
    first, cured = (inc_tb.load(tmp_path / f"trial-00{i}").trial for i in (1, 2))
    assert first.accuracy < first.baseline - 0.2
    assert [rewrite["ops"] for rewrite in cured.config["rewrites"]] == [["/conv1/Conv", "/conv2/Conv"]]
    assert cured.accuracy >= cured.target
    assert cured.fallback == []
    assert (tmp_path / "best_model.onnx").is_file()
    assert f"with the 1 rewrite of {tmp_path / 'trial-002'}" in printed


def test_custom_strategy(tmp_path: Path) -> None:
    printed = run("custom_strategy.py", tmp_path)
    assert printed.startswith("all int8 loses 0.3")
    first, second = (inc_tb.load(tmp_path / f"trial-00{i}").trial for i in (1, 2))
    assert first.accuracy < first.target
    assert second.accuracy >= second.target
    assert {"/conv1/Conv", "/conv2/Conv"} <= set(second.fallback)
    assert second.notes == ["what made the tensors better"]


def test_shapley_objective(tmp_path: Path) -> None:
    run("shapley_objective.py", tmp_path)
    first, second = (inc_tb.load(tmp_path / f"trial-00{i}").trial.objectives for i in (1, 2))
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


def test_slow_int8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With times made up: at first two of the convolutions are slower in int8."""
    from examples import slow_int8 as example  # "slow_int8.py"

    slower = [{"/conv2/Conv", "/conv3/Conv"}, set()]
    real = inc_tb.profile

    def timed(row: ProfileRow, names: set[str]) -> ProfileRow:
        by = 900.0 if row.op in names else 0.0
        times = {"fp32_us": 100.0, "int8_us": 100 + by, "difference_us": by, "low_us": by - 1, "high_us": by + 1}
        return replace(row, convert_us=0.0, differs=bool(by), **times)

    def made(*given: Any, **options: Any) -> Profile:
        found, names = real(*given, **options, runs=2, warmup=0), slower.pop(0)
        rows = [timed(row, names) for row in found.rows]
        found.rows[:] = rows
        whole = sum(row.int8_us or 0.0 for row in rows)
        found.total = replace(found.total, fp32_us=100.0 * len(rows), int8_us=whole, differs=bool(names))
        return found

    monkeypatch.setattr(inc_tb, "profile", made)
    example.main(tmp_path)
    told = capsys.readouterr().out
    assert "quantizing made these 2 ops slower" in told
    assert "trial 2: speed-up 1.00, which is inside the noise, 4 ops in fp32" in told
    first, second = (inc_tb.load(tmp_path / f"trial-00{i}") for i in (1, 2))
    assert first.suggestions[-1].rule == "slower_in_int8"
    assert {"/conv2/Conv", "/conv3/Conv"} <= set(first.suggestions[-1].ops)
    kept = dict(zip(second.ops["name"], second.ops["weight_dtype"], strict=True))
    assert [kept[op] for op in ("/conv2/Conv", "/conv3/Conv")] == ["", ""]
