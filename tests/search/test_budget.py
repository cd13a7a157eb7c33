"""Time for a search, and stopping where it stopped before."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from inc_tb.search.budget import Budget
from inc_tb.search.journal import Journal
from tests.waiting import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr("inc_tb.search.budget.time.monotonic", lambda: found.now)
    return found


def test_it_is_over_after_its_seconds(clock: Clock) -> None:
    budget = Budget(10)
    clock.tick(10)
    assert (budget.is_over(), budget.used) == (False, 1)
    clock.tick(1)
    assert budget.is_over()


def test_what_takes_time_besides_does_not_count(clock: Clock) -> None:
    budget = Budget(10)
    with budget.paused():
        clock.tick(50)
        with budget.paused():
            clock.tick(50)
    clock.tick(5)
    assert (budget.is_over(), budget.used) == (False, 0.5)


def test_once_it_is_over_it_stays_so(clock: Clock) -> None:
    budget = Budget(10)
    clock.tick(11)
    assert budget.is_over()
    with budget.paused():
        clock.tick(1)
        assert budget.is_over()


def test_without_seconds_it_never_ends(clock: Clock) -> None:
    budget = Budget()
    clock.tick(1e12)
    assert (budget.is_over(), budget.used, budget.seconds) == (False, 0, math.inf)


def test_none_at_all_is_over_at_once(clock: Clock) -> None:
    assert Budget(0).used == 1


def test_a_search_that_goes_on_stops_at_the_same_question(clock: Clock, tmp_path: Path) -> None:
    first = Budget(10, Journal(tmp_path / "j.jsonl"))
    answers = [first.is_over() for _ in range(3)]
    clock.tick(11)
    answers += [first.is_over() for _ in range(2)]
    assert answers == [False, False, False, True, True]
    again = Budget(10, Journal(tmp_path / "j.jsonl"))
    assert [again.is_over() for _ in range(5)] == answers, "though no time has passed"


def test_a_share_of_it_is_over_before(clock: Clock, tmp_path: Path) -> None:
    first = Budget(10, Journal(tmp_path / "j.jsonl"))
    clock.tick(6)
    assert [first.is_over(), first.is_over(0.5), first.is_over()] == [False, True, False]
    again = Budget(10, Journal(tmp_path / "j.jsonl"))
    assert [again.is_over(), again.is_over(0.5), again.is_over()] == [False, True, False]


def test_a_search_that_was_cut_off_before_has_all_of_its_time_again(clock: Clock, tmp_path: Path) -> None:
    first = Budget(10, Journal(tmp_path / "j.jsonl"))
    clock.tick(9)
    assert not first.is_over()
    again = Budget(10, Journal(tmp_path / "j.jsonl"))
    clock.tick(9)
    assert not again.is_over()
