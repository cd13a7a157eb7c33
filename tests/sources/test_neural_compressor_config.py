"""Configurations of Neural Compressor's tunings: what of them is taken over, and what is said of the rest."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import inc_tb
from inc_tb.errors import UsageError
from inc_tb.frameworks.registry import framework_of
from inc_tb.sources.neural_compressor.config import TuningConfig, read_config
from tests.digits import DATA

DOCUMENT = """\
# cnn.yaml

version: 1.0

model:
  name: cnn
  framework: mxnet

quantization:
  calibration:
    sampling_size: 160 # number of samples for calibration

tuning:
  strategy:
    name: basic
  accuracy_criterion:
    relative: 0.01
  exit_policy:
    timeout: 0
  random_seed: 9527
"""


def read(folder: Path, text: str) -> TuningConfig:
    path = folder / "cnn.yaml"
    path.write_text(text)
    return read_config(path)


def test_the_file_of_the_document(tmp_path: Path) -> None:
    found = read(tmp_path, DOCUMENT)
    assert found.framework == "mxnet"
    assert found.arguments == {
        "samples": 160, "strategy": "basic", "relative": True, "tolerance": 0.01, "timeout": 0.0, "random_seed": 9527,
    }  # fmt: skip
    assert found.wanted == {}
    assert found.notes == ["version, model.name have no effect here"]


def test_the_fields_of_the_second_generation(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
approach: dynamic
quant_format: QDQ
quant_level: 1
reduce_range: true
calibration_sampling_size: [100, 200]
accuracy_criterion: {higher_is_better: false, criterion: absolute, tolerable_loss: 0.5}
tuning_criterion: {strategy: MSE_v2, timeout: 60, max_trials: 7, objective: [performance, modelsize]}
random_seed: 3
workspace: logs
""",
    )
    assert found.arguments == {
        "samples": 100, "higher_is_better": False, "relative": False, "tolerance": 0.5, "strategy": "mse_v2",
        "timeout": 60.0, "max_trials": 7, "objectives": ("latency", "size"), "random_seed": 3, "logdir": "logs",
    }  # fmt: skip
    assert found.wanted == {"dynamic": True, "format": "QDQ", "reduce-range": True}
    (note,) = found.notes
    assert note.startswith("calibration_sampling_size: [100, 200]: the tuning begins with the first")


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("quant_level: 0", "conservative"),
        ("quant_level: auto", "auto"),
        ("quant_level: 1", "basic"),
        ("{quant_level: 1, tuning_criterion: {strategy: mse}}", "mse"),
        ("{quant_level: auto, tuning_criterion: {strategy: basic}}", "auto"),
        ("{quantization: {quant_level: 0}, tuning: {strategy: {name: mse}}}", "conservative"),
        ("tuning: {strategy: {name: Bayesian}}", "bayesian"),
        ("version: 1.0", None),
    ],
)
def test_which_strategy(tmp_path: Path, text: str, strategy: str | None) -> None:
    found = read(tmp_path, text)
    assert found.arguments.get("strategy") == strategy
    overruled = "mse" in text and strategy != "mse"
    assert any("goes before tuning.strategy.name: mse" in note for note in found.notes) == overruled


@pytest.mark.parametrize(
    ("text", "option", "value"),
    [
        ("quantization: {model_wise: {weight: {granularity: per_channel}}}", "per-channel", True),
        ("quantization: {model_wise: {weight: {granularity: [per_tensor]}}}", "per-channel", False),
        ("quantization: {model_wise: {weight: {bit: 7.0}}}", "reduce-range", True),
        ("quantization: {model_wise: {weight: {dtype: uint8}}}", "weight-type", "uint8"),
        ("quantization: {model_wise: {activation: {algorithm: kl}}}", "calibrator", "entropy"),
        ("quantization: {model_wise: {activation: {scheme: sym}}}", "symmetric", True),
        ('quantization: {model_wise: {activation: {dtype: "int8, fp32"}}}', "activation-type", "int8"),
        ("model: {framework: onnxrt_qdq}", "format", "QDQ"),
        ("model: {framework: onnxrt_qlinearops}", "format", "QOperator"),
        ("model: {framework: onnxrt_integerops}", "dynamic", True),
        ("quantization: {approach: post_training_dynamic_quant}", "dynamic", True),
    ],
)
def test_what_the_tool_is_told(tmp_path: Path, text: str, option: str, value: Any) -> None:
    found = read(tmp_path, text)
    assert found.wanted[option] == value
    assert found.notes == []


