"""No command reaches for the network, and none leaves a file outside of what it is told to write."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import inc_tb
from tests.waiting import PATIENCE_S

ROOT = Path(inc_tb.__file__).parents[1]
DATA = ROOT / "tests" / "data"
LONG_S = 12
"""ONNX Runtime calls home after ten seconds."""
KERAS = ".keras/keras.json"
"""Keras' own settings, which it writes when it is imported by anybody."""
SCORES = """
import numpy as np
import onnxruntime

from tests.digits import digits


def data():
    return {"input": digits(16)}


def accuracy(path):
    session = onnxruntime.InferenceSession(path)
    return float(session.run(None, {"input": digits(64)})[0].argmax(1).std())


def pixels():
    return {"input": digits(4).transpose(0, 2, 3, 1)}
"""
NETWORKS = """
import torch

from tests.digits import digits
from tests.hard_network import Network


def fp32():
    torch.manual_seed(0)
    return Network().eval()


def int8():
    network = fp32()
    with torch.no_grad():
        for weight in network.parameters():
            step = weight.abs().max() / 127
            weight.copy_(torch.round(weight / step) * step)
    return network


def data():
    return torch.from_numpy(digits(8))
"""
Watched = Callable[..., None]


@pytest.fixture(scope="module")
def watcher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that is loaded before the C library and writes down who is called."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))))
    made = tmp_path_factory.mktemp("watcher") / "watched.so"
    source = Path(__file__).with_name("watched.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, source, "-ldl"], check=True, timeout=PATIENCE_S)
    return made


@pytest.fixture
def watched(watcher: Path, tmp_path: Path) -> Watched:
    """Runs Python in `work`; nothing may appear beside it, and nobody may be called."""
    places = {name: tmp_path / name for name in ("home", "temp", "work")}
    for place in places.values():
        place.mkdir()
    (places["work"] / "scores.py").write_text(SCORES)
    (places["work"] / "networks.py").write_text(NETWORKS)
    told = {"HOME": "home", "TMPDIR": "temp", "XDG_CACHE_HOME": "home"}
    calls = tmp_path / "calls"
    env = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    env |= {name: str(places[place]) for name, place in told.items()}
    env |= {"PYTHONPATH": str(ROOT), "LD_PRELOAD": str(watcher), "WATCHED_LOG": str(calls)}

    def run(*arguments: object, codes: tuple[int, ...] = (0,)) -> None:
        command = [sys.executable, *map(str, arguments)]
        work = places["work"]
        done = subprocess.run(
            command, cwd=work, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )
        assert done.returncode in codes, done.stderr
        assert not calls.exists(), calls.read_text()
        for place in (places["home"], places["temp"]):
            left = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
            assert left <= {KERAS}, left

    return run


def test_the_watcher_sees_a_connection(watched: Watched) -> None:
    script = "import socket; socket.socket().connect_ex(('127.0.0.1', 9))"
    with pytest.raises(AssertionError, match="connect"):
        watched("-c", script)


def test_commands_with_onnx_models(watched: Watched) -> None:
    fp32, int8 = DATA / "hard.onnx", ROOT / "tests" / "frameworks" / "data" / "hard_inc_int8.onnx"
    data = ("--data", "scores.py:data")
    watched("-m", "inc_tb.cli", "diagnose", fp32, int8, *data, "--probe", 1, "--profile", 2)
    scored = ("--eval", "scores.py:accuracy", "--timeout", LONG_S)
    watched("-m", "inc_tb.cli", "tune", fp32, *data, *scored, "--logdir", "tuned", codes=(0, 1))


def test_commands_with_tensorflow_models(watched: Watched) -> None:
    fp32 = ROOT / "tests" / "frameworks" / "data" / "inc26_logged_fp32.pb"
    watched("-m", "inc_tb.cli", "profile", fp32, "--data", "scores.py:pixels", "--runs", 2)


def test_commands_with_torch_models(watched: Watched) -> None:
    models = ("networks.py:fp32", "networks.py:int8")
    watched("-m", "inc_tb.cli", "diagnose", *models, "--data", "networks.py:data", "--profile", 2)


@pytest.mark.parametrize(("given", "expected"), [(None, "1"), ("0", "0")])
def test_a_variable_of_the_user_wins(given: str | None, expected: str) -> None:
    env = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    env |= {"ORT_DISABLE_TELEMETRY": given} if given is not None else {}
    script = "import os, inc_tb; inc_tb.OnnxRuntimeQuantizer; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert done.stdout.strip() == expected
