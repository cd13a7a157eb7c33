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
import threading
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import google_crc32c
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from tensorboard.compat.proto.event_pb2 import Event

from inc_tb.errors import UsageError, writing

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_count = itertools.count()
_MARK, PART = "events.out.tfevents", "part.of.events"
"""TensorBoard looks for "tfevents" in names."""


class EventFile:
    """A new event file in a folder. Never appends: after a torn record nothing would be read.

    Names sort by time, since TensorBoard's Python loader never goes back to a name that sorts before the last one.
    A file that is to be seen `whole` has another name until it is closed, which is none for TensorBoard.
    """

    def __init__(self, folder: Path, suffix: str = "", *, whole: bool = False) -> None:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = _new_file(folder, suffix, PART if whole else _MARK)
        written = Path(str(self._file.name))
        self.path = written.with_name(written.name.replace(PART, _MARK, 1))
        self._lock = threading.Lock()
        self.write(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def write(self, event: Event) -> None:
        record = framed(event)
        with self._lock:
            if self._file.closed:
                raise UsageError(f"{self.path}: the writer is closed. Open a new one, which continues with a new file.")
            start = self._file.tell()
            try:
                with writing(self.path):
                    _write_all(self._file, record)
            except BaseException:
                # A full disk or Ctrl-C in the middle: nothing behind half a record would ever be read.
                self._file.truncate(start)
                self._file.seek(start)
                raise

    def close(self) -> None:
        if not self._file.closed:
            self._file.close()
            if self._file.name != str(self.path):
                os.replace(str(self._file.name), self.path)

    def discard(self) -> None:
        """Unless it is closed, and seen."""
        if not self._file.closed:
            self._file.close()
            os.unlink(str(self._file.name))

    @property
    def is_closed(self) -> bool:
        return self._file.closed


def remove_unfinished(folder: Path) -> None:
    """What a process that was killed left in a run that nobody else writes."""
    for path in (*folder.glob(f"{PART}.*"), *folder.glob("*.part")):
        path.unlink(missing_ok=True)


def _new_file(folder: Path, suffix: str, mark: str) -> FileIO:
    maker = f"{socket.gethostname()}.{os.getpid()}"
    while True:
        name = f"{mark}.{time.time():017.6f}.{maker}.{next(_count)}{suffix}"
        try:
            return (folder / name).open("xb", buffering=0)
        except FileExistsError:
            continue


def read_events(path: Path) -> Iterator[Event]:
    """The events of a file up to where it ends or is damaged, leaving out those of which nobody can make sense."""
    with path.open("rb") as file:
        whole = os.fstat(file.fileno()).st_size
        while len(header := file.read(_HEADER.size)) == _HEADER.size:
            length, checksum = _HEADER.unpack(header)
            if checksum != _masked(header[:8]) or length > whole - file.tell():
                return
            data, footer = file.read(length), file.read(_FOOTER.size)
            if len(footer) < _FOOTER.size or _FOOTER.unpack(footer)[0] != _masked(data):
                return
            try:
                event = Event.FromString(data)
            except DecodeError:  # such as a foreign writer's tag that is no UTF-8
                continue
            yield event


def readable_run(name: str) -> str:
    """The name of a run as TensorBoard's fast loader can read it: it fails at whatever JSON has to escape."""
    return "".join("_" if c in '"\\' or ord(c) < ord(" ") else c for c in name)


def event_files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("*.tfevents.*") if p.is_file()) if folder.is_dir() else []


def framed(event: Event) -> bytes:
    data: bytes = event.SerializeToString()
    return _HEADER.pack(len(data), _masked(struct.pack("<Q", len(data)))) + data + _FOOTER.pack(_masked(data))


def _write_all(file: FileIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _masked(data: bytes) -> int:
    crc = int(google_crc32c.value(data))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
