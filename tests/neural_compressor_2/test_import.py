"""Workspaces that this Neural Compressor writes, imported afterwards and while it still writes them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import inc_tb
from tests.neural_compressor_2.tuned import CULPRITS, config, evaluate, fit, history


def test_a_tuning_afterwards(workspace: Path, tmp_path: Path) -> None:
    fit(conf=config("mse_v2", 8))
    (found,) = inc_tb.import_workspace(workspace, tmp_path / "logs")
    own = history(workspace)
    assert {int(run.name[-3:]): run.trial and run.trial.accuracy for run in found.runs} == own
    assert found.best == max(own.values())
    best = next(trial for trial in found.trials if trial.accuracy == found.best)
    assert sorted(best.fallback) == CULPRITS


def test_a_tuning_while_it_runs(workspace: Path, tmp_path: Path) -> None:
    """Every trial is a run before the next but one has ended."""
    workspace.mkdir(exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "inc_tb.cli",
        "import",
        str(workspace),
        "--watch",
        "--logdir",
        str(tmp_path / "logs"),
    ]
    watcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    evaluated = 0

    def evaluate_and_wait(model: Any) -> float:
        """The fp32 model, and then each trial's, before it is in the history."""
        nonlocal evaluated
        for _ in range(600):
            if len(list((tmp_path / "logs" / "workspace").glob("trial-*/events*"))) >= evaluated - 1:
                break
            time.sleep(0.1)
        else:
            raise AssertionError(f"{evaluated - 1} trials have ended, and are not all logged")
        evaluated += 1
        return evaluate(model)

    try:
        fit(evaluate_and_wait, config(trials=3))
        deadline = time.monotonic() + 60
        own = history(workspace)
        while len(list((tmp_path / "logs" / "workspace").glob("trial-*/events*"))) < len(own):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        watcher.send_signal(signal.SIGINT)
        said, wrong = watcher.communicate(timeout=60)
    finally:
        watcher.kill()
    assert watcher.returncode == 0, wrong
    assert said.count("trial-00") == len(own) == 3
    for number, accuracy in own.items():
        logged = inc_tb.load(tmp_path / "logs" / "workspace" / f"trial-{number:03d}").trial
        assert logged is not None
        assert logged.accuracy == accuracy
