"""`inc_tb.log_to`, `inc-tb log` and LiveLog: what a tracker is given, with one of the user's own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary

import inc_tb
from inc_tb.errors import RecordError
from inc_tb.records import OpTable
from inc_tb.store.eventfile import EventFile
from inc_tb.store.summaries import blobs
from inc_tb.trackers.tables import read_ops
from inc_tb.trackers.tracker import Entry, Point, Sent
from tests.digits import DATA, digits
from tests.example_run import make_diagnosis, make_trial
from tests.trackers.same import assert_same
from tests.tuning import own_tools as own

KEPT = """
class Kept:
    def put(self, entry):
        from inc_tb.trackers.tracker import Sent

        print("got", entry.name)
        return Sent(entry.name, f"id of {entry.name}", f"{len(entry.files)} files")

def nothing():
    return 3

def fails():
    raise ValueError("no server")
"""


class Kept:
    """A tracker that fails as often as it is told to."""

    def __init__(self, fails: int = 0) -> None:
        self.entries: list[Entry] = []
        self.fails = fails

    def put(self, entry: Entry) -> Sent:
        if self.fails:
            self.fails -= 1
            raise ConnectionError("the line is cut")
        self.entries.append(entry)
        return Sent(entry.name, str(len(self.entries)), "here")


def table_at(point: Point) -> OpTable:
    ops, columns = (json.loads(point.tables[name].to_json()) for name in ("ops", "op_columns"))
    return read_ops(ops, columns)


@pytest.fixture(scope="module")
def diagnosis(place: Path) -> inc_tb.Diagnosis:
    return make_diagnosis(place)


@pytest.fixture(scope="module")
def logdir(place: Path, diagnosis: inc_tb.Diagnosis) -> Path:
    """Two trials, and a training that was diagnosed twice."""
    for name, accuracy in (("trial-001", 0.9), ("trial-002", 0.96)):
        with inc_tb.SummaryWriter(place / "logs" / name) as writer:
            writer.add_diagnosis(diagnosis)
            writer.add_trial(make_trial(name, accuracy))
    with inc_tb.SummaryWriter(place / "training") as writer:
        writer.add_diagnosis(diagnosis, 10)
        writer.add_diagnosis(make_diagnosis(place, outlier=1.0), 20)
    return place / "logs"


def test_a_run(logdir: Path) -> None:
    kept = Kept()
    run = inc_tb.load(logdir / "trial-001")
    assert inc_tb.log_to(kept, logdir / "trial-001") == [Sent("trial-001", "1", "here")]
    inc_tb.log_to(kept, run, name="mine", report=False)
    entry, same = kept.entries
    assert (entry.name, entry.group, same.name, list(same.files)) == (
        "trial-001",
        "",
        "mine",
        ["trial.json", "suggestion.txt"],
    )
    (point,) = entry.points
    told = {"accuracy": 0.9, "baseline": 0.97, "target": 0.96, "latency_ms": 1.25, "fallback_ops": 1, "wall_s": 3.5}
    assert {name: point.metrics[name] for name in told} == told
    assert point.metrics["ops/bad"] == list(run.ops["verdict"]).count("bad") > 0
    assert_same(table_at(point), run.ops)
    settings = {
        "calibration": "minmax",
        "per_channel": True,
        "samples": 64,
        "measured.samples": 16,
        "framework": "onnx",
    }
    assert {name: entry.settings[name] for name in settings} == settings
    assert entry.settings["version.onnxruntime"]
    assert entry.tags == {"met": "no", "verdict": run.diagnosis.verdict, "suggestion": "outlier_channels"}
    assert entry.fallback == ["/conv1/Conv"]
    assert entry.files["suggestion.txt"].decode() == run.suggestions[0].recipe
    assert json.loads(entry.files["trial.json"])["accuracy"] == 0.9
    assert entry.files["report.html"].startswith(b"<!doctype html>")


def test_a_diagnosis_that_is_logged_nowhere(diagnosis: inc_tb.Diagnosis) -> None:
    kept = Kept()
    before = diagnosis.logged
    inc_tb.log_to(kept, diagnosis, step=7)
    (entry,) = kept.entries
    assert diagnosis.logged == before
    assert [point.step for point in entry.points] == [7]
    assert_same(table_at(entry.points[0]), diagnosis.ops)
    assert entry.files["report.html"].startswith(b"<!doctype html>")
    assert entry.fallback is None


def test_a_training_has_steps_and_a_table_for_each(logdir: Path) -> None:
    kept = Kept()
    inc_tb.log_to(kept, logdir.parent / "training", report=False)
    (entry,) = kept.entries
    diagnoses = inc_tb.load(logdir.parent / "training").diagnoses
    assert [point.step for point in entry.points] == [10, 20]
    for point in entry.points:
        assert point.step is not None
        assert_same(table_at(point), diagnoses[point.step].ops)
    assert entry.points[0].metrics["output/sqnr_db"] < entry.points[1].metrics["output/sqnr_db"]
    assert [name for name, _ in entry.named_tables()] == ["step-10/ops", "step-10/op_columns", "ops", "op_columns"]
    apart = [name for name, _ in entry.named_tables(goes_on=True)]
    assert apart[2:] == ["step-20/ops", "step-20/op_columns"]


def test_a_folder_of_runs_is_one_each_and_one_for_the_whole(logdir: Path) -> None:
    kept = Kept()
    inc_tb.log_to(kept, str(logdir))
    *trials, whole = kept.entries
    assert [(entry.name, entry.group) for entry in trials] == [("trial-001", "logs"), ("trial-002", "logs")]
    assert (whole.name, whole.group) == ("logs", "logs")
    assert [(point.step, point.metrics["accuracy"]) for point in whole.points] == [(1, 0.9), (2, 0.96)]
    assert len(whole.files["report.html"]) > len(trials[0].files["report.html"])


def tune(logdir: Path, live: inc_tb.LiveLog | None, **options: Any) -> inc_tb.Tuned:
    return inc_tb.tune(
        DATA / "clean.onnx", {"input": digits(2)}, own.accuracy, strategy=own.one_by_one, quantizer=own.Copies(),
        objectives=(), diagnosis_samples=0, logdir=logdir, progress=live, **options,
    )  # fmt: skip


def test_a_tuning_as_it_goes_on_and_as_a_whole(tmp_path: Path) -> None:
    kept = Kept()
    tune(tmp_path / "log", inc_tb.LiveLog(kept, tmp_path / "log"), max_trials=2)
    assert [entry.name for entry in kept.entries] == ["trial-001", "trial-002"]
    live = inc_tb.LiveLog(kept, tmp_path / "log")
    tuned = tune(tmp_path / "log", live, resume=True)
    assert [entry.name for entry in kept.entries] == ["trial-001", "trial-002", "trial-003"]
    live.finish(tuned)
    inc_tb.log_to(kept, tuned)
    assert [entry.name for entry in kept.entries[3:]] == ["log", "trial-001", "trial-002", "trial-003", "log"]
    for whole in (kept.entries[3], kept.entries[-1]):
        assert [point.metrics["accuracy"] for point in whole.points] == [0.5, 0.75, 1.0]
        assert whole.fallback == ["/conv1/Conv", "/conv2/Conv"]
        assert (whole.tags["best"], whole.tags["met"]) == ("trial-003", "yes")
        assert whole.files["config.txt"].decode() == tuned.recipe
        assert json.loads(whole.files["tuning.json"])["best"]["trial"] == "trial-003"


def test_a_tracker_that_fails_does_not_stop_a_tuning(tmp_path: Path) -> None:
    kept = Kept(fails=1)
    live = inc_tb.LiveLog(kept, tmp_path / "log")
    with pytest.warns(UserWarning, match=r"tracker Kept: cannot be logged to \(the line is cut\)\. Check it\."):
        assert tune(tmp_path / "log", live).met
    assert [entry.name for entry in kept.entries] == ["trial-001", "trial-002", "trial-003"]


def test_the_command_line(logdir: Path, tmp_path: Path, call: Callable[..., Any]) -> None:
    own_tracker = tmp_path / "own.py"
    own_tracker.write_text(KEPT)
    done = call("log", logdir / "trial-001", "--to", f"{own_tracker}:Kept")
    assert done.code == 0
    assert done.stdout == "got trial-001\nLogged trial-001 as id of trial-001: 3 files\n"
    done = call("log", logdir, "--to", f"{own_tracker}:Kept", "--name", "whole", "--no-report", "--json")
    found = json.loads(done.stdout)
    assert found["runs"][-1] == {"name": "whole", "id": "id of whole", "place": "0 files"}
    assert [run["name"] for run in found["runs"]] == ["trial-001", "trial-002", "whole"]


def test_tune_logs_each_trial_on_the_command_line(tmp_path: Path, call: Callable[..., Any]) -> None:
    own_tracker, samples = tmp_path / "own.py", tmp_path / "samples.npz"
    own_tracker.write_text(KEPT)
    np.savez(samples, input=digits(2))
    arguments = [
        "tune", DATA / "clean.onnx", "--data", samples, "--eval", f"{own.__file__}:accuracy", "--strategy",
        f"{own.__file__}:one_by_one", "--quantizer", f"{own.__file__}:make_copies", "--max-trials", "2", "--objective",
        "size", "--quiet",
    ]  # fmt: skip
    done = call(*arguments, "--logdir", tmp_path / "log", "--log-to", f"{own_tracker}:Kept")
    got = [line for line in done.stdout.splitlines() if line.startswith("got")]
    assert got == ["got trial-001", "got trial-002", "got log"]
    done = call(*arguments, "--logdir", tmp_path / "none", "--log-to", f"{own_tracker}:fails")
    assert done.code == 2
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("tracker", "what", "options", "told"),
    [
        ("clearml", "logs", {}, r"tracker clearml: is not known; expected one of mlflow, wandb, .*file\.py:function"),
        (json, "logs", {}, r"tracker json: is not known"),
        (3, "logs", {}, r"tracker a int: is not known"),
        ("own.py:nothing", "logs", {}, r"tracker a int: is not known"),
        ("own.py:fails", "logs", {}, r"own\.py:fails failed: ValueError: no server\. It must return a tracker\."),
        ("own.py:Kept", "logs", {"project": "p"}, r"project=p was given with a tracker of yours"),
        ("own.py:Kept", "logs", {"step": 3}, r"step=3 was given with a str.*it is for a Diagnosis"),
        ("own.py:Kept", 3, {}, r"a int was given; expected a Diagnosis"),
        ("own.py:Kept", "nowhere", {}, r"nowhere: no quantization records there or below"),
        ("wandb:team/p", "logs", {"project": "p"}, r"wandb:team/p and project=p were given; expected one of them"),
        ("mlflow", "logs", {}, r"mlflow: needs mlflow, which is not installed: pip install 'inc-tb\[mlflow\]'"),
        ("wandb", "logs", {}, r"wandb: needs wandb, which is not installed: pip install 'inc-tb\[wandb\]'"),
    ],
)
def test_what_is_wrong_is_one_line(
    tracker: Any, what: Any, options: dict[str, Any], told: str, logdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(logdir.parent)
    Path("own.py").write_text(KEPT)
    if tracker in ("mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, tracker, None)
    with pytest.raises(inc_tb.IncTbError, match=told) as caught:
        inc_tb.log_to(tracker, what, **options)
    assert "\n" not in str(caught.value)


def test_an_entry_is_whole_before_a_tracker_gets_any(tmp_path: Path, diagnosis: inc_tb.Diagnosis) -> None:
    """The second run is damaged."""
    with inc_tb.SummaryWriter(tmp_path / "a") as writer:
        writer.add_diagnosis(diagnosis)
    damaged = EventFile(tmp_path / "b")
    damaged.write(Event(summary=Summary(value=[blobs("quantization/ops", [b"{}"])])))
    damaged.close()
    kept = Kept()
    with pytest.raises(RecordError, match="the ops record: cannot be read"):
        inc_tb.log_to(kept, tmp_path, report=False)
    assert not kept.entries
