"""The built page: files of one folder, kept in memory as they are sent."""

from __future__ import annotations

import gzip
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

# Not from `mimetypes`, which asks the operating system: some Windows machines say that .js is plain text.
CONTENT_TYPES = {
    ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
    ".json": "application/json", ".map": "application/json", ".txt": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml", ".png": "image/png", ".ico": "image/x-icon",
    ".woff": "font/woff", ".woff2": "font/woff2",
}  # fmt: skip


@dataclass(frozen=True)
class File:
    body: bytes
    gzipped: bytes
    content_type: str
    etag: str


class Files:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._kept: dict[Path, tuple[tuple[int, int], File]] = {}

    def get(self, name: str) -> File | None:
        """None unless it is a file that really is in the folder, whatever its name and links say."""
        try:
            path = Path(os.path.realpath(self.folder / name))
            if not path.is_relative_to(os.path.realpath(self.folder)) or not path.is_file():
                return None
            about = path.stat()
            changed = about.st_mtime_ns, about.st_size
            kept = self._kept.get(path)
            if kept is None or kept[0] != changed:
                kept = self._kept[path] = changed, _read(path)
        except (OSError, ValueError):  # deleted meanwhile, or a name that no file can have
            return None
        return kept[1]


def _read(path: Path) -> File:
    body = path.read_bytes()
    content_type = CONTENT_TYPES.get(path.suffix, "application/octet-stream")
    return File(body, gzip.compress(body, mtime=0), content_type, hashlib.sha256(body).hexdigest()[:32])
