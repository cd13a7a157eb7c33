"""The last diagnoses of a run alone, however long it goes on; scalars, graph, trials and profiles stay of all steps.

Each diagnosis begins an event file. One that is too old is replaced by what stays of it, in a file of the same name: a
TensorBoard that runs has read it, and is not made to read it again.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event

from inc_tb.errors import UsageError, writing
from inc_tb.records import PLUGIN
from inc_tb.store.encoded import tag_of
from inc_tb.store.eventfile import PART, event_files, framed, read_events

_LASTING = {tag_of("trial"), tag_of("profile")}
_AT_MOST = 64
"""Files of old steps, before they are put together."""


class Thinning:
    """Of one run, into which nobody else writes; `merges` where files may go that were there."""

    def __init__(self, run: Path, keep_last: int, *, merges: bool) -> None:
        check_keep_last(keep_last)
        self._keep, self._merges = keep_last, merges
        self._whole = deque(path for path in event_files(run) if _has_diagnosis(path))
        self._thin: list[Path] = []

    def began(self, path: Path) -> None:
        """The file of a further diagnosis."""
        self._whole.append(path)
        while len(self._whole) > self._keep:
            old = self._whole.popleft()
            _replace(old, _lasting(old))
            self._thin.append(old)
        if self._merges and len(self._thin) >= _AT_MOST:
            first, *others = self._thin
            _replace(first, (event for path in self._thin for event in read_events(path)))
            for path in others:
                path.unlink()
            self._thin = [first]


def check_keep_last(keep_last: int | None) -> None:
    is_number = isinstance(keep_last, int) and not isinstance(keep_last, bool) and keep_last > 0
    if keep_last is not None and not is_number:
        raise UsageError(f"keep_last={keep_last!r} was given; expected a whole number from 1 on, or None for all.")


def _has_diagnosis(path: Path) -> bool:
    return any(value.tag == tag_of("ops") for event in read_events(path) for value in event.summary.value)


def _lasting(path: Path) -> Iterator[Event]:
    for event in read_events(path):
        if event.HasField("tagged_run_metadata"):
            continue
        kept = [value for value in event.summary.value if _lasts(value.tag, value.metadata.plugin_data.plugin_name)]
        if kept or not event.summary.value:
            del event.summary.value[:]
            event.summary.value.extend(kept)
            yield event


def _lasts(tag: str, plugin: str) -> bool:
    return tag in _LASTING or plugin not in (PLUGIN, "histograms", "text")


def _replace(path: Path, events: Iterator[Event] | Sequence[Event]) -> None:
    """What reads the old file goes on with that."""
    beside = path.with_name(f"{PART}.{path.name.rpartition('tfevents.')[2]}")
    with writing(path):
        with beside.open("wb") as file:
            for event in events:
                file.write(framed(event))
        os.replace(beside, path)