UNSET = ("device: cpu", "backend: default", "recipes: {}", "op_name_dict:", "excluded_precisions: [bf16]",
         "recipes: {first_conv_or_matmul_quantization: true, smooth_quant: false, layer_wise_quant_args: {}}",
         "tuning: {exit_policy: {performance_only: false}}")  # fmt: skip


@pytest.mark.parametrize("text", UNSET)
def test_of_what_is_as_it_is_anyway_nothing_is_said(tmp_path: Path, text: str) -> None:
    found = read(tmp_path, text)
    assert found.notes == []
    assert found.arguments == found.wanted == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("evaluation: {accuracy: {metric: {topk: 1}}}", "evaluation: datasets and metrics that a file names are not"),
        ("quantization: {calibration: {dataloader: {batch_size: 3}}}", "quantization.calibration.dataloader: is not"),
        ("op_name_dict: {conv1: {activation: {dtype: [fp32]}}}", "op_name_dict: settings of single ops are not taken"),
        ("quantization: {op_wise: {conv1: 3}}", "quantization.op_wise: settings of single ops"),
        ("recipes: {smooth_quant: true}", "recipes.smooth_quant: True is a recipe that is not carried out"),
        ("recipes: {last_conv_or_matmul_quantization: false}", "last_conv_or_matmul_quantization: False is a recipe"),
        ("device: gpu", "device: gpu: models are quantized and evaluated by the runtime as it is installed"),
        ("approach: auto", "approach: auto: the tool's own choice"),
        ("tuning: {exit_policy: {performance_only: true}}", "every trial is evaluated"),
        ("tuning: {workspace: {resume: x.snapshot}}", "resume: x.snapshot: a snapshot of Neural Compressor cannot"),
        ("tuning: {multi_objectives: {objective: [modelsize], weight: [1]}}", "multi_objectives: weights have no"),
        ("tuning: {strategy: {name: basic, confidence_batches: 2}}", "confidence_batches: 2 is not known here"),
        ("color: {a: {b: 3}}", "color is not known here, and left out"),
        (f"color: {'x' * 99}", f"color: {'x' * 60}… is not known here"),
        ("3: 4", "3: 4 is not known here"),
    ],
)
def test_what_is_not_taken_over_is_said(tmp_path: Path, text: str, said: str) -> None:
    (note,) = read(tmp_path, text).notes
    assert said in note
    assert "\n" not in note


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tuning: {strategy: {name: sigopt}}", r"tuning\.strategy\.name: sigopt was given; expected probe or auto"),
        ("tuning: {strategy: {name: 'mine.py:steps'}}", r"mine\.py:steps was given; expected probe"),
        ("tuning: {strategy: basic}", r"tuning\.strategy: basic was given; expected names and values"),
        ("tuning: {exit_policy: {max_trials: many}}", "max_trials: many was given; expected a whole number, 1 or more"),
        ("tuning: {exit_policy: {max_trials: 0}}", "max_trials: 0 was given"),
        ("tuning: {exit_policy: {timeout: -1}}", "timeout: -1 was given; expected a number, 0 or more"),
        ("tuning: {random_seed: true}", "random_seed: True was given; expected a whole number"),
        ("tuning: {accuracy_criterion: {relative: [1]}}", r"relative: \[1\] was given; expected a number"),
        ("tuning: {accuracy_criterion: {relative: .nan}}", "relative: nan was given"),
        ("tuning: {accuracy_criterion: {relative: 0.1, absolute: 3}}", "absolute: 3 was given beside .*relative: 0.1"),
        ("tuning: {accuracy_criterion: {higher_is_better: maybe}}", "maybe was given; expected true or false"),
        ("tuning: {objective: speed}", "speed was given; expected performance or modelsize"),
        ("model: {framework: caffe}", "framework: caffe was given; expected a framework such as"),
        ("quantization: {approach: quant_aware_training}", "quant_aware_training was given; expected static or"),
        ("quant_level: 7", "quant_level: 7 was given; expected 0 or auto or 1"),
        ("quantization: {calibration: {sampling_size: [a]}}", r"sampling_size: \[a\] was given|sampling_size: a was"),
        ("quantization: {model_wise: {activation: {algorithm: best}}}", "algorithm: best was given; expected minmax"),
        ("workspace: 3", "workspace: 3 was given"),
        ("tuning: 3", "tuning: 3 was given; expected names and values"),
        ("- 1", "holds a list; expected names and values"),
        ("just text", "holds a str"),
        ("a: [", "is no YAML"),
        ("a: !!python/object/apply:os.system [echo]", "is no YAML"),
        ("a: 2001-99-99", "is no YAML"),
        ("[" * 5000, "is no YAML"),
        ("a: " + "x" * (1 << 20), "bytes; expected a configuration of at most"),
    ],
    ids=lambda value: value[:40],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as error:
        read(tmp_path, text)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600


