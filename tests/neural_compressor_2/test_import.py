"""Workspaces that this Neural Compressor writes, imported afterwards and while it still writes them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import inc_tb
from tests.neural_compressor_2.tuned import CULPRITS, config, evaluate, fit, history
from tests.waiting import PATIENCE_S, until


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

    def logged() -> int:
        return len(list((tmp_path / "logs" / "workspace").glob("trial-*/events*")))

    def evaluate_and_wait(model: Any) -> float:
        """The fp32 model, and then each trial's, before it is in the history."""
        nonlocal evaluated
        until(lambda: logged() >= evaluated - 1, logged)
        evaluated += 1
        return evaluate(model)

    try:
        fit(evaluate_and_wait, config(trials=3))
        own = history(workspace)
        until(lambda: logged() == len(own), logged)
        watcher.send_signal(signal.SIGINT)
        said, wrong = watcher.communicate(timeout=PATIENCE_S)
    finally:
        watcher.kill()
    assert watcher.returncode == 0, wrong
    assert said.count("trial-00") == len(own) == 3
    for number, accuracy in own.items():
        logged = inc_tb.load(tmp_path / "logs" / "workspace" / f"trial-{number:03d}").trial
        assert logged is not None
        assert logged.accuracy == accuracy
