"""Locks of the kernel, which end with their process however that ends, and temporary folders that they tell apart.

A folder of a process that was killed is removed by the next one that needs a temporary folder.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from types import TracebackType

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_MARK, _LOCK = ".inc-tb-", ".lock"
_swept: set[str] = set()


class Lock:
    """Of a file that is there as long as the lock is held. Where the disk knows no locks, everybody gets one."""

    def __init__(self, path: Path) -> None:
        """Raises BlockingIOError where somebody else has it, be it in this process."""
        self.path = path
        self._owner = os.getpid()
        self.is_certain = True
        while True:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                self._take()
            except BlockingIOError:
                os.close(self._file)
                raise
            if self._is_there():
                return
            os.close(self._file)  # its holder has just taken it away

    def _take(self) -> None:
        try:
            if fcntl is not None:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            self.is_certain = False
        self.is_certain &= fcntl is not None

    def _is_there(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file), self.path.stat())
        except FileNotFoundError:
            return False

    def sign(self, told: bytes) -> None:
        try:
            os.ftruncate(self._file, 0)
            os.write(self._file, told)
        except OSError:  # a full disk: it is held all the same
            return

    def release(self) -> None:
        """A forked child has the file, too, but not the right."""
        if self._file < 0:
            return
        if self._owner == os.getpid():
            if self._is_there():
                self.path.unlink(missing_ok=True)
            if fcntl is not None and self.is_certain:
                fcntl.flock(self._file, fcntl.LOCK_UN)
        os.close(self._file)
        self._file = -1


class TemporaryFolder:
    """tempfile's, but that one of a process that was killed is there no longer than to the next one."""

    def __init__(self, purpose: str = "work", place: Path | None = None) -> None:
        place = Path(tempfile.gettempdir()) if place is None else place
        place.mkdir(parents=True, exist_ok=True)
        _sweep(place)
        self.name = tempfile.mkdtemp(prefix=f"{_MARK}{purpose}-", dir=place)
        lock = Lock(Path(f"{self.name}{_LOCK}"))
        self.cleanup = weakref.finalize(self, _end, Path(self.name), lock, os.getpid())

    def __enter__(self) -> str:
        return self.name

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cleanup()


def _end(folder: Path, lock: Lock, owner: int) -> None:
    if owner == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)
    lock.release()


def _sweep(place: Path) -> None:
    """Once a process; whose lock can be had is dead."""
    if str(place) in _swept or fcntl is None:
        return
    _swept.add(str(place))
    for path in place.glob(f"{_MARK}*{_LOCK}"):
        try:
            lock = Lock(path)
        except OSError:  # it is held, or somebody else's
            continue
        if lock.is_certain:
            shutil.rmtree(path.with_suffix(""), ignore_errors=True)
        lock.release()


def is_running(process: int) -> bool:
    """On this machine."""
    try:
        os.kill(process, 0)
    except PermissionError:  # it is somebody else's
        return True
    except (OSError, OverflowError):
        return False
    return True
