"""Probing real models: what is measured, what is logged meanwhile, and what is left after a kill."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import inc_tb
from inc_tb.advise.effects import KeptSet
from inc_tb.errors import DataError, IncTbError, MismatchError, ModelError
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.search.probe import JOURNAL, screened
from tests import example_run
from tests.digits import DATA, digits, write_pruned
from tests.frameworks import onnx_zoo as zoo
from tests.waiting import Clock, until

HARD = DATA / "hard.onnx"
CULPRITS = ["/conv1/Conv", "/conv2/Conv"]
UNITS = {
    "/conv1/Conv": ["/Relu"], "/conv2/Conv": ["/Relu_1"], "/dw/Conv": ["/Relu_2"], "/pw/Conv": [], "/Add": ["/Relu_3"],
    "/conv5/Conv": ["/Relu_4"], "/GlobalAveragePool": [], "/fc1/MatMul": [], "/fc1/Add": ["/Relu_5"], "/fc2/Gemm": [],
}  # fmt: skip
"""Ops that are told to a quantizer, and the ops that are part of them."""
SAMPLES = 32
Quantized = Callable[..., Path]
module: Any = importlib.import_module("inc_tb.search.probe")


@pytest.fixture(scope="module")
def int8(quantized: Quantized) -> Path:
    return quantized("hard")


@pytest.fixture(scope="module")
def probed(int8: Path) -> inc_tb.Probe:
    return inc_tb.probe(HARD, int8, {"input": digits(SAMPLES)}, samples=SAMPLES)


@pytest.fixture
def busy_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is logged."""
    monkeypatch.setattr(module, "_FIRST_LOG_S", 0.0)


def logits(path: Path, *, optimized: bool = True) -> np.ndarray[Any, Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"input": digits(SAMPLES)})[0], np.float64)


def loss(path: Path, *, optimized: bool = True) -> float:
    """The error of a file, by hand."""
    fp32 = logits(HARD)
    difference = np.square(logits(path, optimized=optimized) - fp32).sum()
    return float(difference / np.square(fp32 - fp32.mean(axis=0)).sum())


def cells(diagnosis: Diagnosis, name: str = "sensitivity") -> dict[str, Any]:
    return dict(zip(diagnosis.ops["name"], diagnosis.ops[name].tolist(), strict=True))


def reasons(diagnosis: Diagnosis, name: str = "sensitivity") -> dict[str, str]:
    return {str(op): diagnosis.ops.why_null(name, row) for row, op in enumerate(diagnosis.ops["name"])}


# What is measured


def test_the_first_suggestion_is_the_edge_that_ruins_the_model(probed: inc_tb.Probe) -> None:
    first = probed.diagnosis.suggestions[0]
    assert first.ops == CULPRITS
    assert first.rank == 1
    (effect,) = (e for e in first.effects if e.kind == "recovers")
    assert effect.basis == "measured"
    assert f"over {SAMPLES} samples" in effect.how
    assert effect.value > 0.99
    assert probed.explaining is not None
    assert probed.explaining.units == CULPRITS
    assert probed.explaining.recovered == effect.value


def test_a_model_quantized_as_suggested_recovers_what_was_measured(probed: inc_tb.Probe, quantized: Quantized) -> None:
    assert probed.explaining is not None
    left = loss(quantized("hard", nodes_to_exclude=CULPRITS))
    assert left == pytest.approx(probed.explaining.error, rel=0.5)
    assert 1 - left / loss(quantized("hard")) == pytest.approx(probed.explaining.recovered, abs=0.002)


def test_every_unit_is_measured_the_most_sensitive_first(probed: inc_tb.Probe) -> None:
    assert {unit.name: unit.ops[1:] for unit in probed.units} == UNITS
    found = [unit.sensitivity for unit in probed.units]
    assert found == sorted(found, reverse=True)
    assert [unit.name for unit in probed.units][:2] == CULPRITS
    assert all(unit.low <= unit.sensitivity <= unit.high for unit in probed.units)
    assert probed.complete


@pytest.mark.parametrize("unit", ["/conv1/Conv", "/conv2/Conv", "/pw/Conv", "/fc2/Gemm", "/fc1/Add"])
def test_sensitivity_is_the_loss_of_a_model_with_that_op_quantized_only(
    probed: inc_tb.Probe, quantized: Quantized, unit: str
) -> None:
    wanted = loss(quantized("hard", nodes_to_quantize=[unit, *UNITS[unit]]), optimized=False)
    assert cells(probed.diagnosis)[unit] == pytest.approx(wanted, rel=0.1)


