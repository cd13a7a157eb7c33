"""Strategies and quantizers of the user's own: objects, and file.py:function."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import inc_tb
from inc_tb.errors import IncTbError, UsageError
from inc_tb.tuning.loop import rebuild
from tests.digits import DATA, digits
from tests.tuning import own_tools as own

CLEAN, FILE = DATA / "clean.onnx", Path(own.__file__)
STEPS = [[], ["/conv1/Conv"], ["/conv1/Conv", "/conv2/Conv"]]


def tune(logdir: Path, **options: Any) -> inc_tb.Tuned:
    given = {"strategy": own.one_by_one, "quantizer": own.Copies(), "objectives": (), "diagnosis_samples": 0, **options}
    return inc_tb.tune(CLEAN, {"input": digits(2)}, own.accuracy, logdir=logdir, **given)


@pytest.mark.parametrize(
    "strategy",
    [own.one_by_one, own.OneByOne(), lambda b: own.one_by_one(b), f"{FILE}:one_by_one", partial(own.one_by_one)],
    ids=["function", "object", "lambda", "file", "partial"],
)  # fmt: skip
def test_a_strategy_in_every_form(tmp_path: Path, strategy: Any) -> None:
    found = tune(tmp_path, strategy=strategy)
    assert [trial.fallback for trial in found.trials] == STEPS
    assert found.met
    assert found.best.notes == ["and /conv2/Conv"]
    assert found.recipe.endswith("copies(keep=['/conv1/Conv', '/conv2/Conv'])")


@pytest.mark.parametrize(
    "quantizer", [own.Copies(), f"{FILE}:make_copies", f"{FILE}:Copies"], ids=["object", "function", "class"]
)
def test_a_quantizer_in_every_form(tmp_path: Path, quantizer: Any) -> None:
    found = tune(tmp_path / "log", quantizer=quantizer)
    assert [trial.config for trial in found.trials] == [{"way": "copy"}] * 3
    again = rebuild(CLEAN, {"input": digits(2)}, found.best, tmp_path / "again.onnx", quantizer=quantizer)
    assert again.read_bytes() == found.model.read_bytes()


def test_strategies_of_ours_work_with_a_quantizer_that_has_no_other_settings(tmp_path: Path) -> None:
    found = tune(tmp_path, strategy="basic", max_trials=4)
    assert found.trials[0].fallback == []
    assert found.reason.startswith("the best has")


def test_a_strategy_that_ends_says_so(tmp_path: Path) -> None:
    found = tune(tmp_path, strategy=own.backwards)
    assert not found.met
    assert [trial.fallback for trial in found.trials] == [["/conv2/Conv"], ["/conv1/Conv"]]
    assert found.reason.endswith(f"the strategy {own.__name__}.backwards has nothing more to try")


@pytest.mark.parametrize(
    "strategy", [own.one_by_one, own.OneByOne(), f"{FILE}:one_by_one"], ids=["f", "object", "file"]
)
def test_a_strategy_is_resumed_where_it_was(tmp_path: Path, strategy: Any) -> None:
    first = tune(tmp_path, strategy=strategy, max_trials=2)
    assert not first.met
    second = tune(tmp_path, strategy=strategy, resume=True)
    assert [trial.fallback for trial in second.trials] == STEPS
    assert second.trials[:2] == first.trials
    assert second.evaluations == 1


def test_another_strategy_does_not_go_on_with_it(tmp_path: Path) -> None:
    tune(tmp_path, max_trials=1)
    with pytest.raises(UsageError, match="holds a tuning that differs in strategy"):
        tune(tmp_path, strategy=own.backwards, resume=True)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a number": ({"strategy": 3}, "strategy 3 was given; expected one of probe, auto, basic"),
    "a list": ({"strategy": ["probe"]}, r"strategy \['probe'\] was given"),
    "a name": ({"strategy": "bayes"}, "strategy 'bayes' was given"),
    "no file": ({"strategy": "nowhere.py:f"}, "nowhere.py: no such file"),
    "no function": ({"strategy": f"{FILE}:nothing"}, "has no function 'nothing'"),
    "no generator": ({"strategy": own.no_generator}, "no_generator gives a list; expected a generator function"),
    "text": ({"strategy": own.yields_text}, r"yields_text yields a str; expected inc_tb\.Attempt"),
    "raises": ({"strategy": own.raises}, "the strategy .*raises failed: ValueError: at once"),
    "no quantizer": ({"quantizer": f"{FILE}:no_quantizer"}, "the quantizer int has no settings, prepare, quantize"),
    "class": ({"quantizer": own.Copies}, r"the class Copies was given as a quantizer; expected an object: Copies\(\)"),
    "failing quantizer": ({"quantizer": f"{FILE}:no_quantizer_either"}, "failed: ValueError: no tool. It must return"),
    "name of a quantizer": ({"quantizer": "OnnxRuntimeQuantizer"}, "OnnxRuntimeQuantizer was given; expected file.py"),
}  # fmt: skip


@pytest.mark.parametrize(("options", "said"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_with_it_is_told(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(IncTbError, match=said):
        tune(tmp_path / "log", **options)
    assert not list(tmp_path.rglob("trial-*"))


def test_a_strategy_that_fails_later_leaves_its_trials(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="raises_later failed: ValueError: later"):
        tune(tmp_path, strategy=own.raises_later)
    assert inc_tb.load(tmp_path / "trial-001").trial.accuracy == 0.5
    assert (tmp_path / "best_model.onnx").is_file()
