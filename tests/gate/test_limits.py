"""Limits, on runs whose values are written down here."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import inc_tb
from inc_tb.errors import DataError, IncTbError, UsageError
from inc_tb.gate.configured import limits_of_project
from inc_tb.gate.limits import Limit, check, parse_limit
from inc_tb.measure.metrics import NO_ERROR
from inc_tb.records import Column, OpTable, ProfileRow, Trial
from inc_tb.store.reader import Run

COLUMNS = [
    Column("name", type="text"), Column("verdict", type="text"), Column("reason", type="text"),
    Column("added_sqnr_db", better="higher"), Column("speedup"),
]  # fmt: skip
ROWS = [
    {"name": "conv", "verdict": "bad", "reason": "", "added_sqnr_db": 12.5, "speedup": "not profiled"},
    {"name": "relu", "verdict": "", "reason": "", "added_sqnr_db": "part of conv", "speedup": "not profiled"},
    {"name": "exact", "verdict": "ok", "reason": "", "added_sqnr_db": NO_ERROR, "speedup": "not profiled"},
    {"name": "fc", "verdict": "ok", "reason": "", "added_sqnr_db": 30.0, "speedup": "not profiled"},
]  # fmt: skip


@pytest.fixture
def run() -> Run:
    trial = Trial("t", 0.95, 0.97, ["fc", "head"], objectives={"size_kb": 38.5, "f1 macro": 0.5, "f1": 0.5})
    profile = inc_tb.Profile([], ProfileRow("", fp32_us=4000.0, int8_us=1500.0))
    diagnosis = inc_tb.Diagnosis(OpTable.from_rows(COLUMNS, ROWS), samples=16)
    return Run("run", {0: diagnosis}, {0: trial}, {0: profile})


@pytest.mark.parametrize(
    ("limit", "failing"),
    [
        ("accuracy>=0.95", []), ("accuracy > 0.95", [0.95]), ("drop<=0.03", []), ("size<=38", [38.5]),
        ("size_kb<=39", []), ("latency<=1.5", []), ("latency_ms<1.5", [1.5]), ("f1>=0.6", [0.5]), ("bad<=0", [1.0]),
        ("ok==2", []), ("fallback<=1", [2.0]), ("samples>=16", []), ("added_sqnr_db>=20", [12.5]),
        ("added_sqnr_db>=31", [12.5, 30.0]), ("added_sqnr_db<40", [math.inf]), ("verdict!=bad", ["bad"]),
        ("verdict==ok", ["bad"]), ("accuracy>=9.5e-1", []),
    ],
)  # fmt: skip
def test_holds_or_not(limit: str, failing: list[float | str], run: Run) -> None:
    (found,) = check(run, [parse_limit(limit)])
    assert [failure.value for failure in found.failures] == failing
    assert all(failure.column == found.limit.name for failure in found.failures)


def test_says_which_ops_and_of_how_many(run: Run) -> None:
    (found,) = check(run, [parse_limit("added_sqnr_db>=20")])
    (failure,) = found.failures
    assert (failure.run, failure.op, failure.value, str(failure.limit)) == ("run", "conv", 12.5, "added_sqnr_db>=20")
    assert found.values == 3


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("accuracy", "'accuracy' was given; expected NAME>=NUMBER"), (">=3", "expected NAME>=NUMBER"),
        ("accuracy>=", "expected NAME>=NUMBER"), ("accuracy=>3", "expected NAME>=NUMBER"),
        ("accuracy>=high", "expected a number behind >="), ("accuracy>=nan", "expected a number behind >="),
        ("accuracy==high", "accuracy is a number"), ("added_sqnr_db==high", "added_sqnr_db holds a number for each op"),
        ("verdict==3", "verdict holds a text for each op"), ("added>=3", "expected one of added_sqnr_db"),
        ("acuracy>=3", "expected one of accuracy"), ("speedup>=1", "no op has a value of speedup: not profiled"),
        ("memory<=3", "memory_mb was not measured"),
    ],
)  # fmt: skip
def test_what_cannot_be_checked_is_told(limit: str, words: str, run: Run) -> None:
    with pytest.raises(IncTbError) as error:
        check(run, [parse_limit(limit)])
    assert words in str(error.value)


def test_a_run_without_a_diagnosis_has_no_columns() -> None:
    only_trial = Run("run", trials={0: Trial("t", 0.5)})
    assert not check(only_trial, [parse_limit("accuracy>=0.4")])[0].failures
    with pytest.raises(UsageError, match="added_sqnr_db, which no run of its kind has"):
        check(only_trial, [parse_limit("added_sqnr_db>=3")])
    with pytest.raises(DataError, match="bad was not measured"):
        check(only_trial, [parse_limit("bad<=0")])


def test_the_limits_of_a_project(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    (tmp_path / "a" / "pyproject.toml").write_text("[project]\nname = 'x'\n")  # has none, so that it is not the one
    file = tmp_path / "pyproject.toml"
    file.write_text('[tool.inc-tb.check]\nlimits = ["accuracy>=0.9"]\nmax-bad = 2\n')
    assert limits_of_project(below) == [Limit("accuracy", ">=", 0.9), Limit("bad", "<=", 2.0)]
    for wrong in ("[tool.inc-tb.check]\nlimit = []", "[tool.inc-tb.check]\nmax-bad = 'x'", "[tool", "tool = 3"):
        file.write_text(wrong)
        with pytest.raises(UsageError, match=r"pyproject\.toml: \[tool\.inc-tb\.check\] cannot be read"):
            limits_of_project(below)
