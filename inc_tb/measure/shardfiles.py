"""Statistics of a part of the data in a file of its own, and of all parts as if one process had measured them."""

from __future__ import annotations

import gzip
import os
import socket
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import msgspec
import numpy as np
import numpy.typing as npt

from inc_tb.errors import DataError, MismatchError, RecordError, writing
from inc_tb.frameworks.ops import Op
from inc_tb.locks import is_running
from inc_tb.measure.shards import Shard, merged, packed, unpacked
from inc_tb.records import Origin, listed, plural

SUFFIX = ".shard"
_VERSION = 1
_MARK = b"inc-tb shard\n"
_CHECKSUM_BYTES = 4


class StoredShard(msgspec.Struct):
    """What one process leaves: its share of the batches, and what has to be the same in all."""

    place: int
    """From 1."""
    count: int
    names: tuple[str, str]
    framework: str
    notes: list[str]
    ops: list[Op]
    origin: Origin
    asked: dict[str, int | None]
    """Options that decide which samples are in which batch."""
    measured: bytes
    version: int = _VERSION


class Merged(msgspec.Struct):
    """All that a diagnosis follows from."""

    measured: Shard
    names: tuple[str, str]
    framework: str
    notes: list[str]
    ops: list[Op]
    origin: Origin


class _Version(msgspec.Struct):
    version: int


def store(path: Path, shard: StoredShard) -> None:
    """Whole or not at all: a job that is done again replaces what an earlier try has left."""
    data = gzip.compress(msgspec.msgpack.encode(shard, enc_hook=_encoded), compresslevel=4, mtime=0)
    part = path.with_name(f".{socket.gethostname()}-{os.getpid()}-{path.name}.part")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_left(path)
        try:
            part.write_bytes(_MARK + google_crc32c.value(data).to_bytes(_CHECKSUM_BYTES, "little") + data)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


def _remove_left(path: Path) -> None:
    """By an earlier try of this machine that was killed."""
    start, end = f".{socket.gethostname()}-", f"-{path.name}.part"
    for left in path.parent.glob(".*.part"):
        process = left.name[len(start) : -len(end)]
        is_of_it = left.name.startswith(start) and left.name.endswith(end) and process.isdecimal()
        if is_of_it and not is_running(int(process)):
            left.unlink(missing_ok=True)


def pack(measured: Shard, **told: Any) -> StoredShard:
    return StoredShard(measured=packed(measured), **told)


def read(path: Path) -> StoredShard:
    content = path.read_bytes()
    data = content[len(_MARK) + _CHECKSUM_BYTES :]
    if not content.startswith(_MARK):
        raise RecordError(f"{path}: is no shard; expected a file that inc-tb diagnose --shard has written.")
    if google_crc32c.value(data).to_bytes(_CHECKSUM_BYTES, "little") != content[len(_MARK) :][:_CHECKSUM_BYTES]:
        raise RecordError(f"{path}: is damaged or cut off; measure this shard again.")
    try:
        raw = gzip.decompress(data)
        version = msgspec.msgpack.decode(raw, type=_Version).version
        if version > _VERSION:
            raise RecordError(f"{path}: has version {version}, this inc-tb reads up to {_VERSION}. Update inc-tb.")
        return msgspec.msgpack.decode(raw, type=StoredShard, dec_hook=_decoded)
    except (msgspec.MsgspecError, OSError, EOFError, zlib.error) as error:
        raise RecordError(f"{path}: cannot be read ({error}); measure this shard again.") from error


def files_of(given: Sequence[Path]) -> list[Path]:
    """Shards, and folders of them."""
    found: list[Path] = []
    for path in given:
        inside = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
        if not inside or not inside[0].is_file():
            raise DataError(f"{path}: no shards there; expected files that inc-tb diagnose --shard has written.")
        found += inside
    return found


def merge(files: Sequence[Path]) -> Merged:
    return merge_all([(read(path), str(path)) for path in files])


def merge_all(given: Sequence[tuple[StoredShard, str]]) -> Merged:
    """As if one process had gone through all batches in their order. Each has a name by which a message calls it."""
    shards = sorted(given, key=lambda one: one[0].place)
    _check(shards)
    first = shards[0][0]
    whole = merged([unpacked(shard.measured) for shard, _ in shards])
    data = whole.by_sample.ids.digest(whole.samples)
    settings = {**first.origin.settings, "samples": whole.samples, "shards": first.count}
    origin = msgspec.structs.replace(first.origin, data=data, settings=settings)
    notes = list(dict.fromkeys(note for shard, _ in shards for note in shard.notes))
    notes += _differences([shard for shard, _ in shards])
    alike = zip(*(shard.ops for shard, _ in shards), strict=True)
    # What turned out in any shard not to be comparable is not compared.
    ops = [next((op for op in same if op.note), same[0]) for same in alike]
    return Merged(whole, first.names, first.framework, notes, ops, origin)


def _check(shards: Sequence[tuple[StoredShard, str]]) -> None:
    first, first_path = shards[0]
    there: dict[int, str] = {}
    for shard, path in shards:
        why = _other(first, shard)
        if why:
            raise MismatchError(f"{path} and {first_path} {why}. Merge shards of one diagnosis only.")
        if shard.place in there:
            raise DataError(
                f"{path} and {there[shard.place]} are both shard {shard.place}/{shard.count}; each counts once. Leave "
                "out one of them."
            )
        there[shard.place] = path
    missing = [str(place) for place in range(1, first.count + 1) if place not in there]
    if missing:
        raise DataError(
            f"{plural(len(missing), 'shard')} of {first.count} {'is' if len(missing) == 1 else 'are'} missing: "
            f"{listed(missing, 12)}. Measure the rest, then merge all of them."
        )


def _other(one: StoredShard, other: StoredShard) -> str:
    """Why two shards are not of one diagnosis."""
    for what, name in (("fp32", "reference"), ("quantized", "quantized")):
        mine, theirs = getattr(one.origin, name), getattr(other.origin, name)
        if mine != theirs:
            return f"are of two {what} models"
    if not one.origin.quantized and one.names != other.names:
        return f"are of other models, {listed(one.names)} and {listed(other.names)}"
    if one.count != other.count:
        return f"are one of {other.count} and one of {one.count} shards"
    if one.asked != other.asked:
        differing = [name for name in one.asked if one.asked[name] != other.asked.get(name)]
        return f"were measured with other options ({', '.join(f'--{name}' for name in differing)})"
    if [op.name for op in one.ops] != [op.name for op in other.ops]:
        return "have other ops"
    return ""


def _differences(shards: Sequence[StoredShard]) -> list[str]:
    """What may make the results of some shards differ from those of others."""
    found = []
    for package in shards[0].origin.versions:
        versions = dict.fromkeys(shard.origin.versions.get(package, "none") for shard in shards)
        if len(versions) > 1:
            found.append(f"the shards were measured with {package} {' and '.join(versions)}")
    if len({tuple(shard.origin.cpu) for shard in shards}) > 1:
        found.append("the shards were measured on different kinds of processors")
    return found


def _encoded(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.str, "shape": list(value.shape), "data": value.tobytes()}
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"a {type(value)} in an op")


def _decoded(_: type, value: Any) -> npt.NDArray[Any]:
    """Nothing but numbers: a type of objects would be a pickle."""
    try:
        kind = np.dtype(value["dtype"])
        if kind.kind not in "biuf":
            raise ValueError(f"an array of {kind}")
        return np.frombuffer(value["data"], kind).reshape(value["shape"]).copy()
    except (KeyError, TypeError) as error:
        raise ValueError(f"no array: {error}") from error
