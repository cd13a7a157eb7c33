"""What a terminal of 80 columns shows of a diagnosis and of a profile, and a pipe, which rich takes for one."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

import inc_tb
from inc_tb.profiling.profile import Profile
from inc_tb.records import ProfileRow
from inc_tb.show.diagnoses import show_diagnosis
from inc_tb.show.profiles import show_profile
from tests.example_run import make_diagnosis

LONG = "jax2tf_get_logits_/pjit_get_logits_/MagikaV2/encoder/layers.11"
NEEDED = {
    "Activations summary": ("verdict", "a_mse", "a_min", "a_max"),
    "Weights summary": ("w_mse", "w_min", "w_max", "w_mean", "w_std", "w_var"),
}


@pytest.fixture(scope="module")
def diagnosis(tmp_path_factory: pytest.TempPathFactory) -> inc_tb.Diagnosis:
    """With names of 62 characters and more, and numbers that are as long as numbers get."""
    found = make_diagnosis(tmp_path_factory.mktemp("models"))
    changed: dict[str, list[float | str]] = {"name": [LONG + name for name in found.ops["name"]]}
    for column in ("a_min", "w_mean", "w_min"):
        changed[column] = [-1.23456e-05 * (row + 1) for row in range(found.ops.count)]
    return replace(found, ops=found.ops.replaced(changed), suggestions=[])


def shown(diagnosis: inc_tb.Diagnosis, width: int | None, **options: str) -> dict[str, list[str]]:
    """The lines of each table."""
    out = io.StringIO()
    show_diagnosis(Console(file=out, width=width), diagnosis, **options)
    parts = [part.splitlines() for part in out.getvalue().split("\n\n")]
    return {lines[0].partition(":")[0]: lines[1:] for lines in parts if lines and "summary" in lines[0]}


@pytest.mark.parametrize("width", [60, 80, 120, None])
def test_what_is_needed_is_always_there(
    diagnosis: inc_tb.Diagnosis, width: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    tables = shown(diagnosis, width)
    assert list(tables) == list(NEEDED)
    for title, columns in NEEDED.items():
        lines = tables[title]
        heads = [line for line in lines if not line.startswith(LONG[:3])]
        rows = lines[len(heads) :]
        words = " ".join(heads).split()
        for column in columns:
            assert set(diagnosis.ops.column(column).label.split()) <= set(words)
        cells = {cell for line in rows for cell in line.split()}
        mse = next(column for column in columns if column.endswith("_mse"))
        compared = [row for row in range(diagnosis.ops.count) if not np.isnan(diagnosis.ops[mse][row])]
        assert len(rows) == len(compared)
        for column in columns:
            values = [diagnosis.ops[column][row] for row in compared]
            for value in values:
                told = {value} if isinstance(value, str) else {f"{value:.{digits}g}" for digits in (3, 4)}
                told |= set() if isinstance(value, str) else {f"{value:,.0f}"}  # where that would have an exponent
                assert told & cells, (title, column, value)
        assert width is None or width < 80 or max(map(len, lines)) <= width
        whole = [diagnosis.ops["name"][row] in cells for row in compared]
        assert all(whole) if width is None else not any(whole)
        assert len({line.split()[0] for line in rows}) == len(rows)  # shortened, they are still told apart


def test_the_column_that_is_sorted_by_is_shown_as_well(diagnosis: inc_tb.Diagnosis) -> None:
    tables = shown(diagnosis, 80, sort="MSE")
    assert all("(INC)" in " ".join(lines) for lines in tables.values())
    (activations, weights) = (shown(diagnosis, 80, sort=sort)[title] for sort, title in (
        ("Activation max", "Activations summary"), ("w_range", "Weights summary"),
    ))  # fmt: skip
    assert "range" in " ".join(weights[:3])
    largest = diagnosis.ops["name"][int(np.nanargmax(diagnosis.ops["a_max"]))]
    assert activations[-5].split()[0][-4:] == largest[-4:]


def test_where_only_neural_compressors_mse_is_known_that_is_shown(diagnosis: inc_tb.Diagnosis) -> None:
    lost = {"a_mse": ["not dumped"] * diagnosis.ops.count}
    tables = shown(replace(diagnosis, ops=diagnosis.ops.replaced(lost)), 80)
    assert "(INC)" in " ".join(tables["Activations summary"])
    assert "(INC)" not in " ".join(tables["Weights summary"])


@pytest.mark.parametrize("width", [60, 80, None])
def test_times_are_never_cut(width: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    rows = [
        ProfileRow(
            f"{LONG}/Conv_{i}", "FusedConvolutionWithAVeryLongType", fp32_us=1234567.8 + i, int8_us=65432.1 + i,
            difference_us=-1169135.7, differs=True, ops=["a", "b", "c"], convert_us=12.5, int8_p95_us=99999.9,
        )
        for i in range(3)
    ]  # fmt: skip
    total = ProfileRow("", "", fp32_us=4e6, int8_us=2e5)
    out = io.StringIO()
    show_profile(Console(file=out, width=width), Profile(rows, total, runs=50, fp32="a", int8="b"))
    for i in range(3):
        (line,) = (line for line in out.getvalue().splitlines() if f"{65432.1 + i:,.1f}" in line)
        assert f"{1234567.8 + i:,.1f}" in line
        assert "-1,169,135.7" in line
        assert " +3 " in line
        assert f"Conv_{i}" in line
        assert (f"{LONG}/Conv_{i} +3" in line) == (width is None)
