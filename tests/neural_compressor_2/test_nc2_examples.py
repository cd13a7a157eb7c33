"""The example runs as its text says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import inc_tb

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_live(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", str(EXAMPLES / "neural_compressor_live.py"), str(tmp_path / "logs")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    runs = [inc_tb.load(path) for path in sorted((tmp_path / "logs").glob("trial-*"))]
    for run in runs:
        assert f"{run.trial.name}: accuracy {run.trial.accuracy:.4f}" in done.stdout
    assert runs[0].trial.accuracy < runs[0].trial.target <= max(run.trial.accuracy for run in runs)
    assert "trial-001 suggests to keep /conv1/Conv" in done.stdout
    assert "op_name_dict" in done.stdout
