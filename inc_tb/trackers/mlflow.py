"""MLflow: a run for each entry, or into the one that is active."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from inc_tb.errors import UsageError, reading
from inc_tb.records import without_middle
from inc_tb.trackers.tracker import Entry, Sent

_LONGEST_NAME, _LONGEST_SETTING, _LONGEST_TAG = 250, 6000, 5000
"""What servers take, older ones too."""
_TABLES = "mlflow.loggedArtifacts"
"""The tag by which MLflow's page knows which artifacts are tables."""
_TRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"


class MlflowTracker:
    """`place` is an address that MLflow knows, a client, or the active run; without one it is MLflow's own choice."""

    def __init__(self, place: Any = "", project: str | None = None) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        try:
            import mlflow
        except ImportError as error:
            raise UsageError(
                f"mlflow: needs {error.name}, which is not installed: pip install 'inc-tb[mlflow]'."
            ) from error
        self._mlflow = mlflow
        self._place = place if isinstance(place, str) else getattr(place, "tracking_uri", "")  # of a client
        self._refuse_inactive(place)
        if self._place and mlflow.active_run() is not None:
            raise UsageError(f"mlflow:{self._place} was given while an MLflow run is active; end it, or say mlflow.")
        self._project = project
        with self._there():
            self._refuse_unreachable()

    def put(self, entry: Entry) -> Sent:
        with self._there(), self._run(entry) as (run, goes_on):
            self._write(entry, run, goes_on)
            return Sent(entry.name, run.info.run_id, self._mlflow.get_tracking_uri())

    @contextmanager
    def _there(self) -> Iterator[None]:
        """MLflow logs to one place at a time."""
        before = self._mlflow.get_tracking_uri() if self._mlflow.is_tracking_uri_set() else None
        shown = f"mlflow at {self._place or before or 'its default place'}"
        try:
            with reading(UsageError, shown, "cannot be logged to", "Check address, server and rights."):
                if self._place:
                    self._mlflow.set_tracking_uri(self._place)
                yield
        finally:
            if self._place:
                self._mlflow.set_tracking_uri(before)

    def _refuse_inactive(self, place: Any) -> None:
        """MLflow logs into the run that is active, and into no other."""
        given = getattr(getattr(place, "info", None), "run_id", None)
        active = self._mlflow.active_run()
        if given is not None and (active is None or active.info.run_id != given):
            raise UsageError(f"run {given} of MLflow was given, which is not active; log within its with statement.")

    def _refuse_unreachable(self) -> None:
        """At once: MLflow would try for minutes."""
        asked = os.environ.get(_TRIES)
        os.environ[_TRIES] = asked or "1"
        try:
            self._mlflow.MlflowClient().search_experiments(max_results=1)
        finally:
            if asked is None:
                del os.environ[_TRIES]

    def _experiment(self) -> str | None:
        """None where it is MLflow's choice, which is about the place that it logs to by itself."""
        is_chosen = not self._place or "MLFLOW_EXPERIMENT_NAME" in os.environ or "MLFLOW_EXPERIMENT_ID" in os.environ
        name = self._project or ("" if is_chosen else "Default")
        if not name:
            return None
        found = self._mlflow.get_experiment_by_name(name)
        return str(found.experiment_id if found is not None else self._mlflow.create_experiment(name))

    @contextmanager
    def _run(self, entry: Entry) -> Iterator[tuple[Any, bool]]:
        """It, and whether it was there before."""
        active = self._mlflow.active_run()
        if active is not None and not entry.group:
            yield active, True
            return
        is_ours = "MLFLOW_RUN_ID" not in os.environ  # with it MLflow goes on with a run, once
        run = self._mlflow.start_run(run_name=entry.name, experiment_id=self._experiment(), nested=active is not None)
        try:
            yield run, not is_ours
        except BaseException:
            self._mlflow.end_run("FAILED")
            if is_ours:
                self._mlflow.MlflowClient().delete_run(run.info.run_id)
            raise
        self._mlflow.end_run()

    def _write(self, entry: Entry, run: Any, goes_on: bool) -> None:
        for point in entry.points:
            named = {_name(name): number for name, number in point.metrics.items()}
            self._mlflow.log_metrics(named, step=point.step)
        settings = {_name(name): _text(value, _LONGEST_SETTING) for name, value in entry.settings.items()}
        self._mlflow.log_params(settings)
        tables = {f"{name}.json": table.to_json() for name, table in entry.named_tables(goes_on=goes_on)}
        with tempfile.TemporaryDirectory(prefix="inc_tb_") as folder:
            for name, data in {**tables, **entry.files}.items():
                Path(folder, name).parent.mkdir(exist_ok=True)
                Path(folder, name).write_bytes(data)
            self._mlflow.log_artifacts(folder)
        self._mlflow.set_tags({**_tags(entry), **self._shown(run, tables)})

    def _shown(self, run: Any, tables: Iterable[str]) -> dict[str, str]:
        there = self._mlflow.get_run(run.info.run_id).data.tags.get(_TABLES)
        known = json.loads(there) if there else []
        more = [{"path": path, "type": "table"} for path in tables]
        found = [*known, *(one for one in more if one not in known)]
        return {_TABLES: json.dumps(found)} if found else {}


def _tags(entry: Entry) -> dict[str, str]:
    told = {"group": entry.group} if entry.group else {}
    kept = {} if entry.fallback is None else {"fallback": entry.fallback}
    found: dict[str, Any] = {**told, **entry.tags, **kept}
    return {f"inc-tb.{_name(name)}": _text(value, _LONGEST_TAG) for name, value in found.items()}


def _text(value: Any, most: int) -> str:
    told = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return without_middle(told, most, most // 2)


def _name(name: str) -> str:
    """Of metrics and settings: MLflow takes few characters, and no parts of a path that lead elsewhere."""
    plain = re.sub(r"[^\w\-. :/]", lambda found: f"_{ord(found[0]):x}", name)
    parts = ("_" * len(part) if set(part) <= {"."} else part for part in plain.split("/") if part)
    return without_middle("/".join(parts) or "_", _LONGEST_NAME, 100).replace("…", "_")
