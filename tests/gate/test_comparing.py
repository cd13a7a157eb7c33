"""A run against an earlier one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

import inc_tb
from inc_tb.errors import DataError, MismatchError
from inc_tb.gate.comparable import notes_on
from inc_tb.gate.comparing import Compared, compare
from inc_tb.measure.by_sample import BySample
from inc_tb.records import Origin, SampleRow, Trial
from inc_tb.store.reader import Run
from tests.gate.runs import runs

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    folder = runs(tmp_path_factory.mktemp("runs"))
    return lambda name: inc_tb.load(folder / name)


def told(found: Compared) -> list[tuple[str, str, bool]]:
    return [(one.what, one.op, one.fails) for one in found.changes]


def test_the_same_model_has_not_changed(run: Callable[[str], Run]) -> None:
    found = compare(run("base"), run("same"))
    assert (found.ok, found.changes, found.culprit, found.paired) == (True, [], "", 24)
    assert found.comparable == ["the quantized model is the same in both"]


def test_other_samples_are_no_change_and_are_told(run: Callable[[str], Run]) -> None:
    found = compare(run("base"), run("others"))
    assert (found.ok, found.paired) == (True, 0)
    assert found.comparable[0] == "the data is not the same"
    assert found.comparable[-1].startswith("the samples are not the same, so that they are not compared one by one")


def test_a_fault_is_found_and_its_op_is_named(run: Callable[[str], Run]) -> None:
    found = compare(run("base"), run("faulty"))
    assert not found.ok
    assert found.culprit == "/conv1/Conv", "which writes the tensor"
    assert told(found) == [
        ("output_sqnr_db", "/fc/Gemm", True), ("added_sqnr_db", "/conv1/Conv", True),
        ("added_sqnr_db", "/conv2/Conv", True),
    ]  # fmt: skip
    output = found.changes[0]
    assert output.base is not None
    assert output.new is not None
    assert output.low is not None
    assert output.high is not None
    assert output.low < output.new - output.base < output.high < 0


def test_a_fault_is_found_on_other_samples(run: Callable[[str], Run]) -> None:
    """How much those differ hides what it does to the output of so few, but not what it does to its op."""
    found = compare(run("others"), run("faulty"))
    assert (found.ok, found.culprit, found.paired) == (False, "/conv1/Conv", 0)


def test_what_got_better_is_told_and_does_not_fail(run: Callable[[str], Run]) -> None:
    found = compare(run("faulty"), run("base"))
    assert (found.ok, found.culprit) == (True, "")
    assert told(found) == [("output_sqnr_db", "/fc/Gemm", False)]
    assert "dB better" in found.changes[0].because


def errors(power: float, **rows: Any) -> Run:
    """Of 20 samples: op -> error, added error, whether it is an output."""

    def of(value: Any) -> bytes:
        return np.broadcast_to(np.array(value, np.float32), 20).tobytes()

    made = [
        SampleRow(op, of(power), of(e), b"" if added is None else of(added), out)
        for op, (e, added, out) in rows.items()
    ]
    table = inc_tb.records.OpTable.from_rows(
        [inc_tb.records.Column("name", type="text")], [{"name": op} for op in rows]
    )
    ids = np.arange(20, dtype="<u8").tobytes()
    return Run("run", {0: inc_tb.Diagnosis(table, by_sample=BySample(ids, made))})


def test_without_added_errors_the_first_op_that_shows_it_is_named() -> None:
    base = errors(1, a=(1e-4, None, False), b=(1e-4, None, False), c=(1e-4, None, True))
    new = errors(1, a=(1e-4, None, False), b=(1e-2, None, False), c=(1e-2, None, True))
    found = compare(base, new)
    assert found.culprit == "b"
    assert told(found) == [("output_sqnr_db", "c", True), ("total_sqnr_db", "b", True)]
    assert (found.changes[0].base, found.changes[0].new) == pytest.approx((40, 20))


def test_an_op_that_got_worse_fails_unless_the_output_got_better() -> None:
    base = errors(1, a=(1e-4, 1e-4, False), b=(1e-2, 1e-4, True))
    worse = errors(1, a=(1e-4, 1e-3, False), b=(1e-2, 1e-4, True))
    assert told(compare(base, worse)) == [("added_sqnr_db", "a", True)]
    better = errors(1, a=(1e-4, 1e-3, False), b=(1e-3, 1e-4, True))
    assert told(compare(base, better)) == [("output_sqnr_db", "b", False), ("added_sqnr_db", "a", False)]


def test_noise_that_nobody_hears_names_no_op() -> None:
    """30 dB more of almost nothing is less than 10 dB more of what matters."""
    base = errors(1, a=(1e-4, 1e-7, False), b=(1e-4, 1e-4, True))
    new = errors(1, a=(1e-4, 1e-4, False), b=(1e-2, 1e-2, True))
    assert compare(base, new).culprit == "b"


def test_a_target_that_is_missed_fails_and_other_results_are_told() -> None:
    base, new = (errors(1, a=(1e-4, 1e-4, True)) for _ in range(2))
    base.trials[0] = Trial("t", 0.96, 0.97, objectives={"size_kb": 30.0, "latency_ms": 3.0}, target=0.95)
    new.trials[0] = Trial("t", 0.94, 0.97, objectives={"size_kb": 40.0, "latency_ms": 1.0}, target=0.95)
    found = compare(base, new)
    assert [(one.what, one.fails) for one in found.changes] == [("accuracy", True), ("size_kb", False)]
    assert "the target of 0.95 is missed" in found.changes[0].because
    new.trials[0] = structs.replace(new.trials[0], target=None)
    assert compare(base, new).ok, "how much chance is in it is not known"


def test_what_is_not_comparable_is_told() -> None:
    base, new = errors(1, a=(1e-4, 1e-4, True)), errors(1, a=(1e-4, 1e-4, True))
    origin = Origin("r1", "q1", "d1", {"samples": 20}, 0, {"onnxruntime": "1.20"}, ["x86_64", "avx2"])
    base.diagnosis.origin = origin
    new.diagnosis.origin = Origin(
        "r2", "q2", "d1", {"samples": 20, "batch_size": 4}, 3, {"onnxruntime": "1.21"}, ["x86_64", "avx512f"]
    )
    base.trials[0] = Trial("t", fallback=["a"], config={"per_channel": True})
    new.trials[0] = Trial("t", fallback=["b"], config={"per_channel": False})
    assert notes_on(base, new) == [
        "the fp32 model is not the same", "measured with batch_size: not given → 4",
        "version of onnxruntime: 1.20 → 1.21", "seed: 0 → 3",
        "processor: only the base has avx2, only the new one has avx512f",
        "setting per_channel: True → False", "kept in fp32: no longer a, now also b",
    ]  # fmt: skip
    new.diagnosis.origin = structs.replace(origin, data="", quantized="q2")
    assert notes_on(base, new)[0] == "the data: not recorded"
    new.diagnosis.origin = None
    assert notes_on(base, new)[0] == "not recorded for run: models, data, settings and versions"


def test_runs_that_cannot_be_compared() -> None:
    run = errors(1, a=(1e-4, 1e-4, True))
    old = inc_tb.load(GOLDEN / "v2")
    for pair in ((run, old), (old, run)):
        with pytest.raises(DataError, match="v2: the errors of single samples were not recorded"):
            compare(*pair)
    with pytest.raises(MismatchError, match=r"have no output in common \(a; b\)"):
        compare(run, errors(1, b=(1e-4, 1e-4, True)))
    with pytest.raises(DataError, match="fewer than 8 samples with a signal"):
        compare(run, errors(0, a=(1e-4, 1e-4, True)))
    with pytest.raises(DataError, match="holds no diagnosis"):
        compare(run, replace(run, diagnoses={}))
