"""The run that a callback begins where the user has none: the last diagnoses, and the scalars of all steps."""

from __future__ import annotations

from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event

from inc_tb.store.eventfile import EventFile
from inc_tb.store.thinning import Thinning

KEEP_LAST = 20
"""TensorBoard keeps in memory whatever a run holds; what the user's own writer is given stays in its run."""


class OwnRun:
    """Takes events as torch's writers do, and is in a folder that nobody else writes to."""

    def __init__(self, folder: Path, keep_last: int | None) -> None:
        self.log_dir = str(folder)
        self._folder = folder
        self._thinning = None if keep_last is None else Thinning(folder, keep_last, merges=True)
        self._file = EventFile(folder)

    def _get_file_writer(self) -> OwnRun:
        return self

    def add_event(self, event: Event, step: int, wall_time: float) -> None:
        event.step, event.wall_time = step, wall_time
        if self._thinning is not None:
            self._file.close()
            self._file = EventFile(self._folder)
            self._thinning.began(self._file.path)
        self._file.write(event)

    def flush(self) -> None:
        """All is on disk already."""

    def close(self) -> None:
        self._file.close()
