"""Logs that live elsewhere: s3://, gs://, sftp://, memory:// and whatever else fsspec knows.

An object store takes whole files and has nothing to append to. So a log is written to a folder of this machine, the
spool, and its files are sent whole whenever something was logged. What could not be sent stays in the spool, and is
sent when the same place is written to again, by whatever process.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from inc_tb.errors import UsageError, first_line
from inc_tb.locks import is_running

SPOOL = "INC_TB_SPOOL"
"""The variable that says where the spool is, instead of in the user's cache."""
_ADDRESS = re.compile(r"[A-Za-z][\w+.-]+://")
_OWNER = ".owner"
_WAITS_S = (0.2, 1.0, 4.0)
"""Between tries: networks and stores stumble."""
_INSTALL = "pip install 'inc-tb[remote]'"
_UNSENT = ("part.of.events", ".")
"""Beginnings of names of files that are not whole yet, or of this machine only."""
_FINAL = (PermissionError, FileNotFoundError)
"""Another try would not help."""
_OF_BUCKETS = {"s3", "s3a", "gs", "gcs", "abfs", "az", "adl", "oss"}
Result = TypeVar("Result")
_live: list[Mirror] = []


def is_remote(place: str | PathLike[str]) -> bool:
    return isinstance(place, str) and _ADDRESS.match(place) is not None and not place.startswith("file://")


def shown(path: Path) -> str:
    """Of a file or folder in the spool where it will be."""
    for mirror in _live:
        if path.is_relative_to(mirror.folder):
            rest = path.relative_to(mirror.folder).as_posix()
            return mirror.address if rest == "." else f"{mirror.address}/{rest}"
    return str(path)


def spool_of(path: Path) -> Path | None:
    """Of a file or folder that lives elsewhere."""
    return next((mirror.folder.parent for mirror in _live if path.is_relative_to(mirror.folder)), None)


