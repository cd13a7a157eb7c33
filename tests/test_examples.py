"""Every example runs as its text says, and its log can be read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import inc_tb

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, folder: Path) -> str:
    command = [sys.executable, str(EXAMPLES / name), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_tested() -> None:
    source = Path(__file__).read_text()
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


@pytest.mark.slow
def test_train_demo_model(tmp_path: Path) -> None:
    accuracy = float(run("train_demo_model.py", tmp_path).split()[-1])
    assert accuracy > 0.93
    assert (tmp_path / "digits_cnn.onnx").stat().st_size > 50_000
