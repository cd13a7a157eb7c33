"""examples/ci_gate: the workflow does as its steps say, step by step, and stops where a model is broken."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.gate.runs import changed

EXAMPLE = Path(__file__).parents[1] / "examples" / "ci_gate"
STEPS: list[dict[str, Any]] = yaml.safe_load((EXAMPLE / "gate.yml").read_text())["jobs"]["gate"]["steps"]
ORDER = [
    "Install", "Make the models", "Measure them", "Hold the limits of pyproject.toml", "Run the project's tests",
    "Compare with it", "Show what has changed", "Make it the next base",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("project") / "ci_gate"
    shutil.copytree(EXAMPLE, place)
    return place


def run(name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """As the runner does, with this environment's programs."""
    (command,) = (step["run"] for step in STEPS if step.get("name") == name)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    root = str(EXAMPLE.parents[1])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": root, "GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
    environment.pop("PYTEST_CURRENT_TEST", None)
    return subprocess.run(
        ["bash", "-e", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_every_step_is_known() -> None:
    assert [step["name"] for step in STEPS if "run" in step] == ORDER


@pytest.mark.slow
def test_a_good_model_passes_and_a_broken_one_does_not(folder: Path) -> None:
    for name in [*ORDER[1:5], ORDER[-1]]:
        done = run(name, folder)
        assert done.returncode == 0, (name, done.stdout, done.stderr)
    assert (folder / "tests.xml").is_file()
    scale = "/pointwise/Conv_output_0_scale"
    changed(folder / "int8.onnx", folder / "int8.onnx", {scale: 20.0})
    shutil.rmtree(folder / "nc_workspace")
    assert run("Measure them", folder).returncode == 0
    held = run("Hold the limits of pyproject.toml", folder)
    assert held.returncode == 1
    assert "::error title=inc-tb%3A nc_workspace/new%3A added_sqnr_db>=15::" in held.stdout
    tested = run("Run the project's tests", folder)
    assert tested.returncode == 1
    assert "added_sqnr_db>=15: does not hold for" in tested.stdout
    compared = run("Compare with it", folder)
    assert compared.returncode == 1
    assert "The op that did it: /pointwise/Conv" in compared.stdout
    assert run("Show what has changed", folder).returncode == 0
    assert (folder / "summary.md").read_text().startswith("### ❌ inc-tb compare base nc")
