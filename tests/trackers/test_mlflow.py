"""MLflow with a store on disk: what was logged is read back by MLflow itself."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import inc_tb
from inc_tb.errors import UsageError
from inc_tb.trackers.log import opened
from inc_tb.trackers.tables import read_ops
from inc_tb.trackers.tracker import Entry, Point
from tests.trackers.same import assert_same

mlflow = pytest.importorskip("mlflow", reason="it does not install beside all others")
pytestmark = pytest.mark.filterwarnings("default:::mlflow", "default::FutureWarning")

GOLDEN = Path(__file__).parents[1] / "golden"
RUN = GOLDEN / "later" / "samples"


def artifacts(run_id: str, folder: Path) -> Path:
    return Path(mlflow.artifacts.download_artifacts(run_id=run_id, dst_path=str(folder)))


def test_a_run_is_read_back(call: Callable[..., Any], tmp_path: Path) -> None:
    done = call("log", RUN, "--to", "mlflow", "--project", "quantized", "--json")
    (sent,) = json.loads(done.stdout)["runs"]
    logged, run = inc_tb.load(RUN), mlflow.get_run(sent["id"])
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "samples"
    assert mlflow.get_experiment(run.info.experiment_id).name == "quantized"
    told = {"accuracy": 0.91, "baseline": 0.97, "target": 0.96, "latency_ms": 1.25, "fallback_ops": 1.0}
    assert {name: run.data.metrics[name] for name in told} == told
    assert run.data.metrics["added_sqnr_db/conv2/Conv"] < 10
    assert run.data.params["calibration"] == "minmax"
    assert run.data.params["per_channel"] == "true"
    assert json.loads(run.data.tags["inc-tb.fallback"]) == ["/conv1/Conv"]
    assert run.data.tags["inc-tb.verdict"] == logged.diagnosis.verdict
    tables = [{"path": f"{name}.json", "type": "table"} for name in ("ops", "op_columns")]
    assert json.loads(run.data.tags["mlflow.loggedArtifacts"]) == tables
    there = artifacts(sent["id"], tmp_path)
    assert_same(read_ops(there / "ops.json", there / "op_columns.json"), logged.ops)
    assert (there / "suggestion.txt").read_text() == logged.suggestions[0].recipe
    assert json.loads((there / "trial.json").read_text())["notes"] == ["made for tests"]
    assert (there / "report.html").read_bytes().startswith(b"<!doctype html>")


def test_into_the_run_that_is_active_step_by_step(tmp_path: Path) -> None:
    diagnoses = [inc_tb.load(GOLDEN / name).diagnosis for name in ("v2", "later/samples")]
    with mlflow.start_run() as run:
        mlflow.log_metric("loss", 0.5, step=10)
        for step, diagnosis in zip((10, 20), diagnoses, strict=True):
            diagnosis.quantized, diagnosis.origin = "trained", None  # settings of a run of MLflow do not change
            (sent,) = inc_tb.log_to(mlflow if step == 10 else run, diagnosis, step=step, report=False)
            assert sent.id == run.info.run_id
        assert mlflow.active_run().info.run_id == run.info.run_id
    with pytest.raises(UsageError, match=f"run {run.info.run_id} of MLflow was given, which is not active"):
        inc_tb.log_to(run, diagnoses[0])
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "output/sqnr_db")
    assert [metric.step for metric in history] == [10, 20]
    there = artifacts(run.info.run_id, tmp_path)
    for step, diagnosis in zip((10, 20), diagnoses, strict=True):
        assert_same(read_ops(there / f"step-{step}/ops.json", there / f"step-{step}/op_columns.json"), diagnosis.ops)
    shown = json.loads(mlflow.get_run(run.info.run_id).data.tags["mlflow.loggedArtifacts"])
    assert len(shown) == 4


def test_runs_below_one_that_is_active_and_at_another_place(tmp_path: Path) -> None:
    before = mlflow.get_tracking_uri()
    with mlflow.start_run() as above:
        sent = inc_tb.log_to(mlflow, GOLDEN / "later", report=False)
        with pytest.raises(UsageError, match="was given while an MLflow run is active; end it, or say mlflow"):
            inc_tb.log_to(f"mlflow:{tmp_path}", RUN)
    assert [one.name for one in sent] == ["previews", "samples", "tokens", "later"]
    tags = [mlflow.get_run(one.id).data.tags for one in sent]
    assert [(t["mlflow.parentRunId"], t["inc-tb.group"]) for t in tags] == [(above.info.run_id, "later")] * 4
    other = (tmp_path / "other").as_uri()
    for given in (f"mlflow:{other}", mlflow.MlflowClient(other)):
        (sent_there,) = inc_tb.log_to(given, RUN, report=False)
        assert mlflow.get_tracking_uri() == before
        assert mlflow.MlflowClient(other).get_run(sent_there.id).data.metrics["accuracy"] == 0.91


def test_names_that_mlflow_does_not_take() -> None:
    names = ["a[0]", "a(0)", "/lead//twice/", "..", "./up", "long" * 100, "\u00b5"]
    (point,) = [Point(None, {name: float(i) for i, name in enumerate(names)})]
    entry = Entry("odd", points=[point], settings={"k[": "v" * 9000, "": None}, fallback=["op"] * 5000)
    sent = opened("mlflow").put(entry)
    data = mlflow.get_run(sent.id).data
    assert sorted(data.metrics.values()) == [float(i) for i in range(len(names))]
    assert len(data.params["k_5b"]) == 6000


def test_a_run_that_cannot_be_stored_whole_is_not_left_behind(tmp_path: Path, call: Callable[..., Any]) -> None:
    """A bucket that takes no files: a place below a file."""
    (tmp_path / "file").write_text("")
    mlflow.create_experiment("no bucket", artifact_location=(tmp_path / "file" / "below").as_uri())
    done = call("log", RUN, "--to", "mlflow", "--project", "no bucket")
    assert done.code == 2
    assert done.stderr.count("\n") == 1
    assert "cannot be logged to" in done.stderr
    assert "Check address, server and rights." in done.stderr
    assert mlflow.search_runs(experiment_names=["no bucket"], output_format="list") == []
    assert mlflow.active_run() is None


@pytest.mark.parametrize(("set_to", "is_now"), [(None, "true"), ("false", "false")])
def test_it_reports_nothing_unless_it_was_asked_to(
    set_to: str | None, is_now: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "")
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY")
    if set_to is not None:
        monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", set_to)
    opened("mlflow")
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == is_now


@pytest.mark.parametrize("place", ["http://127.0.0.1:9", "weird://x"])
def test_a_place_that_is_none_is_one_line(place: str, call: Callable[..., Any]) -> None:
    done = call("log", RUN, "--to", f"mlflow:{place}")
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"inc-tb: mlflow at {place}: cannot be logged to (")
    assert done.stderr.count("\n") == 1
