"""What the first suggestion of a diagnosis gives back when the tool carries it out; benchmarks/first_suggestion.py."""

from __future__ import annotations

import pytest

from benchmarks.first_suggestion import BACK, families, result
from tests.torch_defects import MARKS

RULES = {
    "onnx: attention chain": "outlier_channels", "onnx: boxes and scores": "unbalanced_inputs",
    "onnx: mask": "mask_constant", "onnx: variance": "near_equal_difference",
}  # fmt: skip
"""Which rules name the cause, also without a probe."""
pytestmark = MARKS


@pytest.mark.parametrize("name", RULES)
def test_a_cause_that_no_single_edge_shows_is_named_and_cured(name: str) -> None:
    (family,) = (family for family in families("onnx") if family.name == name)
    found = result(family, 0, 0)
    assert found is not None
    assert found.told.startswith(RULES[name])
    assert (found.back > BACK, found.alarms) == (True, 0), found.line()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "seed"), [("onnx: two causes", 5), ("onnx: residual", 0), ("static: outlier channel", 2)]
)
def test_what_the_statistics_alone_do_not_tell_a_probe_finds(name: str, seed: int) -> None:
    (family,) = (family for family in families() if family.name == name)
    found = result(family, seed, 600)
    assert found is not None
    assert (found.back > BACK, found.alarms) == (True, 0), found.line()