class Mirror:
    """A folder that lives elsewhere, with a copy here: one works in `folder`, and `push` sends what is new in it."""

    def __init__(self, address: str, names: Sequence[str] | None = None, *, only_read: bool = False) -> None:
        """Of folders with these names, or that begin so where a name ends with a star; of all unless told."""
        self.address = address.rstrip("/")
        self._store, self._root = _opened(self.address)
        self._has_buckets = self.address.partition("://")[0] in _OF_BUCKETS
        self._names = names
        self._sent: dict[Path, tuple[int, int]] = {}
        spool = Path(os.environ.get(SPOOL) or Path.home() / ".cache" / "inc-tb" / "spool")
        mark = hashlib.sha256(self.address.encode()).hexdigest()[:16]
        there = self._listed()
        if not only_read:
            self._deliver(spool, mark, there)
        spool.mkdir(parents=True, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix=f"{mark}-", dir=spool))
        (self.folder / _OWNER).write_text(f"{os.getpid()} {self.address}\n")
        self._pull(there)
        _live.append(self)

    def push(self) -> None:
        """What has changed since the last time, each file whole."""
        for path in _files(self.folder):
            stat = path.stat()
            now = stat.st_size, stat.st_mtime_ns
            if self._sent.get(path) != now:
                self._send(path, self.folder)
                self._sent[path] = now

    def finish(self) -> None:
        """Send what is left, and leave nothing here; where that fails all stays in the spool."""
        if self not in _live:
            return
        _live.remove(self)
        try:
            self.push()
        except UsageError as error:
            raise UsageError(
                f"{error} What was logged is kept in {self.folder}, and sent when something is logged there again."
            ) from error
        shutil.rmtree(self.folder)

    def _listed(self) -> dict[str, int]:
        """Files that are wanted, by their place below the address, with their sizes."""
        found = self._try("read", self._find)
        return {rest: size for rest, size in found.items() if self._is_wanted(rest)}

    def _find(self) -> dict[str, int]:
        self._store.invalidate_cache()
        bucket = self._root.partition("/")[0]
        if self._has_buckets and not self._store.exists(bucket):
            raise FileNotFoundError(f"there is no bucket {bucket}")
        try:
            found = self._store.find(self._root, detail=True)
        except FileNotFoundError:
            return {}
        start = len(self._root.rstrip("/")) + 1
        return {name[start:]: int(about["size"] or 0) for name, about in found.items() if len(name) > start}

    def _is_wanted(self, rest: str) -> bool:
        top = rest.partition("/")[0]
        return self._names is None or any(
            top.startswith(name[:-1]) if name.endswith("*") else top == name for name in self._names
        )

    def _pull(self, there: dict[str, int]) -> None:
        for rest in there:
            if ".." in Path(rest).parts:
                continue
            target = self.folder / rest
            target.parent.mkdir(parents=True, exist_ok=True)
            self._try("read", partial(self._store.get_file, f"{self._root}/{rest}", str(target)))
            stat = target.stat()
            self._sent[target] = stat.st_size, stat.st_mtime_ns

    def _send(self, path: Path, folder: Path) -> None:
        rest = path.relative_to(folder).as_posix()
        target = f"{self._root}/{rest}"

        def put() -> None:
            if not self._has_buckets:  # those need no folders, and some would make the bucket
                self._store.makedirs(target.rpartition("/")[0], exist_ok=True)
            self._store.put_file(str(path), target)

        self._try("write", put)

    def _deliver(self, spool: Path, mark: str, there: dict[str, int]) -> None:
        """What processes that have ended could not send."""
        for folder in sorted(spool.glob(f"{mark}-*")) if spool.is_dir() else ():
            if _is_owned(folder):
                continue
            for path in _files(folder):
                rest = path.relative_to(folder).as_posix()
                if there.get(rest, -1) < path.stat().st_size:
                    self._send(path, folder)
                    there[rest] = path.stat().st_size
            shutil.rmtree(folder)

    def _try(self, what: str, work: Callable[[], Result]) -> Result:
        for wait in (*_WAITS_S, None):
            try:
                return work()
            except Exception as error:  # stores raise classes of many packages
                is_final = isinstance(error, _FINAL) or type(error).__name__ == "NoCredentialsError"
                if wait is None or is_final:
                    raise self._cannot(what, error) from error
                time.sleep(wait)
        raise AssertionError("the last try returns or raises")

    def _cannot(self, what: str, error: Exception) -> UsageError:
        told = first_line(error).rstrip(".")
        return UsageError(f"{self.address}: cannot {what} there ({told}). Check address, rights and network.")


def mirror_of_run(address: str) -> tuple[Mirror, str]:
    """For one run, and the run's name: with the references beside it, which it shares with others."""
    above, name = _parted(address)
    return Mirror(above, [name, "fp32*"]), name


def _parted(address: str) -> tuple[str, str]:
    above, _, name = address.rstrip("/").rpartition("/")
    if "://" not in above or above.endswith("://"):
        raise UsageError(f"{address} was given; expected the address of a run, such as s3://bucket/logs/trial-001.")
    return above, name


@contextmanager
def fetched(address: str) -> Iterator[Path]:
    """A copy of a run to be read, which is gone afterwards."""
    above, name = _parted(address)
    mirror = Mirror(above, [name], only_read=True)
    try:
        yield mirror.folder / name
    finally:
        _live.remove(mirror)
        shutil.rmtree(mirror.folder)


def _opened(address: str) -> tuple[Any, str]:
    kind = address.partition("://")[0]
    try:
        from fsspec.core import url_to_fs
    except ModuleNotFoundError as error:
        raise UsageError(f"{address}: needs {error.name}, which is not installed: {_INSTALL}.") from error
    try:
        store, root = url_to_fs(address)
    except ImportError as error:
        raise UsageError(f"{address}: {first_line(error).rstrip('.')}; for s3:// {_INSTALL}.") from error
    except ValueError as error:
        raise UsageError(f"{address}: {kind}:// is not known; expected s3://, gs:// or sftp://, say.") from error
    return store, str(root).rstrip("/")


def _files(folder: Path) -> list[Path]:
    found = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(_UNSENT))
    return sorted(found)


def _is_owned(folder: Path) -> bool:
    """Whether its process is still there."""
    try:
        return is_running(int((folder / _OWNER).read_text().split()[0]))
    except (OSError, ValueError, IndexError):
        return False
