"""What a source is: something that another tool leaves on disk, and how it is found and read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from inc_tb.records import GraphNode
from inc_tb.sources.imported import Imported
from inc_tb.store.eventfile import readable_run

_ENDINGS = (".gz", ".json", ".trace", ".pt", ".log", ".txt")


class Source(Protocol):
    """To add one, write a class with these in a module of its own, and put an object of it into `imports.SOURCES`."""

    expected: Sequence[str]
    """What it reads, as a message says it."""

    def find(self, path: Path) -> Iterable[Found]:
        """Whatever it can read at or below a folder, in a fixed order; of a file that file or what it is part of."""
        ...

    def read(self, found: Found, graph: Sequence[GraphNode]) -> Imported:
        """`graph` is of the fp32 model, if one was given. What cannot be read is a DataError, a part of it a note."""
        ...

    def watched(self, path: Path) -> Sequence[Path]:
        """Files that change whenever there is more to read, while a tool runs; none where it writes all at its end."""
        ...


class Found(NamedTuple):
    """A file or folder to import, and what its runs are called."""

    path: Path
    name: str
    source: Source

    def read(self, graph: Sequence[GraphNode]) -> Imported:
        return self.source.read(self, graph)

    def watched(self) -> Sequence[Path]:
        return self.source.watched(self.path)


def name_of(path: Path) -> str:
    """By the file or folder itself."""
    name = path.resolve().name
    while not path.is_dir() and name.endswith(_ENDINGS):
        name = name.rpartition(".")[0]
    return storable(name)


def storable(name: str) -> str:
    return readable_run(name.encode("utf-8", "replace").decode()).strip(".") or "imported"
