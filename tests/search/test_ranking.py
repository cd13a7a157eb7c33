"""The first suggestion of a probe is the best pair of ops to keep in fp32, as found by trying all pairs."""

from __future__ import annotations

import pytest

from benchmarks.ranking import Truth, answers
from tests.defects import KINDS, made

SEEDS = {"outlier channel": 1, "clipped range": 5, "tiny scale": 7, "residual": 7, "wrong calibration": 8}


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
def test_the_first_suggestion_is_the_best_of_all_pairs(kind: str) -> None:
    case = made(kind, SEEDS[kind])
    truth = Truth.of(case)
    assert truth.dropped == ""
    assert set(answers(case)["probe"]) == set(truth.best)