@pytest.mark.parametrize(("text", "tolerance"), [("1%", 0.01), ("1e-2", 0.01), ("0.02", 0.02), ("0", 0.0)])
def test_numbers_as_people_write_them(tmp_path: Path, text: str, tolerance: float) -> None:
    found = read(tmp_path, f"tuning: {{accuracy_criterion: {{relative: {text}}}}}")
    assert found.arguments["tolerance"] == pytest.approx(tolerance)


def test_what_refers_to_itself_ends(tmp_path: Path) -> None:
    found = read(tmp_path, "tuning: &a {strategy: *a, accuracy_criterion: {relative: 0.5}}\nb: &b [*b]\n")
    assert found.arguments["tolerance"] == 0.5
    assert [note.partition(" ")[0] for note in found.notes] == ["tuning.strategy.strategy", "tuning.strategy.accuracy_criterion", "b"]  # noqa: E501  # fmt: skip


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.yaml: cannot be read .*expected a YAML file"):
        read_config(tmp_path / "none.yaml")
    with pytest.raises(UsageError, match="cannot be read"):
        read_config(tmp_path)


def test_without_pyyaml_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(UsageError, match=r"needs PyYAML, which is not installed: pip install 'inc-tb\[yaml\]'"):
        read(tmp_path, DOCUMENT)


def test_an_object_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a int was given; expected the path of a YAML file, or a PostTraining"):
        read_config(3)


# Its quantizer


def test_the_tool_is_set_as_it_says(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "{approach: static, quant_format: QOperator, quantization: {model_wise: {activation: {algorithm: kl}, "
        "weight: {granularity: per_channel}}}}",
    )
    settings = found.quantizer(DATA / "hard.onnx").settings
    wanted = {"approach": "static", "format": "QOperator", "calibrator": "entropy", "per_channel": True}
    assert wanted.items() <= settings.items()
    assert found.notes == []


def test_static_is_static_for_a_model_without_convolutions_too(tmp_path: Path) -> None:
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 2))
    assert read(tmp_path, "approach: static").quantizer(model).settings["approach"] == "static"
    assert read(tmp_path, "approach: dynamic").quantizer(model).settings["approach"] == "dynamic"


def test_what_a_tool_cannot_be_told_is_said(tmp_path: Path) -> None:
    from torch import nn

    found = read(tmp_path, "quantization: {model_wise: {activation: {algorithm: kl}}}")
    found.quantizer(nn.Linear(4, 2))
    assert found.notes == [
        "quantization.model_wise.activation.algorithm: kl: PyTorch cannot be told this by inc-tb; left out"
    ]


def test_a_model_of_another_framework(tmp_path: Path) -> None:
    model = DATA / "hard.onnx"
    found = read(tmp_path, DOCUMENT)
    with pytest.raises(UsageError, match=r"cnn\.yaml is for another framework \(model\.framework: mxnet\), the model"):
        found.quantizer(model)
    read(tmp_path, DOCUMENT.replace("mxnet", "onnxrt_qdq")).check(framework_of(model))


def test_it_is_public() -> None:
    assert inc_tb.read_config is read_config
    assert inc_tb.TuningConfig is TuningConfig
