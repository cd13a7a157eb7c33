"""The probe of a few seconds that is part of `inc-tb diagnose`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx

import inc_tb
from inc_tb.search.brief import BUDGET_S, budget_after, probe_briefly
from tests.digits import DATA, digits
from tests.frameworks import onnx_zoo as zoo

Quantized = Callable[..., Path]
BATCHES = [{"input": digits(16)}]
LONG = 600.0


def test_the_suggestion_of_a_broken_model_is_measured(quantized: Quantized) -> None:
    models = DATA / "hard.onnx", quantized("hard")
    before = inc_tb.diagnose(*models, BATCHES)
    found = probe_briefly(models, BATCHES, before, LONG, None)
    assert found.complete
    assert found.comparison["real"].error > 0.1
    first = found.diagnosis.suggestions[0]
    assert (first.rule, set(first.ops)) == ("outlier_channels", {"/conv1/Conv", "/conv2/Conv"})
    assert first.evidence["recovered"] > 0.9


def test_nothing_is_suggested_where_the_output_is_healthy(quantized: Quantized) -> None:
    models = DATA / "clean.onnx", quantized("clean", per_channel=True)
    before = inc_tb.diagnose(*models, BATCHES)
    assert probe_briefly(models, BATCHES, before, LONG, None).diagnosis.notes == before.notes
    alarmed = replace(before, suggestions=[inc_tb.Suggestion(["/conv1/Conv"], "high_error", "it is high", {}, rank=1)])
    found = probe_briefly(models, BATCHES, alarmed, LONG, None)
    assert found.diagnosis.suggestions == []
    close, left_out = found.diagnosis.notes[-2:]
    assert close.startswith("the output is as close to fp32 as healthy int8 gets")
    assert left_out.startswith("1 suggestion that follows from single ops alone left out")
    assert found.comparison["real"].error < 0.01
    assert len(alarmed.suggestions) == 1


def test_healthy_rounding_that_adds_up_is_no_cure(tmp_path: Path) -> None:
    """Nothing was trained here, and nothing is wrong with any op: about a hundredth is lost all the same."""
    net = zoo.cnn()
    path = net.save(tmp_path)
    feeds = zoo.data(net, 32)
    models = path, zoo.static(path, feeds)
    found = probe_briefly(models, [feeds], inc_tb.diagnose(*models, feeds), LONG, None)
    assert 0.003 < found.comparison["simulated"].error < 0.1
    assert found.diagnosis.suggestions == []
    assert "no op is to blame: it is the sum of healthy rounding" in found.diagnosis.notes[-1]


def test_without_time_the_diagnosis_stays_and_says_so(quantized: Quantized) -> None:
    models = DATA / "hard.onnx", quantized("hard")
    before = inc_tb.diagnose(*models, BATCHES)
    found = probe_briefly(models, BATCHES, before, 0.0, None)
    assert (found.complete, found.comparison) == (False, {})
    assert found.diagnosis.suggestions == before.suggestions
    assert found.diagnosis.notes[-1].startswith("what ops do to the output was not probed: 0 s are too few")


def test_what_cannot_be_switched_is_left_as_it_is(quantized: Quantized) -> None:
    """Whatever happens, it is one line."""
    models = DATA / "hard.onnx", quantized("hard")
    before = inc_tb.diagnose(*models, BATCHES)
    broken = onnx.load(models[1])
    broken.graph.node[0].op_type = "NoSuchOp"
    found = probe_briefly((models[0], broken), BATCHES, before, LONG, None)
    assert found.diagnosis.suggestions == before.suggestions
    assert found.diagnosis.notes[-1].startswith("what ops do to the output was not probed: ")
    assert "\n" not in found.diagnosis.notes[-1]


def test_the_budget_grows_with_what_the_comparison_took() -> None:
    assert budget_after(1.0) == BUDGET_S
    assert budget_after(40.0) == 20.0
