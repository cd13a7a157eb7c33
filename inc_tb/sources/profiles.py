"""Time per op from what other tools have written: ONNX Runtime, torch.profiler, Neural Compressor's benchmark."""

from __future__ import annotations

import csv
import io
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from inc_tb.errors import DataError
from inc_tb.frameworks.traces import Trace, read_chrome
from inc_tb.profiling.profile import Profile
from inc_tb.profiling.timetable import Side
from inc_tb.records import GraphNode
from inc_tb.sources.imported import Imported, ImportedRun
from inc_tb.sources.onnx_traces import is_integer, is_onnx, read_onnx, times_per_type
from inc_tb.sources.source import Found, name_of
from inc_tb.sources.torch_traces import is_torch, read_torch
from inc_tb.sources.traced import profile_of_sums

_TRACE, _TABLE, _TABLE_AS_CSV = "diagnosis.log", "profiling_data.json", "profiling_table.csv"
WORKSPACE = (_TRACE, _TABLE, _TABLE_AS_CSV)
_BEGINNING = 1 << 16
"""Bytes by which a trace is told from other JSON."""
_OF_TRACES = (".gz", ".json")


class Profiles:
    """As a source. In a workspace that is one of tunings, too, the profile is part of that."""

    expected: Sequence[str] = (
        "a trace of ONNX Runtime or torch.profiler (.json, .json.gz)",
        f"a benchmark workspace of Neural Compressor ({_TRACE}, {_TABLE})",
    )

    def find(self, path: Path) -> Iterator[Found]:
        for found in find_profiles(path):
            yield Found(found, name_of(found), self)

    def read(self, found: Found, graph: Sequence[GraphNode]) -> Imported:
        profile = import_profile(found.path)
        ops = sum(bool(row.op) for row in profile.rows)
        return Imported(found.name, found.path, [ImportedRun("", profile=profile)], ops, notes=profile.notes)

    def watched(self, path: Path) -> list[Path]:
        return []


_EXPECTED = ", or ".join(Profiles.expected)


def find_profiles(path: Path) -> list[Path]:
    """Everything at or below a path that `import_profile` takes: files, and workspaces as folders."""
    if path.is_dir():
        return list(_below(path))
    is_one = path.name in WORKSPACE or path.suffix in _OF_TRACES or _seems_a_trace(path)
    return [path] if is_one else []


def import_profile(path: str | os.PathLike[str]) -> Profile:
    """The times per op of one trace file or of one benchmark workspace."""
    given = Path(path)
    if given.is_dir() or given.name in WORKSPACE:
        return _workspace(given if given.is_dir() else given.parent)
    return _of_trace(given, read_chrome(given))


def _below(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders.sort()
        if Path(place).name == "plugins":
            folders[:] = [name for name in folders if name != "profile"]  # what we wrote ourselves
        if any(name in files for name in WORKSPACE):
            yield Path(place)
            continue
        traces = [Path(place, name) for name in sorted(files) if name.endswith((".json", ".json.gz"))]
        yield from (trace for trace in traces if _seems_a_trace(trace))


def _seems_a_trace(path: Path) -> bool:
    if not path.is_file():  # a pipe would wait for somebody who writes
        return False
    try:
        with path.open("rb") as file:
            beginning = file.read(_BEGINNING)
        if path.suffix == ".gz":
            beginning = zlib.decompressobj(wbits=31).decompress(beginning, _BEGINNING)
    except (OSError, zlib.error):
        return False
    return all(word in beginning for word in (b'"ph"', b'"ts"'))


def _of_trace(path: Path, trace: Trace) -> Profile:
    read = read_onnx if is_onnx(trace) else read_torch if is_torch(trace) else None
    traced = read(trace) if read is not None else None
    if traced is None or not any(traced.executions):
        what = "none of its events is an op" if traced is None else "none of its ops is part of a run"
        raise DataError(f"{path}: {what}; expected {_EXPECTED}. Profile the model once more.")
    return traced.to_profile(path.name)


def _workspace(folder: Path) -> Profile:
    """Its trace, which has every node; or its own table, which has types."""
    table, notes = _read_table(folder)
    trace = None
    if (folder / _TRACE).is_file():
        try:
            trace = read_chrome(folder / _TRACE)
            found = _of_trace(folder / _TRACE, trace)
        except DataError as error:
            if not table:
                raise
            trace, notes = None, [f"the trace of Neural Compressor cannot be used: {error}", *notes]
    if trace is None:
        return _of_table(folder, table, notes)
    explained = [
        f"from the trace that Neural Compressor has kept ({_TRACE}); its own table adds up the nodes of each type, and "
        "what it calls op_defined and op_run are events of the trace, not ops and not runs"
    ]
    found.notes = [*explained, *notes, *_disagreements(table, times_per_type(trace)), *found.notes]
    setattr(found, "int8" if found.int8 else "fp32", folder.name)
    return found


def _of_table(folder: Path, table: Mapping[str, float], notes: list[str]) -> Profile:
    if not table:
        raise DataError(f"{folder}: {'; '.join(notes) or 'holds nothing to import'}; expected {_EXPECTED}.")
    side: Side = "int8" if any(map(is_integer, table)) else "fp32"
    explained = (
        f"from the table of Neural Compressor, which adds up the nodes of each type: without its trace ({_TRACE}) "
        "there are no single ops, no time of the whole model, and no telling how often it was run"
    )
    return profile_of_sums(table, folder.name, side, [explained, *notes])


def _disagreements(table: Mapping[str, float], traced: Mapping[str, float]) -> list[str]:
    wrong = [kind for kind, us in table.items() if abs(us - traced.get(kind, 0.0)) > 0.5]
    told = ", ".join(f"{kind} {table[kind]:g} µs instead of {traced.get(kind, 0.0):g} µs" for kind in wrong)
    return [f"Neural Compressor's table does not fit its trace: {told}"] if wrong else []


class _TableRow(msgspec.Struct):
    node_name: str
    total_execution_time: Annotated[float, msgspec.Meta(ge=0, lt=1e15)]


def _read_table(folder: Path) -> tuple[dict[str, float], list[str]]:
    """Type -> µs, and what is wrong with it."""
    notes = []
    for name, read in ((_TABLE, _from_json), (_TABLE_AS_CSV, _from_csv)):
        if (folder / name).is_file():
            try:
                rows = read((folder / name).read_bytes())
            except (OSError, ValueError, KeyError, csv.Error) as error:
                notes.append(f"{name} cannot be read ({' '.join(str(error).split())})")
            else:
                return {row.node_name: row.total_execution_time for row in rows}, notes
    return {}, notes


def _from_json(content: bytes) -> list[_TableRow]:
    return msgspec.json.decode(content, type=list[_TableRow])


def _from_csv(content: bytes) -> list[_TableRow]:
    rows = csv.DictReader(io.StringIO(content.decode("utf-8-sig", "replace")))
    found = [{"node_name": row["Node name"], "total_execution_time": row["Total execution time [us]"]} for row in rows]
    return msgspec.convert(found, list[_TableRow], strict=False)
