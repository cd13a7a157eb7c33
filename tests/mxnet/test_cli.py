"""The commands with files of MXNet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import inc_tb
from inc_tb.cli import main
from tests.mxnet import zoo

EVALUATE = '''
import numpy as np
from tests.mxnet import zoo

def evaluate(network):
    """Near to the first network's scores."""
    images = zoo.images(32, 9)
    return 1 - float(np.abs(zoo.results(network, images) - zoo.results(zoo.made("concat"), images)).mean())
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    for name, network in zip(("fp32", "int8"), zoo.pair("concat"), strict=True):
        zoo.results(network, zoo.images(1))  # before that, export() writes no weights
        network.export(str(place / name))
    np.savez(place / "data.npz", data=zoo.images(16))
    (place / "judge.py").write_text(EVALUATE)
    return place


class Done(NamedTuple):
    code: int
    out: str
    err: str


Call = Callable[..., Done]


@pytest.fixture
def called(capfd: pytest.CaptureFixture[str]) -> Call:
    def call(*arguments: Any) -> Done:
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in arguments])
        return Done(int(ended.value.code or 0), *capfd.readouterr())

    return call


def test_diagnose_suggest_and_profile(called: Call, folder: Path, tmp_path: Path) -> None:
    models = folder / "fp32-symbol.json", folder / "int8-symbol.json"
    done = called("diagnose", *models, "--data", folder / "data.npz", "--logdir", tmp_path, "--json")
    assert done.code == 0, done.err
    ops = {op["name"]: op for op in json.loads(done.out)["ops"]}
    assert ops["net_conv0_fwd"]["module"] == "sg_mkldnn_conv_2"
    assert ops["net_conv0_fwd"]["act_dtype"] == "int8"
    assert (tmp_path / "int8").is_dir()
    config = called("suggest", tmp_path / "int8", "--op", "net_conv0_fwd", "--format", "mxnet")
    assert '"sg_mkldnn_conv_2"' in config.out
    times = called("profile", *models, "--data", folder / "data.npz", "--logdir", tmp_path, "--runs", 3, "--json")
    assert times.code == 0, times.err
    assert {row["name"] for row in json.loads(times.out)["ops"]} >= {"net_conv0_fwd", "net_dense0_fwd"}


def test_tune_and_rebuild(called: Call, folder: Path, tmp_path: Path) -> None:
    tune = ["tune", folder / "fp32-symbol.json", "--data", folder / "data.npz", "--logdir", tmp_path, "--json"]
    done = called(*tune, "--eval", f"{folder / 'judge.py'}:evaluate", "--calibrator", "minmax", "--smart")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["met"]
    assert found["best"]["config"]["quantize_mode"] == "smart"
    assert (tmp_path / "best_model" / "model-symbol.json").is_file()
    again = called("tune", "--rebuild", "trial-001", "--logdir", tmp_path)
    assert again.code == 0, again.err
    assert (tmp_path / "trial-001-model" / "model-symbol.json").is_file()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--calibrator", "percentile"], "expected minmax or entropy"),
        (["--dynamic"], "which is a model of MXNet; it is for ONNX Runtime and PyTorch. Leave it out"),
        (["--symmetric"], "which is a model of MXNet; it is for ONNX Runtime. Leave it out"),
        (["--pt2e"], "--pt2e was given for"),
    ],
)
def test_options_of_others_are_refused(
    called: Call, folder: Path, options: list[str], text: str, tmp_path: Path
) -> None:
    tune = ["tune", folder / "fp32-symbol.json", "--data", folder / "data.npz", "--logdir", tmp_path]
    done = called(*tune, "--eval", f"{folder / 'judge.py'}:evaluate", *options)
    assert done.code == 2
    assert text in done.err


def test_a_broken_file_is_one_line(called: Call, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "m-symbol.json").write_text("{")
    done = called("diagnose", tmp_path / "m-symbol.json", folder / "int8-symbol.json", "--data", folder / "data.npz")
    assert done.code == 2
    assert "not a network of MXNet" in done.err
    assert done.err.count("\n") == 1


def test_nothing_else_is_printed(folder: Path, tmp_path: Path) -> None:
    """Of what MXNet says to the terminal."""
    command = [sys.executable, "-m", "inc_tb.cli", "diagnose", "fp32-symbol.json", "int8-symbol.json", "--json"]
    done = subprocess.run(
        [*command, "--data", "data.npz", "--logdir", str(tmp_path)], cwd=folder, capture_output=True, text=True,
        check=False, env={**os.environ, "PYTHONPATH": str(Path(inc_tb.__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    json.loads(done.stdout)
