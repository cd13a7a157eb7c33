"""What is computed once for all frameworks, on graphs made of names."""

from __future__ import annotations

import numpy as np
import pytest

from inc_tb.frameworks.channels import channel_axes, input_axis
from inc_tb.frameworks.edges import before_softmax, first_readers, units
from inc_tb.frameworks.kernels import twins
from inc_tb.frameworks.weights import unfolded

ENDS = {
    "p": ("Softmax", "s"), "tall": ("Reshape", "p"), "half": ("Cast", "tall"), "sum": ("Add", "p"), "s": ("Conv", "x"),
    "deep": ("Reshape", "sum"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("result", "scores"), [("p", "s"), ("tall", "s"), ("half", "s"), ("sum", "sum"), ("deep", "deep"), ("x", "x")]
)
def test_scores_before_a_softmax(result: str, scores: str) -> None:
    assert before_softmax(result, ENDS.get, {"Softmax"}, {"Reshape", "Cast"}) == scores


def test_the_first_reader_of_an_input() -> None:
    reads = {"a": ["y"], "b": ["x", "y"], "c": ["x"]}
    assert first_readers(["x", "y", "z"], reads) == {"x": "b", "y": "a"}


def test_units_are_broken_where_two_read_the_same_and_where_an_op_does_not_join() -> None:
    sources = {"conv": [], "relu": ["conv"], "left": ["relu"], "right": ["relu"], "add": ["left", "right"]}
    found = units(sources, lambda op: op != "left")
    assert found == {"conv": "conv", "relu": "conv", "left": "left", "right": "right", "add": "add"}


def test_channels_keep_their_place_until_an_op_moves_them() -> None:
    moves = {"conv": 1, "norm": -1}
    sources = {"conv": ["x"], "relu": ["conv"], "norm": ["relu"], "sum": ["x", "norm"], "lost": ["x"]}
    found = channel_axes(sources, lambda value, before: moves.get(value, before))
    assert found == {"conv": 1, "relu": 1, "norm": -1, "sum": -1, "lost": -1}


def test_channels_of_an_input() -> None:
    assert [input_axis(n) for n in range(1, 6)] == [None, 1, 2, 1, 1]
    assert [input_axis(n, channels_last=True) for n in range(1, 6)] == [None, 1, 2, 3, 4]


def test_ops_that_stand_for_none_count_to_a_neighbor() -> None:
    sources = {"quantize": [], "conv": ["quantize"], "dequantize": ["conv"]}
    assert twins([("conv", ["c"]), ("conv", ["r"])], sources) == {
        "conv": ["c", "r"], "dequantize": ["r"], "quantize": ["c"],
    }  # fmt: skip


def test_unfolded_weights() -> None:
    """A norm that doubles: 3 was folded to 6 and quantized to 6.5, which is 3.25; what is 0 stays."""
    own, folded = np.array([3, 0], np.float32), np.array([6, 0], np.float32)
    np.testing.assert_array_equal(unfolded(own, folded, np.array([6.5, 1], np.float32)), [3.25, 0])
    np.testing.assert_array_equal(unfolded(own, own, np.array([2.5, 1], np.float32)), [2.5, 1])
