"""What a long search has found so far, one JSON line each, so that it can go on after a kill at any point."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from inc_tb.errors import DataError, reading, writing


class Journal:
    """Lines are on disk when `add` returns; a last line that was cut off is dropped when the file is opened again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = list(_whole_lines(path))
        self._drop_torn_end()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, line: dict[str, Any]) -> None:
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with self.path.open("ab") as file:
                    file.write(msgspec.json.encode(line) + b"\n")
            except OSError:
                self._drop_torn_end()
                raise
        self._lines.append(line)

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)
        self._lines = []

    def _drop_torn_end(self) -> None:
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            with self.path.open("r+b") as file:
                file.truncate(whole)


def _whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    *lines, _ = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        what_to_do = "Expected one JSON object a line. Start anew with another --logdir."
        with reading(DataError, path, f"line {number} is damaged", what_to_do):
            found = msgspec.json.decode(line, type=dict[str, Any])
        yield found
