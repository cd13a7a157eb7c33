"""`inc-tb tune --rebuild` of trials that Neural Compressor has made, and of logs that name code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import inc_tb
from inc_tb.cli import main
from inc_tb.errors import UsageError
from inc_tb.sources.neural_compressor.rebuilding import translated
from inc_tb.tuning.history import FILE
from tests.sources.workspaces import PACKED, snapshot, unpack
from tests.tuning.test_tune import CULPRITS, HARD, accuracy, calibration

Called = Callable[..., tuple[int, str, str]]
MSE, BASIC = "v26_onnx_qop_hard_msev2_tune", "v26_onnx_qop_hard_basic_tune"
GIVEN = (HARD, "--data", "data.npz")


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Called:
    """The command in this process, beside the data: its exit code, standard output and standard error."""
    np.savez(tmp_path / "data.npz", input=calibration())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def called(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["tune", *(str(argument) for argument in arguments)])
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capfd.readouterr()

    return called


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real workspaces, imported."""
    folder = tmp_path_factory.mktemp("logs")
    names = (MSE, BASIC, "v26_torch213_hard_basic_tune", "v26_tf_hard_mse_tune")
    for name in names:
        inc_tb.import_workspace(unpack(folder / "spaces", [name]) / name, folder / "log")
    inc_tb.import_workspace(PACKED / "tuning_log.txt", folder / "log")
    return folder / "log"


def test_a_trial_with_culprits_in_fp32_is_as_good_again(call: Called, logs: Path) -> None:
    code, printed, said = call(*GIVEN, "--rebuild", f"{MSE}/trial-005", "--logdir", logs, "--output", "a.onnx")
    assert (code, printed) == (0, "")
    assert (
        "whose accuracy as Neural Compressor made it was 0.9698, kept in fp32: /conv1/Conv, /conv2/Conv."
        in " ".join(said.split())
    )
    again = accuracy("a.onnx")
    assert call(*GIVEN, "--rebuild", "trial-001", "--logdir", logs / MSE, "--output", "b.onnx")[0] == 0
    assert accuracy("b.onnx") < again - 0.05
    assert again > 0.99  # fp32 has 0.995


def test_what_was_translated_is_told(call: Called, logs: Path) -> None:
    code, printed, said = call(
        *GIVEN, "--rebuild", f"{BASIC}/trial-002", "--logdir", logs, "--output", "a.onnx", "--json"
    )
    found = json.loads(printed)
    assert code == 0
    assert found["fallback"] == ["/conv1/Conv", "/fc2/Gemm"]  # whose halves were ops of their own there
    settings = {
        "approach": "static", "format": "QOperator", "calibrator": "minmax", "per_channel": True,
        "activation_type": "uint8", "weight_type": "int8", "symmetric": False,
    }  # fmt: skip
    assert settings.items() <= found["config"].items()
    assert any("one bit was left unused is not recorded" in note for note in found["notes"])
    for note in found["notes"]:
        assert f"note: {note}\n" in said


def trial_of(**config: object) -> inc_tb.Trial:
    plain = {
        "tool": "Neural Compressor 2.6", "approach": "post_training_static_quant", "activation_dtype": "uint8",
        "activation_quant_mode": "static", "activation_scheme": "asym", "activation_algorithm": "minmax",
        "weight_dtype": "int8", "weight_granularity": "per_tensor", "reduce_range": False,
    }  # fmt: skip
    return inc_tb.Trial("trial-001", 0.9, 0.95, [], plain | config)


def test_every_setting_is_translated() -> None:
    """Without an op table, which says what each op had, by what the config lists."""
    plain = translated(trial_of(), None, HARD)
    assert plain.notes == []
    assert plain.trial.config["per_channel"] is False
    other = translated(
        trial_of(
            quant_format="QDQ", activation_dtype="int8", activation_scheme="sym", activation_algorithm="kl",
            weight_granularity="per_channel", reduce_range=True, calibration_samples=64,
        ), None, HARD,
    )  # fmt: skip
    wanted = {
        "format": "QDQ", "activation_type": "int8", "symmetric": True, "calibrator": "entropy", "per_channel": True,
        "reduce_range": True,
    }  # fmt: skip
    assert wanted.items() <= other.trial.config.items()
    assert (other.notes, other.samples) == ([], 64)
    dynamic = translated(trial_of(activation_quant_mode="dynamic"), None, HARD)
    assert dynamic.trial.config["approach"] == "dynamic"


def test_settings_of_a_pytorch_trial() -> None:
    from torch import nn

    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())
    found = translated(trial_of(activation_algorithm="kl", weight_granularity="per_channel"), None, model)
    assert found.trial.config == {
        "approach": "static", "calibrator": "histogram", "per_channel": True, "reduce_range": False,
        "rewrites": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"activation_algorithm": "minmax / kl"}, "activation_algorithm differed from op to op (minmax, kl); the tool"),
        ({"activation_algorithm": "placeholder"}, "activation_algorithm placeholder cannot be told to this tool: minm"),
        ({"reduce_range": None}, "whether one bit was left unused is not recorded"),
        ({"smooth_quant": True}, "smooth_quant was carried out in the trial, and is not here"),
    ],
)
def test_what_cannot_be_translated_is_said(config: dict[str, object], said: str) -> None:
    (note,) = translated(trial_of(**config), None, HARD).notes
    assert note.startswith(said)


