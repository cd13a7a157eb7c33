"""When two series of times differ: known quantiles, and how often equal models are told apart by mistake."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inc_tb.profiling.noise import LEAST_BLOCKS, LEVEL, Interval, difference, quantile

Times = npt.NDArray[np.float64]
BLOCKS, RUNS, OPS = 10, 5, 8

# scipy.stats.t.ppf: degrees of freedom -> share -> quantile
KNOWN = {
    1: {0.75: 1.0, 0.9: 3.0776835371752544, 0.975: 12.706204736174694, 0.9995: 636.6192487687897},
    2: {0.75: 0.8164965809277261, 0.9: 1.8856180831641272, 0.975: 4.302652729749462, 0.9995: 31.599054576445365},
    3: {0.75: 0.7648923284043444, 0.9: 1.637744353696209, 0.975: 3.1824463052837078, 0.9995: 12.923978636687961},
    4: {0.75: 0.7406970841126829, 0.9: 1.533206274058944, 0.975: 2.7764451051977934, 0.9995: 8.610301581379522},
    9: {0.75: 0.7027221467513264, 0.9: 1.3830287383966329, 0.975: 2.262157162798205, 0.9995: 4.780912585931217},
    30: {0.75: 0.6827556933212927, 0.9: 1.3104150253913955, 0.975: 2.0422724563012378, 0.9995: 3.6459586350420627},
    100: {0.75: 0.6769510430114717, 0.9: 1.290074761346516, 0.975: 1.9839715185235518, 0.9995: 3.390491311164263},
}
# And of 1 - 0.05 / (2 * tests), as it is asked for with many ops and ten blocks.
OF_MANY = {1: 2.262157162798205, 200: 5.829735796197786}


@pytest.mark.parametrize("freedom", KNOWN)
def test_quantiles_of_students_distribution(freedom: int) -> None:
    for share, expected in KNOWN[freedom].items():
        assert quantile(share, freedom) == pytest.approx(expected, rel=1e-8)


def test_quantiles_for_many_comparisons() -> None:
    for tests, expected in OF_MANY.items():
        assert quantile(1 - LEVEL / (2 * tests), 9) == pytest.approx(expected, rel=1e-8)


@given(st.integers(1, 200), st.floats(0.5, 0.9999), st.floats(0.5, 0.9999))
def test_quantiles_grow_with_the_share_and_fall_with_the_freedom(freedom: int, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert 0 <= quantile(low, freedom) <= quantile(high, freedom) + 1e-6
    assert quantile(high, freedom + 1) <= quantile(high, freedom) + 1e-6


Simulate = Callable[[np.random.Generator], list[Times]]


def _calm(random: np.random.Generator) -> list[Times]:
    return [100 + random.normal(0, 1, RUNS) for _ in range(BLOCKS)]


def _opened_anew(random: np.random.Generator) -> list[Times]:
    """Each opening makes all runs of a block slower or faster: what runs tell would be far too sure of itself."""
    return [100 + random.normal(0, 8) + random.normal(0, 1, RUNS) for _ in range(BLOCKS)]


def _preempted(random: np.random.Generator) -> list[Times]:
    """Now and then other work comes in between, which only ever takes longer, and much longer."""
    found = []
    for _ in range(BLOCKS):
        times = 100 + random.normal(0, 2) + random.exponential(2, RUNS)
        found.append(times + np.where(random.random(RUNS) < 0.2, random.pareto(1.5, RUNS) * 200, 0))
    return found


def _slower_and_slower(random: np.random.Generator) -> list[Times]:
    """The machine throttles; both models are run in turn, so that it hits both alike."""
    return [100 + 10 * block + random.normal(0, 1, RUNS) for block in range(BLOCKS)]


EQUAL: dict[str, Simulate] = {
    "calm": _calm, "opened anew": _opened_anew, "preempted": _preempted, "slower and slower": _slower_and_slower,
}  # fmt: skip


@pytest.mark.parametrize("simulate", EQUAL.values(), ids=EQUAL)
def test_two_equal_models_are_rarely_told_apart(simulate: Simulate) -> None:
    """All ops of a model taken together: at most one model in twenty, with what 150 models can tell of that."""
    random = np.random.default_rng(0)
    models = 150
    wrong = 0
    for _ in range(models):
        compared = [difference(simulate(random), simulate(random), tests=OPS) for _ in range(OPS)]
        wrong += any(found is not None and found.differs for found in compared)
    assert wrong <= LEVEL * models + 2.6 * math.sqrt(LEVEL * (1 - LEVEL) * models)


def test_what_runs_alone_would_have_said() -> None:
    """The simulation above would show a mistake: taken as independent, runs of one block tell everything apart."""
    random = np.random.default_rng(0)
    wrong = 0
    for _ in range(100):
        first, second = (np.concatenate(_opened_anew(random)) for _ in range(2))
        one_run_a_block = difference([t[None] for t in first], [t[None] for t in second])
        wrong += one_run_a_block is not None and one_run_a_block.differs
    assert wrong > 25


@pytest.mark.parametrize("simulate", [_calm, _preempted, _slower_and_slower])
def test_a_real_difference_is_found_and_lies_in_the_interval(simulate: Simulate) -> None:
    random = np.random.default_rng(1)
    for change in (40.0, -40.0):
        found = difference(simulate(random), [t + change for t in simulate(random)], tests=OPS)
        assert found is not None
        assert found.differs
        assert found.low < change < found.high
        assert math.copysign(1, found.middle) == math.copysign(1, change)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    random = np.random.default_rng(2)
    held = 0
    for _ in range(400):
        found = difference(_opened_anew(random), [t + 5 for t in _opened_anew(random)])
        held += found is not None and found.low <= 5 <= found.high
    assert 0.92 < held / 400 < 0.98


def _blocks(*middles: float) -> Sequence[Times]:
    return [np.full(RUNS, middle) for middle in middles]


def test_too_few_blocks_say_nothing() -> None:
    for count in range(LEAST_BLOCKS):
        assert difference(_blocks(*range(count)), _blocks(*range(count))) is None
    assert difference(_blocks(*range(LEAST_BLOCKS)), _blocks(*range(LEAST_BLOCKS))) == Interval(0.0, 0.0, 0.0)


def test_the_clock_sets_the_least_difference() -> None:
    """With times that never vary there is no other doubt than half a tick at each end."""
    first, second = _blocks(10, 10, 10, 10), _blocks(10.4, 10.4, 10.4, 10.4)
    sure = difference(first, second)
    unsure = difference(first, second, resolution=1.0)
    assert sure is not None
    assert unsure is not None
    assert sure.differs
    assert not unsure.differs
    assert (unsure.low, unsure.high) == pytest.approx((sure.low - 0.5, sure.high + 0.5))


def test_more_comparisons_widen_the_interval() -> None:
    random = np.random.default_rng(3)
    first, second = _calm(random), _calm(random)
    found = [difference(first, second, tests=tests) for tests in (1, 10, 100)]
    widths = [interval.high - interval.low for interval in found if interval is not None]
    assert widths == sorted(widths)
    assert len(set(widths)) == 3


@pytest.mark.parametrize(("low", "high", "differs"), [(0.1, 2, True), (-2, -0.1, True), (-1, 1, False), (0, 1, False)])
def test_an_interval_without_zero_is_a_difference(low: float, high: float, differs: bool) -> None:
    assert Interval((low + high) / 2, low, high).differs is differs
