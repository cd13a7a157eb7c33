"""`inc-tb tune --config`, and seeds on the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from inc_tb.cli import main
from inc_tb.tuning.history import FILE
from tests.digits import DATA, digits
from tests.tuning import own_tools as own

Called = Callable[..., tuple[int, str, str]]
MODEL = DATA / "clean.onnx"
GIVEN = (MODEL, "--data", "data.npz", "--eval", "mine.py:never", "--objective", "size")
CONFIG = """
version: 1.0
model: {name: cnn, framework: onnxrt_qlinearops}
quantization:
  calibration: {sampling_size: 3}
  model_wise: {weight: {granularity: per_channel}, activation: {algorithm: kl}}
tuning:
  strategy: {name: random}
  accuracy_criterion: {absolute: 0.25}
  exit_policy: {timeout: 0, max_trials: 2}
  random_seed: 9527
  workspace: {path: there}
evaluation: {accuracy: {metric: {topk: 1}}}
"""


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Called:
    """The command in this process, beside the user's files: its exit code, standard output and standard error."""
    source = Path(own.__file__).read_text() + '\n\ndef never(path):\n    return 1.0 if "clean" in path else 0.5\n'
    (tmp_path / "mine.py").write_text(source)
    np.savez(tmp_path / "data.npz", input=digits(4))
    (tmp_path / "cnn.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def called(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capfd.readouterr()

    return called


def about(logdir: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(Path(logdir, FILE).read_text().splitlines()[0])["about"]
    return found


def test_it_does_as_the_file_says(call: Called) -> None:
    code, printed, said = call("tune", *GIVEN, "--config", "cnn.yaml", "--json")
    found = json.loads(printed)
    assert code == 1  # 0.5 against 1 in fp32
    assert (len(found["trials"]), found["target"]) == (2, 0.75)
    asked = about("there")
    assert (asked["strategy"], asked["random_seed"], asked["samples"]) == ("random", 9527, 3)
    settings = {"format": "QOperator", "per_channel": True, "calibrator": "entropy"}
    assert settings.items() <= found["trials"][0]["config"].items()
    lines = said.splitlines()
    assert [line for line in lines if line.startswith("note: cnn.yaml: evaluation: datasets and metrics")]
    assert "note: cnn.yaml: version, model.name have no effect here" in lines


def test_what_is_given_goes_before_it_and_that_is_said(call: Called) -> None:
    given = (
        "--max-trials", "1", "--tolerance", "0.1", "--logdir", "here", "--random-seed", "5", "--calibrator", "minmax",
        "--strategy", "mine.py:one_by_one",
    )  # fmt: skip
    _, printed, said = call("tune", *GIVEN, *given, "--config", "cnn.yaml", "--json")
    found = json.loads(printed)
    assert (len(found["trials"]), found["target"]) == (1, 0.9)  # relative, as without the file
    assert about("here")["random_seed"] == 5
    assert found["trials"][0]["config"]["calibrator"] == "minmax"
    for told in (
        "--max-trials was given, so tuning.exit_policy.max_trials: 2 of cnn.yaml is left out",
        "--tolerance was given, so tuning.accuracy_criterion.absolute: 0.25 of cnn.yaml is left out",
        "--logdir was given, so tuning.workspace.path: there of cnn.yaml is left out",
        "--random-seed was given, so tuning.random_seed: 9527 of cnn.yaml is left out",
        "--calibrator was given, so quantization.model_wise.activation.algorithm: kl of cnn.yaml is left out",
        "--strategy was given, so tuning.strategy.name: random of cnn.yaml is left out",
    ):
        assert said.count(f"note: {told}\n") == 1


def test_a_quantizer_of_ones_own_is_not_told(call: Called) -> None:
    _, _, said = call("tune", *GIVEN, "--config", "cnn.yaml", "--quantizer", "mine.py:Copies", "--json")
    assert "note: --quantizer was given, so model.framework: onnxrt_qlinearops, quantization.model_wise.weight." in said


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("model: {framework: mxnet}", "cnn.yaml is for another framework (model.framework: mxnet), the model is one"),
        ("tuning: {strategy: {name: sigopt}}", "tuning.strategy.name: sigopt was given; expected probe or auto"),
        ("a: [", "is no YAML"),
    ],
)
def test_what_is_wrong_in_it_is_one_line(call: Called, text: str, told: str) -> None:
    Path("cnn.yaml").write_text(text)
    code, printed, said = call("tune", *GIVEN, "--config", "cnn.yaml")
    assert (code, printed) == (2, "")
    assert told in said
    assert said.count("\n") == 1
    assert not Path("nc_workspace").exists()


def test_a_seed_that_is_too_large(call: Called) -> None:
    code, _, said = call("tune", *GIVEN, "--random-seed", 2**32)
    assert (code, said.count("\n")) == (2, 1)
    assert "random_seed=4294967296 was given; expected at most 4294967295" in said
