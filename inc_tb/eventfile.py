"""TensorBoard's event files: records of length, checksum, data, checksum.

TensorBoard's own writer buffers for minutes, loses its queue on a hard exit and imports TensorFlow where
that is installed. This one writes every event with one system call, so that what was written is there
after a kill, and a reader sees an event whole or not at all.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
from tensorboard.compat.proto.event_pb2 import Event

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_count = itertools.count()


class EventFile:
    """A new event file in a folder. Never appends: after a torn record nothing would be read."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            name = f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}.{next(_count)}"
            try:
                self._file = (folder / name).open("xb", buffering=0)
                break
            except FileExistsError:
                continue
        self.path = folder / name
        self.write(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def write(self, event: Event) -> None:
        data = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        record = memoryview(_HEADER.pack(len(data), _masked(length)) + data + _FOOTER.pack(_masked(data)))
        while record:
            record = record[self._file.write(record) :]

    def close(self) -> None:
        self._file.close()


def read_events(path: Path) -> Iterator[Event]:
    """The events of a file up to where it ends or is damaged."""
    with path.open("rb") as file:
        while len(header := file.read(_HEADER.size)) == _HEADER.size:
            length, checksum = _HEADER.unpack(header)
            if checksum != _masked(header[:8]):
                return
            data, footer = file.read(length), file.read(_FOOTER.size)
            if len(footer) < _FOOTER.size or _FOOTER.unpack(footer)[0] != _masked(data):
                return
            yield Event.FromString(data)


def event_files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("*.tfevents.*") if p.is_file())


def _masked(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
