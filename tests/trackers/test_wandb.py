"""W&B offline: what was logged is read back from what it has written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import inc_tb
from inc_tb.errors import UsageError
from inc_tb.trackers.log import opened
from inc_tb.trackers.tables import Table, read_ops, tables_of
from inc_tb.trackers.tracker import Entry, Point
from tests.made_runs import make_diagnosis
from tests.trackers.offline import Offline
from tests.trackers.same import assert_same
from tests.waiting import until

wandb = pytest.importorskip("wandb")
GOLDEN = Path(__file__).parents[1] / "golden"
RUN = GOLDEN / "later" / "samples"


@pytest.fixture(scope="module", autouse=True)
def service(place: Path) -> Iterator[None]:
    """The process of W&B that all runs share ends with the tests."""
    yield
    wandb.teardown()


def read(place: Path, run_id: str) -> Offline:
    (folder,) = (place / "WANDB_DIR" / "wandb").glob(f"offline-run-*-{run_id}")
    until(lambda: Offline(folder).is_ended)  # it is written by another process
    return Offline(folder)


def test_a_run_is_read_back(call: Callable[..., Any], place: Path) -> None:
    done = call("log", RUN, "--to", "wandb:team/quantized", "--json")
    (sent,) = json.loads(done.stdout)["runs"]
    run, logged = read(place, sent["id"]), inc_tb.load(RUN)
    assert (run.name, run.project, run.exit_code) == ("samples", "quantized", 0)
    assert run.tags == ["fp32: /conv1/Conv"]
    (history,) = run.history
    told = {"accuracy": 0.91, "baseline": 0.97, "target": 0.96, "latency_ms": 1.25, "fallback_ops": 1, "_step": 3}
    assert {name: history[name] for name in told} == told
    assert history["ops/_type"] == "table-file"
    settings = {"calibration": "minmax", "per_channel": True, "samples": 64, "fallback": ["/conv1/Conv"]}
    assert {name: run.config[name] for name in settings} == settings
    assert run.summary["verdict"] == logged.diagnosis.verdict
    files = run.artifacts["inc-tb"]
    assert_same(read_ops(files["ops.table.json"], files["op_columns.table.json"]), logged.ops)
    shown = run.artifacts["run_table"]
    assert_same(read_ops(shown["ops.table.json"], shown["op_columns.table.json"]), logged.ops)
    assert files["suggestion.txt"].read_text() == logged.suggestions[0].recipe
    assert json.loads(files["trial.json"].read_text())["notes"] == ["made for tests"]
    assert files["report.html"].read_bytes().startswith(b"<!doctype html>")


def test_into_a_run_that_is_active_and_several_beside_it(place: Path) -> None:
    diagnoses = [inc_tb.load(GOLDEN / name).diagnosis for name in ("v2", "later/samples")]
    with wandb.init(project="training") as training:
        for step, diagnosis in zip((10, 20), diagnoses, strict=True):
            training.log({"loss": 0.5}, step=step)
            (sent,) = inc_tb.log_to(wandb, diagnosis, step=step, report=False)
            assert sent.id == training.id
        beside = inc_tb.log_to(training, GOLDEN / "later", report=False)
    run = read(place, training.id)
    assert [(row["_step"], row["loss"], "output/sqnr_db" in row) for row in run.history] == [
        (10, 0.5, True),
        (20, 0.5, True),
    ]
    assert run.exit_code == 0
    runs = [read(place, one.id) for one in beside]
    assert [(r.name, r.group) for r in runs] == [(name, "later") for name in ("previews", "samples", "tokens", "later")]


def test_more_ops_than_its_history_takes_and_odd_names(place: Path) -> None:
    table = make_diagnosis(10_010, columns=8, detail=0).ops
    fallback = ["/a/very/long/name" * 20, "", *(f"op{i}" for i in range(30))]
    entry = Entry("large", points=[Point(None, {}, tables_of(table))], fallback=fallback)
    run = read(place, opened("wandb").put(entry).id)
    files = run.artifacts["inc-tb"]
    assert "ops/_type" not in run.history[0]
    assert_same(read_ops(files["ops.table.json"], files["op_columns.table.json"]), table)
    assert run.config["fallback"] == fallback
    assert all(len(tag) <= 64 for tag in run.tags)


def test_a_run_that_fails_on_the_way_says_so(place: Path) -> None:
    crooked = Entry("crooked", points=[Point(None, {}, {"ops": Table(["one"], [[1, 2]])})])
    with pytest.raises(UsageError, match=r"wandb: cannot be logged to \(.+\)\. Check login, project and network\."):
        opened("wandb").put(crooked)
    newest = max((place / "WANDB_DIR" / "wandb").glob("offline-run-*"), key=lambda folder: folder.stat().st_ctime_ns)
    run = read(place, newest.name.rpartition("-")[2])
    assert (run.name, run.exit_code) == ("crooked", 1)
    assert wandb.run is None


def test_a_place_that_cannot_be_reached_is_one_line(
    call: Callable[..., Any], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb.teardown()  # it remembers its settings
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    before = sorted((place / "WANDB_DIR").rglob("*.wandb"))
    done = call("log", RUN, "--to", "wandb")
    assert (done.code, done.stdout) == (2, "")
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("inc-tb: "))
    assert line.startswith("inc-tb: wandb: cannot be logged to (")
    assert line.endswith("Check login, project and network.")
    assert sorted((place / "WANDB_DIR").rglob("*.wandb")) == before
