"""What W&B has written offline: its own records, in the framing of LevelDB's logs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK, _BEFORE, _HEADER = 32768, 7, 7
_FULL, _LAST = 1, 4


class Offline:
    """One run, read from its .wandb file."""

    def __init__(self, folder: Path) -> None:
        (path,) = folder.glob("*.wandb")
        self.history: list[dict[str, Any]] = []
        self.config: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self.artifacts: dict[str, dict[str, Path]] = {}
        """By type: its files by name."""
        self.is_ended = False
        for record in _records(path):
            self._add(record)

    def _add(self, record: Any) -> None:
        kind = record.WhichOneof("record_type")
        if kind == "run":
            self.name, self.group, self.tags = record.run.display_name, record.run.run_group, list(record.run.tags)
            self.project = record.run.project
        elif kind == "config":
            self.config.update({item.key: json.loads(item.value_json) for item in record.config.update})
        elif kind == "history":
            self.history.append(
                {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
            )
        elif kind == "summary":
            self.summary.update({i.key: json.loads(i.value_json) for i in record.summary.update if i.key})
        elif kind == "artifact":
            files = {entry.path: Path(entry.local_path) for entry in record.artifact.manifest.contents}
            self.artifacts.setdefault(record.artifact.type, {}).update(files)
        elif kind == "exit":
            self.is_ended, self.exit_code = True, record.exit.exit_code


def _records(path: Path) -> Iterator[Any]:
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, whole = path.read_bytes(), _BEFORE, b""
    assert data.startswith(b":W&B")
    while place + _HEADER <= len(data):
        left = _BLOCK - place % _BLOCK
        if left < _HEADER:
            place += left
            continue
        size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        whole += data[place + _HEADER : place + _HEADER + size]
        place += _HEADER + size
        if kind in (_FULL, _LAST):
            yield Record.FromString(whole)
            whole = b""
