"""Everything that can be imported: found, read, and logged as runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inc_tb.errors import DataError, IncTbError
from inc_tb.frameworks.models import read_graph
from inc_tb.records import GraphNode
from inc_tb.sources.imported import Imported
from inc_tb.sources.logged import log_runs
from inc_tb.sources.neural_compressor.source import NeuralCompressor
from inc_tb.sources.profiles import Profiles
from inc_tb.sources.source import Found, Source

SOURCES: Sequence[Source] = (NeuralCompressor(), Profiles())
"""What lies in a folder that one has found is part of it, and not for those behind."""


def find_sources(path: Path) -> list[Found]:
    """At or below a path, named as the folders below it are."""
    if not path.is_file() and not path.is_dir():
        what = "is neither a file nor a folder" if path.exists() else "is not there"
        raise DataError(f"{path}: {what}; {_expected()}. Check the path.")
    found: list[Found] = []
    for source in SOURCES:
        taken = {one.path for one in found}
        found += [one for one in source.find(path) if one.path not in taken and one.path.parent not in taken]
    if not found:
        what = "holds nothing to import" if path.is_dir() else "is neither a trace nor a log of a tuning"
        raise DataError(f"{path}: {what}; {_expected()}. Give the folder that the tool wrote to.")
    return found


def _expected() -> str:
    *others, last = (what for source in SOURCES for what in source.expected)
    return f"expected {', '.join(others)}, or {last}"


def read_all(sources: Sequence[Found], graph: Sequence[GraphNode] = ()) -> list[Imported]:
    """What cannot be read does not stop the others: it has no runs, and a note says why."""
    imported = []
    for found in sources:
        try:
            imported.append(read_source(found, graph))
        except DataError as error:
            if len(sources) == 1:
                raise
            imported.append(Imported(found.name, found.path, notes=[str(error)]))
    if not any(one.runs for one in imported):
        first = imported[0].notes[0]
        raise DataError(f"none of the {len(imported)} that were found can be imported. The first: {first}")
    return imported


def read_source(found: Found, graph: Sequence[GraphNode] = ()) -> Imported:
    try:
        imported = found.read(graph)
    except IncTbError:
        raise
    except Exception as error:  # files of others may hold anything
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise DataError(f"{found.path}: cannot be imported ({what}); expected what the tool writes.") from error
    if imported.runs:
        return imported
    if imported.unread:
        raise DataError(" ".join(imported.unread))
    what, expected = " ".join(imported.notes) or "holds nothing to import.", _expected()
    raise DataError(f"{found.path}: {what} {expected[0].upper()}{expected[1:]}.")


def import_workspace(
    path: str | os.PathLike[str], logdir: str | os.PathLike[str] | None = None, *, model: Any = None
) -> list[Imported]:
    """What Neural Compressor, or a profiler, has left at or below a path; with a `logdir` also as runs there.

    One `Imported` for each workspace, with its trials, diagnoses and profiles as `runs`; one that cannot be read has
    none, and a note. `model` is the fp32 model, by path or as an object, for workspaces that do not say which op reads
    which.
    """
    found = read_all(find_sources(Path(path)), read_graph(model) if model is not None else ())
    for imported in found if logdir is not None else ():
        log_runs(imported, Path(logdir or ""))
    return found
