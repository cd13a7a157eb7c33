"""The configuration objects of the real Neural Compressor 2.x."""

from __future__ import annotations

from typing import Any

import pytest

import inc_tb
from inc_tb.errors import UsageError


def made(**fields: Any) -> Any:
    from neural_compressor.config import AccuracyCriterion, PostTrainingQuantConfig, TuningCriterion

    tuning = TuningCriterion(strategy="mse", timeout=5, max_trials=9)
    accuracy = AccuracyCriterion(criterion="absolute", tolerable_loss=0.2, higher_is_better=False)
    return PostTrainingQuantConfig(**{"tuning_criterion": tuning, "accuracy_criterion": accuracy, **fields})


def test_it_is_taken_over() -> None:
    found = inc_tb.read_config(made(quant_level=1, calibration_sampling_size=[64], reduce_range=True))
    assert found.arguments == {
        "strategy": "mse", "timeout": 5.0, "max_trials": 9, "objectives": ("latency",), "relative": False,
        "tolerance": 0.2, "higher_is_better": False, "samples": 64,
    }  # fmt: skip
    assert found.wanted == {"dynamic": False, "reduce-range": True}
    assert all("have no effect here" in note or "has no effect here" in note for note in found.notes)


def test_its_default_is_auto() -> None:
    from neural_compressor.config import PostTrainingQuantConfig

    found = inc_tb.read_config(PostTrainingQuantConfig())
    assert found.arguments["strategy"] == "auto"
    assert found.arguments["tolerance"] == 0.01
    assert all("no effect here" in note for note in found.notes)


def test_what_is_not_carried_out_is_said() -> None:
    found = inc_tb.read_config(made(recipes={"smooth_quant": True}, op_name_dict={"a": {"weight": {"dtype": "fp32"}}}))
    told = "\n".join(found.notes)
    assert "recipes.smooth_quant: True is a recipe that is not carried out" in told
    assert "op_name_dict: settings of single ops are not taken over" in told
    assert "quant_level: auto goes before tuning_criterion.strategy: mse" in told


def test_weights_only() -> None:
    with pytest.raises(UsageError, match="weight_only was given; expected static"):
        inc_tb.read_config(made(approach="weight_only"))
