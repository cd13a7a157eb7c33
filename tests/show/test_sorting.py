from __future__ import annotations

import pytest

from inc_tb.errors import UsageError
from inc_tb.measure.op_table import COLUMNS
from inc_tb.measure.tables import ACTIVATIONS, TABLES, WEIGHTS
from inc_tb.records import Column
from inc_tb.show.sorting import Sorting, find_sorting

OURS = Sorting("added_sqnr_db", "w_sqnr_db")


@pytest.mark.parametrize(
    ("given", "activations", "weights"),
    [
        ("a_mse", "a_mse", OURS.weights), ("A_MSE", "a_mse", OURS.weights), ("output mse", "a_mse", OURS.weights),
        ("w_range", OURS.activations, "w_range"), ("Weight  Variance", OURS.activations, "w_var"),
        # A title of both of Neural Compressor's tables.
        ("MSE", "a_inc_mse", "w_inc_mse"), ("op name", "name", "name"), ("op", "name", "name"),
        ("Activation max", "a_max", OURS.weights), ("input model MIN", OURS.activations, "w_min"),
        ("Optimized model standard deviation", OURS.activations, "w_q_std"), ("verdict", "verdict", OURS.weights),
        ("added here", *OURS), ("time int8", "time_int8_us", OURS.weights),
    ],
)  # fmt: skip
def test_ids_labels_and_titles_in_any_case(given: str, activations: str, weights: str) -> None:
    assert find_sorting(COLUMNS, given) == (activations, weights)


def test_every_column_can_be_named_in_every_way() -> None:
    for column in COLUMNS:
        assert column.name in find_sorting(COLUMNS, column.name)
        assert column.name in find_sorting(COLUMNS, column.label.upper())
    for at, table in enumerate((ACTIVATIONS, WEIGHTS)):
        for title, ours in table.theirs.items():
            assert find_sorting(COLUMNS, title)[at] == ours
    assert len(TABLES) == 2


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("a_sqnr", ["a_sqnr_db (output SQNR)"]),
        ("min", ["no such column", "a_min (output min)", "w_min (weight min)", "a_q_min"]),
        ("actvation max", ["a_max (output max)"]),
        ("nothing like it", ["Neural Compressor's title", "verdict", "kurtosis"]),
        ("", ["a_min"]),
    ],
)
def test_what_is_unknown_is_told_in_one_line_with_what_there_is(given: str, says: list[str]) -> None:
    with pytest.raises(UsageError) as error:
        find_sorting(COLUMNS, given)
    assert str(error.value).startswith(f"--sort {given}: ")
    assert "\n" not in str(error.value)
    assert all(part in str(error.value) for part in says), str(error.value)


def test_what_is_ambiguous_is_told_with_the_ids() -> None:
    with pytest.raises(UsageError, match=r"several columns are called so, x \(size\), y \(size\)\. Give the id"):
        find_sorting([Column("x", label="size"), Column("y", label="size")], "Size")