@pytest.mark.parametrize("unit", ["/conv1/Conv", "/fc2/Gemm", "/fc1/MatMul"])
def test_recovery_is_what_a_model_without_that_op_loses_less(
    probed: inc_tb.Probe, quantized: Quantized, unit: str
) -> None:
    wanted = 1 - loss(quantized("hard", nodes_to_exclude=[unit])) / loss(quantized("hard"))
    assert cells(probed.diagnosis, "recovery")[unit] == pytest.approx(wanted, abs=0.03)


def test_the_columns_are_filled_for_every_op_of_a_unit_and_say_why_elsewhere(probed: inc_tb.Probe) -> None:
    found = {name: cells(probed.diagnosis, name) for name in ("sensitivity", "sensitivity_low", "sensitivity_high")}
    effects = {op: unit for unit in probed.units for op in unit.ops}
    for op, unit in effects.items():
        assert found["sensitivity"][op] == pytest.approx(unit.sensitivity)
        assert (found["sensitivity_low"][op], found["sensitivity_high"][op]) == pytest.approx((unit.low, unit.high))
        assert cells(probed.diagnosis, "recovery")[op] == pytest.approx(unit.recovery)
        assert cells(probed.diagnosis, "sensitivity_rank")[op] == unit.rank_text
    assert {op: why for op, why in reasons(probed.diagnosis).items() if why} == {
        "/Flatten": "nothing starts to be rounded at this op"
    }


def test_ranks_hold_the_place_of_each_unit_and_are_ranges_where_samples_do_not_tell(probed: inc_tb.Probe) -> None:
    for place, unit in enumerate(probed.units, start=1):
        assert unit.rank[0] <= place <= unit.rank[1]
    assert [unit.rank_text for unit in probed.units[:2]] == ["1", "2"]
    shared = [unit for unit in probed.units if "–" in unit.rank_text]
    assert shared
    for unit in shared:
        best, worst = map(int, unit.rank_text.split("–"))
        rivals = [
            other for other in probed.units if other is not unit and other.rank[0] <= worst and other.rank[1] >= best
        ]
        assert any(other.low < unit.high and unit.low < other.high for other in rivals)


