"""Weights & Biases: a run for each entry, or into the one that is active."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from inc_tb.errors import UsageError, reading
from inc_tb.records import without_middle
from inc_tb.trackers.tables import Table
from inc_tb.trackers.tracker import Entry, Sent

_LONGEST_TAG = 64
_MOST_TAGS = 20
"""Those of more ops stand in the run's config only."""


class WandbTracker:
    """`place` is a project, team/project, or a run; without one it is what W&B logs to by itself."""

    def __init__(self, place: Any = "", project: str | None = None) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        try:
            import wandb
        except ImportError as error:
            raise UsageError(
                f"wandb: needs {error.name}, which is not installed: pip install 'inc-tb[wandb]'."
            ) from error
        self._wandb = wandb
        self._given = None if isinstance(place, str) else place
        where = place if isinstance(place, str) else ""
        team, _, named = where.rpartition("/")
        if named and project is not None:
            raise UsageError(f"wandb:{where} and project={project} were given; expected one of them.")
        self._team, self._project = team or None, project or named or None

    def put(self, entry: Entry) -> Sent:
        boundary = reading(UsageError, "wandb", "cannot be logged to", "Check login, project and network.")
        with boundary, self._run(entry) as run:
            self._write(entry, run)
            return Sent(entry.name, run.id, run.url or str(Path(run.dir).parent))

    @contextmanager
    def _run(self, entry: Entry) -> Iterator[Any]:
        active = self._given or self._wandb.run
        if active is not None and not entry.group:
            yield active
            return
        quiet = self._wandb.Settings(
            console="off", disable_git=True, x_disable_stats=True, x_disable_meta=True, x_save_requirements=False
        )
        team, project = self._team, self._project
        if project is None and active is not None:
            team, project = active.entity or None, active.project
        run = self._wandb.init(
            entity=team, project=project, name=entry.name, group=entry.group or None, job_type="inc-tb",
            reinit="create_new", settings=quiet,
        )  # fmt: skip
        try:
            yield run
        except BaseException:
            run.finish(exit_code=1)
            raise
        run.finish()

    def _write(self, entry: Entry, run: Any) -> None:
        kept = {} if entry.fallback is None else {"fallback": entry.fallback}
        run.config.update({**entry.settings, **kept}, allow_val_change=True)
        run.tags = tuple(dict.fromkeys([*(run.tags or ()), *_tags(entry)]))
        for point in entry.points:
            shown = {name: self._table(table) for name, table in point.tables.items() if self._is_shown(table)}
            run.log({**point.metrics, **shown}, step=point.step)
        run.summary.update(entry.tags)
        run.log_artifact(self._artifact(entry, f"inc-tb-{run.id}"))

    def _artifact(self, entry: Entry, name: str) -> Any:
        """The files, and all tables whatever their size."""
        found = self._wandb.Artifact(name, type="inc-tb")
        for title, table in entry.named_tables():
            found.add(self._table(table), title)
        with tempfile.TemporaryDirectory(prefix="inc_tb_") as folder:
            for title, data in entry.files.items():
                Path(folder, title).write_bytes(data)
            if entry.files:
                found.add_dir(folder)
        return found

    def _table(self, table: Table) -> Any:
        return self._wandb.Table(columns=table.columns, data=table.rows)

    def _is_shown(self, table: Table) -> bool:
        """W&B cuts larger ones off in its history."""
        return len(table.rows) <= int(self._wandb.Table.MAX_ROWS)


def _tags(entry: Entry) -> list[str]:
    return [f"fp32: {without_middle(op, _LONGEST_TAG - 6, 20)}" for op in (entry.fallback or ())[:_MOST_TAGS] if op]
