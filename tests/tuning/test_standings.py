"""Which of the trials is the best, and which are worth a choice."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from inc_tb import Trial, Tuned
from inc_tb.errors import UsageError
from inc_tb.tuning.criterion import Criterion
from inc_tb.tuning.objectives import minimized, with_minimized
from inc_tb.tuning.standings import Standings

FAST, SMALL = "latency_ms", "size_kb"


def trial(name: str, accuracy: float | None, ms: float, kept: int = 0, kb: float = 100, **config: Any) -> Trial:
    objectives = {FAST: ms, SMALL: kb}
    return Trial(name, accuracy, 1.0, [f"op {i}" for i in range(kept)], config, objectives, target=0.9)


def standings(*trials: Trial, minimize: str = FAST, fp32_ms: float = 10) -> Standings:
    found = Standings(Criterion(0.1))
    found.baseline, found.baseline_objectives = 1.0, {FAST: fp32_ms, SMALL: 400}
    found.minimize, found.trials = minimize, list(trials)
    return found


def test_the_fastest_that_meets_the_criterion_is_the_best_however_much_is_in_fp32() -> None:
    found = standings(trial("a", 0.5, 2), trial("b", 0.95, 6, kept=1), trial("c", 0.91, 4, kept=30))
    assert found.best.name == "c"
    found.minimize = "ops"
    assert found.best.name == "b"


def test_of_those_that_are_as_fast_the_smaller_then_the_one_with_fewer_ops_then_the_more_accurate() -> None:
    one, smaller = trial("one", 0.99, 4.0, kb=100), trial("smaller", 0.91, 4.1, kb=50, kept=9)
    fewer, better = trial("fewer", 0.92, 4.1, kb=51, kept=2), trial("better", 0.93, 4.15, kb=52, kept=2)
    slower = trial("slower", 1.0, 4.3, kb=10)
    assert standings(one, smaller).best.name == "smaller"
    assert standings(one, smaller, fewer).best.name == "fewer"
    assert standings(one, smaller, fewer, better, slower).best.name == "better"


def test_where_none_meets_it_the_one_that_loses_least() -> None:
    assert standings(trial("a", 0.5, 2), trial("b", 0.7, 9), trial("c", None, 1)).best.name == "b"


def test_sixteen_bits_count_as_ops_that_are_not_in_int8() -> None:
    long = trial("long", 1.0, 1, int16_tensors=["x", "y"])
    assert standings(trial("kept", 1.0, 1, kept=1), long, minimize="ops").best.name == "kept"


def test_the_front_has_fp32_as_a_point() -> None:
    fast, good, worse = trial("fast", 0.5, 2), trial("good", 0.95, 4), trial("worse", 0.9, 5)
    assert standings(worse, good, fast).front == ["fast", "good", "fp32"]
    slow = trial("slow", 0.99, 11)
    assert standings(slow, good).front == ["good", "fp32"]
    same = trial("as good as fp32", 1.0, 3)
    assert standings(same, fast, good).front == ["fast", "as good as fp32"]


def test_what_has_no_number_is_not_on_the_front() -> None:
    assert standings(trial("a", None, 1), trial("b", 0.5, math.inf)).front == ["fp32"]


@pytest.mark.parametrize(
    ("trials", "pays"),
    [
        ([trial("lossy", 0.5, 2), trial("slow", 0.95, 12)], False),
        ([trial("lossy", 0.5, 2), trial("good", 0.95, 8)], True),
        ([trial("lossy", 0.5, 2)], True),
        ([trial("lossy", 0.5, 12)], False),
        ([trial("like fp32", 0.95, 9.8)], False),
        ([Trial("untimed", 1.0, 1.0, target=0.9)], None),
    ],
)  # fmt: skip
def test_whether_int8_pays_is_told_by_what_meets_the_criterion(trials: list[Trial], pays: bool | None) -> None:
    met = any(t.is_met for t in trials)
    found = Tuned(1.0, 0.9, met, trials[0], Path("none"), "", trials, baseline_objectives={FAST: 10.0})
    assert found.int8_pays is pays


# What is to be small


def test_the_latency_is_unless_told_otherwise_where_it_says_something_of_the_kernels() -> None:
    assert minimized(None, {FAST: 5.0}) == FAST
    assert minimized(None, {FAST: 0.01}) == "ops"
    assert minimized(None, {SMALL: 5.0}) == "ops"
    assert minimized("latency", {FAST: 0.01}) == FAST
    assert minimized("size", {FAST: 5.0}) == SMALL
    assert minimized("shapley", {}) == "shapley"


def test_it_is_measured_if_it_was_no_objective() -> None:
    def shapley(path: str) -> float:
        return 0.0

    assert with_minimized("memory", ["latency"]) == ["latency", "memory"]
    assert with_minimized("latency", ["latency", "size"]) == ["latency", "size"]
    assert with_minimized("ops", []) == []
    assert with_minimized("shapley", [shapley]) == [shapley]
    assert with_minimized("cost", ["own.py:cost"]) == ["own.py:cost"]


@pytest.mark.parametrize("asked", ["speed", "throughput"])
def test_what_cannot_be_small(asked: str) -> None:
    with pytest.raises(UsageError, match=rf"minimize='{asked}' was given.*expected latency"):
        with_minimized(asked, ["throughput", "latency"])