def test_only_the_most_sensitive_units_are_left_out(int8: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LEFT_OUT", 3)
    found = inc_tb.probe(HARD, int8, {"input": digits(8)}, samples=8)
    assert [unit.recovery is not None for unit in found.units] == [True] * 3 + [False] * 7
    last = found.units[-1].name
    assert "not among the most sensitive" in reasons(found.diagnosis, "recovery")[last]
    assert reasons(found.diagnosis)[last] == ""


def test_the_simulation_is_compared_with_the_model_that_ships(probed: inc_tb.Probe, int8: Path) -> None:
    fp32, simulated, real = (probed.comparison[form] for form in ("fp32", "simulated", "real"))
    assert (fp32.error, fp32.agreement) == (0, 1)
    assert real.error == pytest.approx(loss(int8), rel=1e-4)
    assert simulated.error == pytest.approx(real.error, rel=0.05)
    assert real.agreement == pytest.approx((logits(int8).argmax(axis=1) == logits(HARD).argmax(axis=1)).mean())
    assert (simulated.agreement, real.divergence) == (pytest.approx(real.agreement, abs=0.1), None)


def test_suggestions_that_were_there_are_measured_and_ranked_by_it(int8: Path) -> None:
    made = inc_tb.diagnose(HARD, int8, {"input": digits(SAMPLES)})
    (own,) = made.suggestions
    useless = inc_tb.Suggestion(["/fc2/Gemm"], "useless", "it was thought of first", {}, rank=1)
    better = inc_tb.Suggestion(["/conv1/Conv", "/conv2/Conv", "/dw/Conv"], "too_much", "it does it, too", {}, rank=2)
    follower = inc_tb.Suggestion(["/Flatten"], "nothing", "nothing starts there", {}, rank=3)
    made.suggestions = [useless, better, follower]
    found = inc_tb.probe(HARD, int8, {"input": digits(SAMPLES)}, diagnosis=made).diagnosis
    assert [s.rule for s in found.suggestions] == ["too_much", "too_much", "nothing", "useless"]
    assert [s.rank for s in found.suggestions] == [1, 2, 3, 4]
    assert found.suggestions[0].ops == CULPRITS
    measured = [next((e.value for e in s.effects if e.basis == "measured"), None) for s in found.suggestions]
    assert measured[0] == pytest.approx(1, abs=0.01)
    assert measured[1] == pytest.approx(1, abs=0.01)
    assert measured[2] is None
    assert measured[3] == pytest.approx(0, abs=0.05)
    assert "By itself this changes next to nothing at the output" in found.suggestions[3].because
    assert [s.rule for s in made.suggestions] == ["useless", "too_much", "nothing"]
    assert own.rule == "outlier_channels"


def test_a_healthy_model_has_little_to_explain(tmp_path: Path) -> None:
    found = inc_tb.probe(*example_run.make_models(tmp_path, outlier=1.0, per_channel=True), example_run.batches())
    assert found.comparison["real"].error < 0.01
    assert found.complete
    assert len(found.units) == 4
    assert max(unit.sensitivity for unit in found.units) < 0.01


def test_a_model_that_is_not_quantized_has_no_units(tmp_path: Path) -> None:
    found = inc_tb.probe(HARD, write_pruned(tmp_path / "pruned.onnx"), {"input": digits(4)})
    assert (found.units, found.explaining, found.complete, found.evaluations) == ([], None, True, 0)
    assert set(reasons(found.diagnosis).values()) == {"nothing starts to be rounded at this op"}
    assert any("nothing is quantized" in note for note in found.diagnosis.notes)


def test_units_come_in_the_order_of_the_noise_that_they_add(int8: Path) -> None:
    made = inc_tb.diagnose(HARD, int8, {"input": digits(8)})
    noise = cells(made, "added_sqnr_db")
    order = screened(made, [*UNITS, "unknown"])
    assert order[-1] == "unknown"
    known = [noise[unit] for unit in order[:-1]]
    assert known == sorted(known)


def test_data_comes_in_the_forms_that_a_diagnosis_takes(probed: inc_tb.Probe, int8: Path, tmp_path: Path) -> None:
    images = digits(SAMPLES)
    np.savez(tmp_path / "digits.npz", input=digits(50))

    def batches() -> Iterator[dict[str, Any]]:
        yield from ({"input": rows} for rows in np.array_split(digits(48), 6))

    for given in (tmp_path / "digits.npz", images, batches(), [images[:16], images[16:]]):
        found = inc_tb.probe(HARD, int8, given, samples=SAMPLES)
        assert [unit.name for unit in found.units] == [unit.name for unit in probed.units]
        assert [u.sensitivity for u in found.units] == pytest.approx([u.sensitivity for u in probed.units], rel=0.02)


def test_progress_counts_up_to_all_there_is(int8: Path) -> None:
    seen: list[tuple[int, int]] = []
    inc_tb.probe(HARD, int8, {"input": digits(8)}, progress=lambda done, of: seen.append((done, of)))
    assert [done for done, _ in seen] == list(range(1, len(seen) + 1))
    assert all(done <= of for done, of in seen)
    assert seen[-1][0] == seen[-1][1]


def test_each_subset_is_run_once_and_in_one_session(int8: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    construct = ort.InferenceSession

    def counted(*args: Any, **more: Any) -> ort.InferenceSession:
        made.append(args)
        return construct(*args, **more)

    diagnosis = inc_tb.diagnose(HARD, int8, {"input": digits(8)})
    monkeypatch.setattr(ort, "InferenceSession", counted)
    found = inc_tb.probe(HARD, int8, {"input": digits(8)}, diagnosis=diagnosis)
    assert found.evaluations > 30
    assert len(made) <= 3  # the switchable model, the quantized one, and once what this runtime rounds itself


# The log


@pytest.mark.usefixtures("busy_log")
def test_the_log_fills_while_the_probe_runs(int8: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    seen: list[int] = []

    def progress(done: int, of: int) -> None:
        if done in (3, 8):
            now = inc_tb.load(folder).diagnosis  # a reader in the middle of it
            seen.append(int(np.isfinite(now.ops["sensitivity"]).sum()))

    result = inc_tb.probe(HARD, int8, {"input": digits(8)}, logdir=folder, progress=progress)
    run = inc_tb.load(folder)
    counts = [int(np.isfinite(found.ops["sensitivity"]).sum()) for _, found in sorted(run.diagnoses.items())]
    assert len(counts) > 10
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, sum(1 + len(ops) for ops in UNITS.values()))
    assert 0 < seen[0] < seen[1] < counts[-1]
    recovered = [int(np.isfinite(found.ops["recovery"]).sum()) for _, found in sorted(run.diagnoses.items())]
    assert recovered == sorted(recovered)
    last = run.diagnosis
    assert last.suggestions == result.diagnosis.suggestions
    assert last.suggestions[0].ops == CULPRITS
    np.testing.assert_allclose(last.ops["sensitivity"], result.diagnosis.ops["sensitivity"], rtol=1e-6)
    assert last.ops["sensitivity_rank"].tolist() == result.diagnosis.ops["sensitivity_rank"].tolist()
    assert len(last.histograms) == len(result.diagnosis.histograms) > 10
    assert {(row.op, row.role) for row in last.channels} == {(row.op, row.role) for row in result.diagnosis.channels}
    assert reasons(last)["/Flatten"] == "nothing starts to be rounded at this op"


@pytest.mark.usefixtures("busy_log")
def test_units_not_reached_yet_say_so_in_the_log(int8: Path, tmp_path: Path) -> None:
    inc_tb.probe(HARD, int8, {"input": digits(8)}, logdir=tmp_path, budget_s=45)
    run = inc_tb.load(tmp_path)
    early = run.diagnoses[sorted(run.diagnoses)[1]]
    why = reasons(early)
    assert why["/Flatten"] == "nothing starts to be rounded at this op"
    missing = [op for op, reason in why.items() if "not reached" in reason]
    assert missing
    assert all(why[op] == "not reached within the 45 s of the probe; give it more time" for op in missing)


def test_a_log_of_a_short_probe_has_the_diagnosis_and_the_result(int8: Path, tmp_path: Path) -> None:
    inc_tb.probe(HARD, int8, {"input": digits(8)}, logdir=tmp_path)
    run = inc_tb.load(tmp_path)
    first, *_, last = (run.diagnoses[step] for step in sorted(run.diagnoses))
    assert np.isnan(first.ops["sensitivity"]).all()
    assert np.isfinite(last.ops["sensitivity"]).any()
    assert last.histograms == first.histograms


def test_nothing_is_written_without_a_folder(int8: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    inc_tb.probe(HARD, int8, {"input": digits(4)})
    assert list(tmp_path.iterdir()) == []


# Interrupted


def journal(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / JOURNAL).read_text().splitlines()]


def assert_same(found: inc_tb.Probe, wanted: inc_tb.Probe) -> None:
    assert found.units == wanted.units
    assert found.explaining == wanted.explaining
    assert found.diagnosis.suggestions == wanted.diagnosis.suggestions
    np.testing.assert_array_equal(found.diagnosis.ops["sensitivity"], wanted.diagnosis.ops["sensitivity"])


STUCK = """
import sys, time
sys.path.insert(0, {root!r})
import inc_tb
from tests.digits import digits
inc_tb.probe({fp32!r}, {int8!r}, {{"input": digits({samples})}}, logdir={folder!r}, samples={samples},
             progress=lambda done, of: time.sleep(6000 if done == 8 else 0))
"""


@pytest.mark.slow
def test_a_probe_that_was_killed_goes_on_where_it_was(probed: inc_tb.Probe, int8: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    root = str(Path(__file__).parents[2])
    code = STUCK.format(root=root, fp32=str(HARD), int8=str(int8), folder=str(folder), samples=SAMPLES)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        at_work = lambda: (folder / JOURNAL).exists() and len(journal_lines(folder)) >= 8  # noqa: E731
        until(lambda: at_work() or process.poll() is not None)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    with (folder / JOURNAL).open("ab") as file:
        file.write(b'{"on":[1,2')  # as if it had been in the middle of a line
    before = journal_lines(folder)
    done = len(before) - 1
    assert 7 <= done < probed.evaluations
    assert inc_tb.load(folder).diagnosis.histograms
    found = inc_tb.probe(HARD, int8, {"input": digits(SAMPLES)}, logdir=folder, samples=SAMPLES)
    assert_same(found, probed)
    assert found.evaluations == probed.evaluations - done
    after = journal(folder)
    assert after[: len(before)] == [json.loads(line) for line in before]
    subsets = [tuple(line["on"]) for line in after[1:]]
    assert len(subsets) == len(set(subsets)) == probed.evaluations


def journal_lines(folder: Path) -> list[bytes]:
    """Whole lines only."""
    return (folder / JOURNAL).read_bytes().split(b"\n")[:-1]


def test_a_finished_probe_is_not_repeated(probed: inc_tb.Probe, int8: Path, tmp_path: Path) -> None:
    again = [
        inc_tb.probe(HARD, int8, {"input": digits(SAMPLES)}, logdir=tmp_path, samples=SAMPLES, budget_s=budget)
        for budget in (60, 0)  # what is known needs no time
    ]
    assert [found.evaluations for found in again] == [probed.evaluations, 0]
    for found in again:
        assert_same(found, probed)
        assert found.complete


def test_another_model_or_other_data_are_probed_anew(quantized: Quantized, int8: Path, tmp_path: Path) -> None:
    images = digits(16)
    counts = []
    for model, rows in ((int8, images[:8]), (int8, images[8:]), (quantized("hard", per_channel=True), images[8:])):
        found = inc_tb.probe(HARD, model, {"input": rows}, logdir=tmp_path)
        fresh = inc_tb.probe(HARD, model, {"input": rows})
        assert_same(found, fresh)
        counts.append((found.evaluations, fresh.evaluations))
    assert all(found == fresh > 0 for found, fresh in counts)


def test_the_same_model_given_as_an_object_goes_on(int8: Path, tmp_path: Path) -> None:
    import onnx

    images = digits(8)
    first = inc_tb.probe(HARD, int8, {"input": images}, logdir=tmp_path)
    second = inc_tb.probe(onnx.load(HARD), onnx.load(int8), {"input": images}, logdir=tmp_path)
    assert [u.sensitivity for u in second.units] == [u.sensitivity for u in first.units]


# Too little time


def test_without_time_nothing_is_measured_and_every_op_says_so(int8: Path) -> None:
    found = inc_tb.probe(HARD, int8, {"input": digits(8)}, budget_s=0)
    assert not found.complete
    assert found.units == []
    why = reasons(found.diagnosis)
    assert why.pop("/Flatten") == "nothing starts to be rounded at this op"
    assert set(why.values()) == {"not reached within the 0 s of the probe; give it more time"}
    assert set(cells(found.diagnosis, "sensitivity_rank").values()) == {""}


def test_with_little_time_the_noisiest_units_are_measured(int8: Path, clock: Clock) -> None:
    made = inc_tb.diagnose(HARD, int8, {"input": digits(8)})
    found = inc_tb.probe(
        HARD, int8, {"input": digits(8)}, budget_s=12, diagnosis=made, progress=lambda done, of: clock.tick(2)
    )
    assert not found.complete
    assert 1 <= len(found.units) <= 4
    assert {unit.name for unit in found.units} == set(screened(made, list(UNITS))[: len(found.units)])
    why = reasons(found.diagnosis)
    for unit in UNITS:
        reached = unit in {u.name for u in found.units}
        assert why[unit] == ("" if reached else "not reached within the 12 s of the probe; give it more time")
    assert isinstance(found.explaining, KeptSet)
    assert found.seconds <= 12 + 2


def test_what_a_short_probe_left_a_longer_one_finishes(probed: inc_tb.Probe, int8: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"logdir": tmp_path, "samples": SAMPLES}
    short = inc_tb.probe(HARD, int8, {"input": digits(SAMPLES)}, budget_s=0, **given)
    assert not short.complete
    whole = inc_tb.probe(HARD, int8, {"input": digits(SAMPLES)}, **given)
    assert whole.complete
    assert_same(whole, probed)


# What cannot be probed


def test_what_cannot_be_probed_is_refused_in_one_line(int8: Path, tmp_path: Path) -> None:
    images = digits(4)
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    other = zoo.cnn().save(tmp_path)
    (tmp_path / "notes.txt").write_text("no data")
    np.savez(tmp_path / "named.npz", image=images)
    cases: list[tuple[Any, Any, Any, type[IncTbError]]] = [
        (tmp_path / "nowhere.onnx", int8, {"input": images}, ModelError),
        (HARD, broken, {"input": images}, ModelError),
        (HARD, 3, {"input": images}, ModelError),
        (HARD, other, {"input": images}, MismatchError),
        (HARD, int8, {"image": images}, MismatchError),
        (HARD, int8, {"input": images[:, :, :5]}, MismatchError),
        (HARD, int8, [(images, images)], MismatchError),
        (HARD, int8, [], DataError),
        (HARD, int8, tmp_path / "nowhere.npz", DataError),
        (HARD, int8, tmp_path / "notes.txt", DataError),
        (HARD, int8, tmp_path / "named.npz", MismatchError),
    ]
    for fp32, quantized, batches, kind in cases:
        with pytest.raises(kind) as error:
            inc_tb.probe(fp32, quantized, batches, logdir=tmp_path / "run")
        assert len(str(error.value).splitlines()) == 1
    assert not (tmp_path / "run" / JOURNAL).exists()


def test_a_damaged_journal_is_named(int8: Path, tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_text("nonsense\n")
    with pytest.raises(DataError, match="line 1 is damaged") as error:
        inc_tb.probe(HARD, int8, {"input": digits(4)}, logdir=tmp_path)
    assert JOURNAL in str(error.value)