def test_ops_that_the_model_does_not_have_are_said() -> None:
    trial = trial_of()
    trial.fallback = ["/conv1/Conv", "gemm_MatMul", "/fc2/Gemm_Add"]
    found = translated(trial, None, HARD)
    assert found.trial.fallback == ["/conv1/Conv", "/fc2/Gemm"]
    assert found.notes == [
        "/fc2/Gemm_Add is a part of /fc2/Gemm, which is kept whole",
        "kept in fp32 in the trial, but no op of the given model by name, so not kept here: gemm_MatMul",
    ]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"approach": "post_training_weight_only"}, "quantizes weights only, which is not rebuilt"),
        ({"weight_bits": "4"}, "quantizes weights only"),
        ({"activation_dtype": ""}, "nothing is known of its config"),
    ],
)
def test_what_cannot_be_rebuilt(config: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        translated(trial_of(**config), None, HARD)


@pytest.mark.parametrize(
    ("trial", "said"),
    [
        (
            "v26_torch213_hard_basic_tune/trial-001",
            "of a model of another framework (torch), the given model is one of",
        ),
        ("tuning_log/trial-001", "nothing is known of its config, so it cannot be rebuilt"),
        ("trial-077", "trial-077: no such trial in"),
        (f"{MSE}/trial-003", "such as v26_onnx_qop_hard_msev2_tune/trial-"),
        (f"{MSE}/fp32", "hold no quantization records; expected a run"),
        ("../trial-001", "--rebuild ../trial-001: expected a name below the logdir"),
    ],
)
def test_one_line_says_why_not(call: Called, logs: Path, trial: str, said: str) -> None:
    code, printed, told = call(*GIVEN, "--rebuild", trial, "--logdir", logs, "--output", "a.onnx")
    assert (code, printed) == (2, "")
    assert said in told
    assert told.count("\n") == 1
    assert not Path("a.onnx").exists()


def test_the_model_and_the_data_must_be_given(call: Called, logs: Path) -> None:
    code, _, said = call("--rebuild", f"{MSE}/trial-001", "--logdir", logs)
    assert (code, said.count("\n")) == (2, 1)
    assert "does not say which model and data the tuning had; give MODEL and --data" in said
    assert "give MODEL and --data" in call(HARD, "--rebuild", f"{MSE}/trial-001", "--logdir", logs)[2]


# Code that a log names


CODE = """
import pathlib

pathlib.Path("was_run").touch()


def model():
    return {model!r}


def batches():
    yield {{"input": __import__("numpy").load("data.npz")["input"]}}


def accuracy(path):
    return 1.0
"""


@pytest.mark.parametrize("what", ["model", "calibration"])
def test_code_that_only_the_log_names_is_not_run(call: Called, what: str) -> None:
    Path("mine.py").write_text(CODE.format(model=str(HARD)))
    assert call(*GIVEN, "--eval", "mine.py:accuracy", "--objective", "size")[0] == 0
    Path("was_run").unlink()
    history = Path("nc_workspace", FILE)
    header, *rest = history.read_text().splitlines()
    about = json.loads(header)
    about["given"][what] = str(Path("mine.py").absolute()) + (":model" if what == "model" else ":batches")
    history.write_text("\n".join([json.dumps(about), *rest, ""]))

    code, _, said = call("--rebuild", "trial-001", "--output", "a.onnx")
    assert (code, said.count("\n")) == (2, 1)
    assert f"the log names code for the {'model' if what == 'model' else 'data'} (" in said
    option = "MODEL" if what == "model" else "--data"
    assert said.endswith(f"which is run only if it is given; if you trust it, give {option}.\n")
    assert not Path("was_run").exists()

    given = [HARD] if what == "model" else ["--data", "mine.py:batches"]
    assert call(*given, "--rebuild", "trial-001", "--output", "a.onnx")[0] == 0
    assert Path("a.onnx").is_file()


def test_a_history_made_up_in_its_form(call: Called, tmp_path: Path) -> None:
    """Any workspace, however it was imported."""
    weight = {"dtype": "int8", "granularity": "per_tensor", "scheme": "sym"}
    activation = {"dtype": "uint8", "quant_mode": "static", "algorithm": "minmax", "scheme": "asym"}
    op = {"weight": weight, "activation": activation}
    fp32 = {"weight": {"dtype": "fp32"}, "activation": {"dtype": "fp32"}}
    ops = {(name, "Conv"): fp32 if name in CULPRITS else op for name in (*CULPRITS, "/dw/Conv", "/pw/Conv")}
    (tmp_path / "space").mkdir()
    (tmp_path / "space" / "history.snapshot").write_bytes(
        snapshot([{"tune_cfg": {"op": ops, "calib_sampling_size": 16}, "tune_result": (0.95, [1.0])}])
    )
    inc_tb.import_workspace(tmp_path / "space", tmp_path / "log")
    code, printed, _ = call(*GIVEN, "--rebuild", "space/trial-001", "--logdir", "log", "--json")
    found = json.loads(printed)
    assert (code, found["fallback"]) == (0, CULPRITS)
    assert Path(found["model"]).is_file()
    assert accuracy(found["model"]) > 0.98
