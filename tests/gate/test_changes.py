"""What is told from chance, on noise that is made here."""

from __future__ import annotations

import numpy as np
import pytest

from inc_tb.gate.changes import LEAST_SAMPLES, Change, Noise, change, noise, pair

ONES = np.ones(40, np.float32)


def ids(*names: int) -> bytes:
    return np.array(names, "<u8").tobytes()


def level(decibels: list[float]) -> Noise:
    values = np.array(decibels)
    return Noise(values, np.ones(len(values), bool))


def test_noise_by_hand() -> None:
    """An error of a hundredth is -20 dB; none is as quiet as is told apart; what has no energy has no noise."""
    power = np.array([1, 4, 1, 0, 1, np.inf], np.float32)
    error = np.array([0.01, 0.04, 0, 1, np.inf, np.inf], np.float32)
    found = noise(power, error)
    np.testing.assert_allclose(found.decibels, [-20, -20, -80, np.nan, 100, np.nan], rtol=1e-6)
    assert found.is_finite.tolist() == [True, True, True, True, False, False]


def test_samples_are_paired_by_what_they_are() -> None:
    found = pair(ids(*range(20)), ids(*range(19, -1, -1)))
    assert found.is_paired
    assert found.base.tolist() == list(range(19, -1, -1))
    assert found.new.tolist() == list(range(20))
    twice = pair(ids(7, 7, *range(20, 40)), ids(7, 7, 7, *range(20, 30)))
    assert list(zip(twice.base.tolist(), twice.new.tolist(), strict=True))[:3] == [(0, 0), (1, 1), (2, 3)]
    assert not pair(ids(*range(20)), ids(*range(100, 120))).is_paired
    assert not pair(ids(*range(100)), ids(*range(90, 190))).is_paired, "ten of a hundred say less than all"


def test_a_small_difference_in_every_sample_is_seen_however_much_samples_differ() -> None:
    """Samples differ by 40 dB, the two runs by 1 dB with 0.1 dB of chance: only sample by sample it is seen."""
    random = np.random.default_rng(0)
    base = random.uniform(-60, -20, 40)
    new = base + 1 + random.normal(0, 0.1, 40)
    same = pair(ids(*range(40)), ids(*range(40)))
    found = change(level(base.tolist()), level(new.tolist()), same)
    assert found is not None
    assert found.middle == pytest.approx(1, abs=0.1)
    assert 0.9 < found.low < found.middle < found.high < 1.1
    assert found.is_worse(0.5)
    assert not found.is_worse(3.0)
    assert not found.is_better(0.5)
    others = change(level(base.tolist()), level(new.tolist()), pair(ids(*range(40)), ids(*range(50, 90))))
    assert others is not None
    assert not others.is_worse(0.5)
    assert others.low < 0 < others.high
    back = change(level(new.tolist()), level(base.tolist()), same)
    assert back is not None
    assert back.is_better(0.5)


def test_equal_runs_have_not_changed() -> None:
    one = level(np.linspace(-50, -20, 40).tolist())
    found = change(one, one, pair(ids(*range(40)), ids(*range(40))))
    assert found == Change(-35, -35, 0, 0, 0, 40)
    assert not found.is_worse(0)


def test_a_fault_of_few_samples_is_seen_beside_many_that_are_as_before() -> None:
    base = np.full(100, -40.0)
    for count, is_seen in ((7, False), (8, True)):  # 1/2⁷ is more than the half percent that is allowed, 1/2⁸ is less
        new = base.copy()
        new[:count] += 10
        found = change(level(base.tolist()), level(new.tolist()), pair(ids(*range(100)), ids(*range(100))))
        assert found is not None
        assert found.rare == (count if is_seen else 0)
        new[50 : 50 + count] -= 10  # as many that are better: chance
        found = change(level(base.tolist()), level(new.tolist()), pair(ids(*range(100)), ids(*range(100))))
        assert found is not None
        assert found.rare == 0


def test_a_result_that_is_not_finite_any_more_is_a_change() -> None:
    error = ONES / 100
    broken = error.copy()
    broken[3] = np.inf
    same, others = (pair(ids(*range(40)), ids(*range(start, start + 40))) for start in (0, 100))
    for pairing in (same, others):
        found = change(noise(ONES, error), noise(ONES, broken), pairing)
        assert found is not None
        assert (found.lost, found.is_worse(0.5)) == (1, True)
        found = change(noise(ONES, broken), noise(ONES, broken), pairing)
        assert found is not None
        assert found.lost == 0


def test_too_few_samples_tell_nothing() -> None:
    few = LEAST_SAMPLES - 1
    for pairing in (pair(ids(*range(8)), ids(*range(8))), pair(ids(*range(8)), ids(*range(50, 58)))):
        assert change(level([-30.0] * few), level([-10.0] * few), pairing) is None


def test_two_runs_on_other_samples_are_compared_as_welch_does() -> None:
    """Means 0 and 3, variances 1 and 4 of 8 and 16 values: standard error sqrt(1/8 + 4/16) = 0.612, 21 degrees."""
    spread = np.array([1.0, -1.0] * 4) * np.sqrt(7 / 8), np.array([2.0, -2.0] * 8) * np.sqrt(15 / 16)
    apart = pair(ids(*range(8)), ids(*range(50, 66)))
    found = change(level((spread[0] - 40).tolist()), level((spread[1] - 37).tolist()), apart)
    assert found is not None
    assert found.middle == pytest.approx(3)
    assert found.high - found.middle == pytest.approx(2.5176 * 0.61237, rel=1e-4)  # 99th percentile of Student's t
