"""One process at a time writes into a folder; a lock of one that died holds nobody up.

Beside the log lies a hidden file that says who it is, for as long as that lasts.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from inc_tb.errors import UsageError, writing
from inc_tb.locks import Lock
from inc_tb.store.eventfile import EventFile, remove_unfinished
from inc_tb.store.remote import shown, spool_of

_DOES = {".writing.lock": "writes", ".tuning.lock": "tunes", ".importing.lock": "imports"}
WRITING, TUNING, IMPORTING = _DOES
_PAUSE_S = 0.05
_guard = threading.Lock()


class _Holder(msgspec.Struct):
    pid: int
    host: str
    command: str
    since: str


class Hold:
    """The right of this process to write a run, for as long as one of its writers has it."""

    def __init__(self, lock: Lock) -> None:
        self.newest: EventFile | None = None
        """The file that was begun last, by whichever writer: TensorBoard does not go back to those before it."""
        self.steps: dict[str, int] = {}
        """The largest of each tag."""
        self.counting = threading.Lock()
        weakref.finalize(self, lock.release)


_held: weakref.WeakValueDictionary[Path, Hold] = weakref.WeakValueDictionary()


def hold(run: Path) -> Hold:
    """Writers of one process share it; another process is refused."""
    path = _place(run, WRITING)
    with _guard:
        found = _held.get(path)
        if found is None:
            lock = _locked(path, run)
            if lock.is_certain:
                remove_unfinished(run)
            found = _held[path] = Hold(lock)
        return found


@contextmanager
def held_alone(folder: Path, name: str, *, wait_s: float = 0.0) -> Iterator[None]:
    """For what reads a folder and adds to it: nobody else does, in this process neither."""
    path, began, was_there = _place(folder, name), time.monotonic(), folder.exists()
    while True:
        try:
            lock = _locked(path, folder)
            break
        except UsageError as error:
            is_held = isinstance(error.__cause__, BlockingIOError)
            if not is_held or time.monotonic() - began >= wait_s:
                raise
        time.sleep(_PAUSE_S)
    try:
        yield
    finally:
        lock.release()
        if not was_there:
            with suppress(OSError):  # it holds something now
                folder.rmdir()


def _place(folder: Path, name: str) -> Path:
    """Of a folder that lives elsewhere it is in the spool, where all processes of this machine look."""
    spool = spool_of(folder)
    if spool is None:
        return folder.resolve() / name
    return spool / f"{hashlib.sha256(shown(folder).encode()).hexdigest()[:16]}{name}"


def _locked(path: Path, folder: Path) -> Lock:
    with writing(folder):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock = Lock(path)
        except BlockingIOError as error:
            raise UsageError(_refusal(folder, path)) from error
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:2]])
    holder = _Holder(os.getpid(), socket.gethostname(), command, time.strftime("%Y-%m-%d %H:%M:%S"))
    lock.sign(msgspec.json.encode(holder))
    return lock


def _refusal(folder: Path, path: Path) -> str:
    does = next(verb for name, verb in _DOES.items() if path.name.endswith(name))
    try:
        holder = msgspec.json.decode(path.read_bytes(), type=_Holder)
        whose = "this process" if holder.pid == os.getpid() else f"process {holder.pid} ({holder.command})"
        told = f"{whose} on {holder.host} {does} there since {holder.since}"
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        told = f"another process {does} there"
    return f"{shown(folder)}: {told}. Wait until it has ended, or choose another folder."
