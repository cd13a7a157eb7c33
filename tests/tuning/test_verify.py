"""The first suggestion, carried out by the tool itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest

import inc_tb
from inc_tb.errors import UsageError
from inc_tb.frameworks.models import open_results
from inc_tb.frameworks.registry import framework_of
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.tuning.applying import apply
from inc_tb.tuning.rewriting import rewritten_instead
from inc_tb.tuning.verify import ANEW, CURED, FP32, GIVEN, verify
from tests import torch_defects
from tests.digits import DATA, digits

HARD = DATA / "hard.onnx"
SAMPLES = {"input": digits(32)}
pytestmark = torch_defects.MARKS


@pytest.fixture
def diagnosed(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Diagnosis]:
    """hard.onnx, quantized by these settings."""
    tool = inc_tb.OnnxRuntimeQuantizer(**{"activation_type": "uint8", "preprocess": False, **request.param})
    target = tmp_path / "int8.onnx"
    tool.quantize(HARD, target, [SAMPLES], tool.settings, [])
    return target, inc_tb.diagnose(HARD, target, SAMPLES)


@pytest.mark.parametrize("diagnosed", [{}], indirect=True)
def test_the_first_suggestion_is_proved_by_the_tool(diagnosed: tuple[Path, Diagnosis]) -> None:
    scored: list[str] = []

    def count(path: str) -> float:
        scored.append(Path(path).name)
        return float(len(scored))

    int8, diagnosis = diagnosed
    found = verify(HARD, int8, SAMPLES, diagnosis, count)
    assert list(found.comparison) == [FP32, GIVEN, ANEW, CURED]
    errors = {form: one.error for form, one in found.comparison.items()}
    assert errors[FP32] == 0
    assert errors[ANEW] == pytest.approx(errors[GIVEN])
    assert errors[CURED] < 0.01 * errors[GIVEN]
    assert found.is_alike
    assert found.accuracy == {FP32: 1, GIVEN: 2, ANEW: 3, CURED: 4}
    assert scored[:2] == ["hard.onnx", "int8.onnx"]
    assert set(found.ops) >= {"/conv1/Conv", "/conv2/Conv"}


@pytest.mark.parametrize(
    ("diagnosed", "shows"),
    [
        ({"activation_type": "int8", "symmetric": True}, {"activation_type": "int8", "symmetric": True}),
        ({"per_channel": True, "format": "QOperator"}, {"per_channel": True, "format": "QOperator"}),
        ({"approach": "dynamic", "weight_type": "uint8"}, {"approach": "dynamic", "weight_type": "uint8"}),
        ({"op_types": ["Conv", "Gemm"]}, {"format": None, "per_channel": False}),
    ],
    indirect=["diagnosed"],
    ids=["symmetric", "qoperator", "dynamic", "op types"],
)
def test_how_it_was_quantized_is_read_off(diagnosed: tuple[Path, Diagnosis], shows: dict[str, Any]) -> None:
    int8, diagnosis = diagnosed
    found = framework_of(HARD).read_settings(int8, diagnosis.ops)
    assert {name: found.get(name) for name in shows} == shows
    if "op_types" in found:
        assert {"Conv", "Gemm"} <= set(found["op_types"])
        assert "MatMul" not in found["op_types"]


@pytest.mark.parametrize("diagnosed", [{}], indirect=True)
def test_a_rewrite_that_takes_the_cause_away_is_offered_and_holds(
    diagnosed: tuple[Path, Diagnosis], tmp_path: Path
) -> None:
    int8, diagnosis = diagnosed
    found = rewritten_instead(HARD, int8, SAMPLES, diagnosis)
    assert found is not None
    assert found.recovered > 0.99
    made = apply(HARD, found.write(tmp_path))
    tool = inc_tb.OnnxRuntimeQuantizer(activation_type="uint8", preprocess=False)
    onnx.save(made, tmp_path / "rewritten.onnx")
    tool.quantize(tmp_path / "rewritten.onnx", tmp_path / "anew.onnx", [SAMPLES], tool.settings, [])
    own, theirs = (open_results(path)(SAMPLES)[0] for path in (HARD, tmp_path / "anew.onnx"))
    error = np.square(theirs - own).sum() / np.square(own - own.mean(axis=0)).sum()
    assert error == pytest.approx(found.after.error, rel=0.05)


@pytest.mark.parametrize("diagnosed", [{}], indirect=True)
def test_no_rewrite_is_offered_where_none_helps_or_another_cause_is_told(
    diagnosed: tuple[Path, Diagnosis], monkeypatch: pytest.MonkeyPatch
) -> None:
    int8, diagnosis = diagnosed
    first = msgspec.structs.replace(diagnosis.suggestions[0], rule="high_error")
    assert rewritten_instead(HARD, int8, SAMPLES, replace(diagnosis, suggestions=[first])) is None
    assert rewritten_instead(HARD, int8, SAMPLES, replace(diagnosis, suggestions=[])) is None
    clean = DATA / "clean.onnx"  # has nothing to scale
    assert rewritten_instead(clean, int8, SAMPLES, diagnosis) is None
    monkeypatch.setattr("inc_tb.tuning.rewriting._WORTH", 1.1)
    assert rewritten_instead(HARD, int8, SAMPLES, diagnosis) is None


def test_a_model_in_pytorch_is_verified_as_well() -> None:
    case = torch_defects.made("outlier channel", 1, "mlp")
    for settings in ({"approach": "static"}, {"approach": "static", "per_channel": False}):
        tool = inc_tb.TorchQuantizer(**settings)  # type: ignore[arg-type]
        ready = tool.prepare(case.fp32, Path())
        int8 = tool.quantize(ready, Path(), torch_defects.calibration(), tool.settings, [])
        diagnosis = inc_tb.diagnose(case.fp32, int8, torch_defects.probed())
        found = verify(case.fp32, int8, torch_defects.calibration(), diagnosis)
        assert {name: found.settings[name] for name in settings} == settings
        assert found.is_alike
        assert found.comparison[CURED].error < 0.1 * found.comparison[GIVEN].error
        if settings.get("per_channel") is False:
            instead = rewritten_instead(case.fp32, int8, torch_defects.calibration(), diagnosis)
            assert instead is not None
            assert instead.recovered > 0.9


def test_without_a_suggestion_there_is_nothing_to_verify(tmp_path: Path) -> None:
    clean = DATA / "clean.onnx"
    tool = inc_tb.OnnxRuntimeQuantizer(activation_type="uint8", per_channel=True, preprocess=False)
    tool.quantize(clean, tmp_path / "int8.onnx", [SAMPLES], tool.settings, [])
    diagnosis = inc_tb.diagnose(clean, tmp_path / "int8.onnx", SAMPLES)
    with pytest.raises(UsageError, match="no suggestion to verify"):
        verify(clean, tmp_path / "int8.onnx", SAMPLES, diagnosis)
