"""`inc-tb tune` with a strategy and a quantizer of the user's own, and options that are for other tools."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from inc_tb.cli import main
from tests.digits import DATA, digits
from tests.tuning import own_tools as own

Called = Callable[..., tuple[int, str, str]]
GIVEN = (DATA / "clean.onnx", "--data", "data.npz", "--eval", "mine.py:accuracy", "--objective", "size")
OWN = ("--strategy", "mine.py:one_by_one", "--quantizer", "mine.py:Copies")


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Called:
    """The command in this process, beside the user's file: its exit code, standard output and standard error."""
    shutil.copy(own.__file__, tmp_path / "mine.py")
    np.savez(tmp_path / "data.npz", input=digits(4))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def called(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capfd.readouterr()

    return called


def test_a_tuning_with_both_and_its_models_once_more(call: Called, tmp_path: Path) -> None:
    code, out, err = call("tune", *GIVEN, *OWN, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert [trial["fallback"] for trial in found["trials"]] == [[], ["/conv1/Conv"], list(own.CONVOLUTIONS)]
    assert found["recipe"].endswith("copies(keep=['/conv1/Conv', '/conv2/Conv'])")
    code, _, err = call(
        "tune", "--rebuild", "trial-003", "--quantizer", "mine.py:make_copies", "--output", "again.onnx"
    )
    assert code == 0, err
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "nc_workspace" / "best_model.onnx").read_bytes()


def test_it_is_resumed(call: Called, tmp_path: Path) -> None:
    assert call("tune", *GIVEN, *OWN, "--max-trials", 1)[0] == 1
    code, out, err = call("tune", *GIVEN, *OWN, "--resume", "--json")
    assert code == 0, err
    assert (len(json.loads(out)["trials"]), json.loads(out)["evaluations"]) == (3, 2)
    other = ("--strategy", "mine.py:backwards", "--quantizer", "mine.py:Copies")
    code, out, err = call("tune", *GIVEN, *other, "--resume")
    assert (code, out) == (2, "")
    assert "differs in strategy" in one_line(err)


def test_one_of_them_is_enough(call: Called) -> None:
    code, out, err = call("tune", *GIVEN, *OWN[2:], "--strategy", "basic", "--json")
    assert code == 1, err
    assert [trial["config"] for trial in json.loads(out)["trials"]] == [{"way": "copy"}]


def one_line(text: str) -> str:
    (line,) = text.strip().splitlines()
    assert line.startswith("inc-tb: ")
    return line


WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "strategy without a file": (("--strategy", "none.py:f"), "none.py: no such file; expected file.py:function."),
    "strategy of another name": (("--strategy", "mine.py:nothing"), "mine.py: has no function 'nothing'"),
    "strategy that is none": (("--strategy", "mine.py:CONVOLUTIONS"), "mine.py: has no function 'CONVOLUTIONS'"),
    "strategy that raises": (("--strategy", "mine.py:raises"), "failed: ValueError: at once in two lines."),
    "strategy that is no generator": (("--strategy", "mine.py:no_generator"), "expected a generator function."),
    "strategy that yields text": (("--strategy", "mine.py:yields_text"), "yields a str; expected inc_tb.Attempt."),
    "quantizer without a function": (("--quantizer", "mine.py"), "mine.py was given; expected file.py:function."),
    "quantizer without a file": (("--quantizer", "none.py:f"), "none.py: no such file"),
    "quantizer that is none": (("--quantizer", "mine.py:no_quantizer"), "the quantizer int has no settings, prepare"),
    "quantizer that raises": (("--quantizer", "mine.py:no_quantizer_either"), "ValueError: no tool. It must return a"),
    "quantizer and an option of a tool": (
        ("--quantizer", "mine.py:Copies", "--per-channel"),
        "--quantizer was given together with --per-channel; expected one of them.",
    ),
    "options of other tools": (
        ("--pt2e",),
        "--pt2e was given for clean.onnx, which is a model of ONNX; it is for PyTorch. Leave it out.",
    ),
    "an option of another tool, off": (
        ("--no-preprocess", "--saved-model"),
        "--saved-model was given for clean.onnx, which is a model of ONNX; it is for TensorFlow. Leave it out.",
    ),
}


@pytest.mark.parametrize(("options", "said"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_one_line(call: Called, tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    model = shutil.copy(GIVEN[0], tmp_path / "clean.onnx")
    code, out, err = call("tune", Path(model).name, *GIVEN[1:], *options)
    assert (code, out) == (2, "")
    assert said in one_line(err)
    assert not list(tmp_path.rglob("trial-*"))
