"""What every strategy must do: find the culprits, heed its limits, go on where it was, draw the same again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import inc_tb
from inc_tb.errors import DataError, UsageError
from inc_tb.tuning.attempt import Attempt
from inc_tb.tuning.history import FILE
from inc_tb.tuning.strategies.named import STRATEGIES, find_strategy
from inc_tb.tuning.strategies.space import Draws, Point, Space
from tests.tuning.test_tune import CULPRITS, PLENTY_S, tune_hard
from tests.waiting import Clock

BUDGETS = {
    "auto": 8, "basic": 30, "bayesian": 30, "conservative": 8, "exhaustive": 60, "mse": 30, "mse_v2": 4, "probe": 6,
    "random": 30, "tpe": 30,
}  # fmt: skip
DRAWN = ("bayesian", "random", "tpe")


def fallbacks(found: inc_tb.Tuned) -> list[tuple[list[str], Any]]:
    return [(trial.fallback, trial.config) for trial in found.trials]


def tuned(logdir: Path, strategy: str, **options: Any) -> inc_tb.Tuned:
    return tune_hard(logdir, strategy=strategy, diagnosis_samples=0, **options)


def test_each_has_a_budget() -> None:
    assert set(BUDGETS) == set(STRATEGIES)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_finds_the_culprits_within_its_budget(tmp_path: Path, strategy: str) -> None:
    found = tuned(tmp_path, strategy, max_trials=BUDGETS[strategy])
    assert found.met
    assert set(CULPRITS) <= set(found.best.fallback)
    assert len(found.trials) <= BUDGETS[strategy]


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "probe"])
def test_it_is_resumed_at_every_trial(tmp_path: Path, strategy: str) -> None:
    """Also after those that meet the criterion; probe has tests of its own in test_history.py."""
    given = {"timeout": PLENTY_S, "random_seed": 3}
    count = 14 if strategy in DRAWN else 3 if strategy == "mse_v2" else 6  # optimizers begin with draws
    whole = tuned(tmp_path / "whole", strategy, max_trials=count, **given)
    for upto in range(1, len(whole.trials) + 1):
        part = tuned(tmp_path / "parts", strategy, max_trials=upto, resume=upto > 1, **given)
        assert fallbacks(part) == fallbacks(whole)[:upto]
        assert part.evaluations == (2 if upto == 1 else 1)
    assert part.best.fallback == whole.best.fallback


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_timeout_ends_it(tmp_path: Path, strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("inc_tb.tuning.loop.time.monotonic", lambda: clock.now)

    def evaluate(path: str) -> float:
        clock.tick(1)
        return 1.0 if clock.now < 1002 else 0.5

    found = tuned(tmp_path, strategy, evaluate=evaluate, timeout=2.5, probe_s=1e9)
    assert len(found.trials) == 2
    assert "the 2.5 s are used up" in found.reason


@pytest.mark.parametrize("strategy", DRAWN)
def test_the_seed_says_what_is_drawn(tmp_path: Path, strategy: str) -> None:
    first, same, other = (
        fallbacks(tuned(tmp_path / f"{at}", strategy, max_trials=4, timeout=PLENTY_S, random_seed=seed))
        for at, seed in enumerate((5, 5, 6))
    )
    assert first == same != other


def test_another_seed_does_not_go_on_with_it(tmp_path: Path) -> None:
    tuned(tmp_path, "random", max_trials=1, random_seed=7)
    assert '"random_seed":7' in (tmp_path / FILE).read_text()
    with pytest.raises(UsageError, match="holds a tuning that differs in random_seed"):
        tuned(tmp_path, "random", max_trials=2, resume=True)


def test_a_tuning_that_was_begun_before_there_were_seeds_goes_on(tmp_path: Path) -> None:
    tuned(tmp_path, "basic", max_trials=1)
    history = tmp_path / FILE
    history.write_text(history.read_text().replace(',"random_seed":0', ""))
    assert "random_seed" not in history.read_text()
    assert len(tuned(tmp_path, "basic", max_trials=2, resume=True).trials) == 2


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_is_none(tmp_path: Path, seed: int) -> None:
    with pytest.raises(UsageError, match=f"random_seed={seed} was given; expected"):
        tuned(tmp_path, "random", random_seed=seed)


@pytest.mark.parametrize("strategy", ["bayesian", "tpe"])
def test_an_optimizer_that_is_not_installed(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    said = rf"the strategy {strategy} needs optuna, which is not installed: pip install 'inc-tb\[{strategy}\]'"
    with pytest.raises(UsageError, match=said):
        find_strategy(strategy)


# On a bench that answers at once


class Bench:
    """Both of CULPRITS must be kept; some settings do not work at all."""

    allowed = 0.01
    width = 0
    quantizer: Any

    def __init__(self, fails: Sequence[int] = (), others: int = 2, seed: int = 0) -> None:
        self.fails, self.others, self.random_seed = fails, others, seed
        self.quantizer = self
        self.settings = {"way": 0}

    def variants(self) -> list[dict[str, int]]:
        return [{"way": 1}, {"way": 2}]

    def units(self, attempt: Attempt) -> list[str]:
        return [*CULPRITS, *(f"other {at}" for at in range(self.others))]

    def quantized(self, attempt: Attempt) -> None:
        if attempt.settings["way"] in self.fails:
            raise inc_tb.errors.ModelError("too much for this tool")

    def loss(self, trial: inc_tb.Trial) -> float:
        return float("inf") if trial.accuracy is None else 1 - trial.accuracy

    def is_met(self, trial: inc_tb.Trial) -> bool:
        return self.loss(trial) <= self.allowed


def tried(strategy: str, bench: Any, count: int = 1000) -> list[tuple[int, frozenset[str]]]:
    attempts = STRATEGIES[strategy](bench)
    found: list[tuple[int, frozenset[str]]] = []
    try:
        attempt = next(attempts)
        while len(found) < count:
            way = attempt.settings["way"]
            found.append((way, frozenset(attempt.keep)))
            accuracy = None if way in bench.fails else 1.0 if set(CULPRITS) <= set(attempt.keep) else 0.5
            attempt = attempts.send(inc_tb.Trial("t", accuracy, 1.0, list(attempt.keep)))
    except StopIteration:
        pass
    return found


@pytest.mark.parametrize("strategy", ["exhaustive", *DRAWN])
def test_everything_is_tried_once_and_then_it_ends(strategy: str) -> None:
    found = tried(strategy, Bench())
    assert len(found) == len(set(found)) == 3 * 2**4
    assert found[0] == (0, frozenset())


def test_optimizers_make_more_of_their_trials_than_chance() -> None:
    smallest: dict[str, int] = {}
    for name in DRAWN:
        runs = [tried(name, Bench(others=10, seed=seed), 40) for seed in range(3)]
        smallest[name] = sum(min(len(kept) for _, kept in run if set(CULPRITS) <= kept) for run in runs)
    assert smallest["tpe"] < smallest["random"] - 3
    assert smallest["bayesian"] < smallest["random"] - 3
    assert smallest["bayesian"] >= 6


def test_exhaustive_goes_from_few_to_many() -> None:
    sizes = [len(kept) for _, kept in tried("exhaustive", Bench())]
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("strategy", ["exhaustive", *DRAWN])
def test_settings_that_the_tool_cannot_do_are_no_obstacle(strategy: str) -> None:
    found = tried(strategy, Bench(fails=[0, 2]))
    assert found[:2] == [(0, frozenset()), (1, frozenset())]
    assert (1, frozenset(CULPRITS)) in found


@pytest.mark.parametrize("strategy", ["exhaustive", *DRAWN])
def test_a_tool_that_can_do_nothing_ends_it(strategy: str) -> None:
    assert tried(strategy, Bench(fails=[0, 1, 2])) == [(way, frozenset()) for way in (0, 1, 2)]


def test_sets_of_all_sizes_are_drawn() -> None:
    space = Space([{"way": 0}], [str(i) for i in range(30)])
    draws = Draws(space, 0, Point(0, (False,) * 30))
    sizes = [sum(draws.next().keeps) for _ in range(300)]
    assert min(sizes) <= 2
    assert max(sizes) >= 28


# Conservative and auto


def test_conservative_goes_from_fp32_type_by_type(tmp_path: Path) -> None:
    found = tuned(tmp_path, "conservative")
    assert [trial.notes[0] for trial in found.trials][:3] == [
        "conv in int8 as well", "matmul in int8 as well", "gemm in int8 as well",
    ]  # fmt: skip
    kept = [set(trial.fallback) for trial in found.trials]
    assert set(CULPRITS).isdisjoint(kept[0])  # all convolutions at once, which lose it
    assert all(set(CULPRITS) <= rest for rest in kept[1:])
    assert [len(rest) for rest in kept[1:]] == sorted((len(rest) for rest in kept[1:]), reverse=True)
    assert found.best.name == found.trials[-1].name  # that it meets the criterion before does not end it


def test_auto_is_content_with_int8_where_that_will_do(tmp_path: Path) -> None:
    found = tuned(tmp_path, "auto", tolerance=0.5, timeout=PLENTY_S)
    assert fallbacks(found) == [([], found.trials[0].config)]


def test_auto_ends_with_basic_and_tries_nothing_twice(tmp_path: Path) -> None:
    """With nothing ever good enough it goes through both."""
    alone = tuned(tmp_path / "basic", "basic", evaluate=_worse, max_trials=9, tolerance=0)
    found = tuned(tmp_path / "auto", "auto", evaluate=_worse, max_trials=14, tolerance=0)
    told = [(tuple(sorted(kept)), str(config)) for kept, config in fallbacks(found)]
    assert len(set(told)) == len(told) == 14
    assert [trial.fallback for trial in found.trials if trial.fallback and len(trial.fallback) == 1][:3] == [
        trial.fallback for trial in alone.trials if trial.fallback
    ][:3]


def _worse(path: str) -> float:
    return 1.0 if "prepared" in path or path.endswith("hard.onnx") else 0.5


def test_an_unreadable_strategy_file_is_named(tmp_path: Path) -> None:
    with pytest.raises((DataError, UsageError), match=r"nowhere\.py: no such file"):
        find_strategy(tmp_path / "nowhere.py:f")
