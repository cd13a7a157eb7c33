"""Records as byte strings, and back.

A record is a sequence of byte strings. Element 0 is a JSON header (a checksum of itself, version,
kind, a checksum of each other element); the others are gzip: one column of a table each, or a chunk
of JSON. A reader therefore fetches one column of a hundred runs, or the histograms of one op, without
decoding the rest.

JSON has no NaN and no lone surrogates: a number that is not finite becomes null, and a character
that UTF-8 cannot hold becomes its escape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, cast, get_args

import google_crc32c
import msgspec
import numpy as np
import numpy.typing as npt

from inc_tb.errors import RecordError, reading
from inc_tb.records.packed import LARGEST_ELEMENT, LARGEST_LOOSE_ELEMENT, pack, unpacked
from inc_tb.records.rows import ChannelRow, GraphNode, HistogramRow, Preview, ProfileRow, SampleRow, Suggestion, Trial
from inc_tb.records.table import Column, OpTable
from inc_tb.records.text import storable_text, to_json
from inc_tb.records.tokens import Tokens

VERSION = 2
PLUGIN = "quantization"
RowKind = Literal["histograms", "channels", "suggestions", "graph", "trial", "profile", "tokens", "samples", "previews"]
Kind = Literal["ops"] | RowKind
ROW_KINDS: tuple[RowKind, ...] = get_args(RowKind)
ROWS_PER_CHUNK = 32
CHUNKED: frozenset[RowKind] = frozenset({"histograms", "channels"})
"""Read for one op at a time; the others are read whole, so they are one chunk."""
_LOOSE: frozenset[RowKind] = frozenset({"suggestions", "trial"})
"""They hold evidence and settings, which may be anything."""

Row = TypeVar("Row", HistogramRow, ChannelRow, Suggestion, GraphNode, Trial, ProfileRow, Tokens, SampleRow, Preview)
Decoded = TypeVar("Decoded")
_DECODERS: Mapping[RowKind, msgspec.json.Decoder[list[Any]]] = {
    "histograms": msgspec.json.Decoder(list[HistogramRow]),
    "channels": msgspec.json.Decoder(list[ChannelRow]),
    "suggestions": msgspec.json.Decoder(list[Suggestion]),
    "graph": msgspec.json.Decoder(list[GraphNode]),
    "trial": msgspec.json.Decoder(list[Trial]),
    "profile": msgspec.json.Decoder(list[ProfileRow]),
    "tokens": msgspec.json.Decoder(list[Tokens]),
    "samples": msgspec.json.Decoder(list[SampleRow]),
    "previews": msgspec.json.Decoder(list[Preview]),
}


class Header(msgspec.Struct, omit_defaults=True):
    version: int
    kind: str
    rows: int
    checksums: list[str]
    columns: list[Column] = []
    index: dict[str, int] = {}
    """Op -> the element that holds its rows."""
    meta: dict[str, Any] = {}


def encode_table(table: OpTable, meta: Mapping[str, Any]) -> list[bytes]:
    columns = [msgspec.structs.replace(c, stored=_number_type(c, table[c.name])) for c in table.columns]
    elements = [pack(_encode_column(c, table[c.name], table.own_reasons(c.name))) for c in columns]
    return [_header("ops", table.count, elements, columns=columns, meta=dict(meta)), *elements]


def decode_table(blobs: Sequence[bytes]) -> tuple[OpTable, dict[str, Any]]:
    header, elements = _open("ops", blobs)

    def table() -> OpTable:
        arrays, reasons = [], {}
        for column, data in zip(header.columns, unpacked(elements), strict=True):
            array, why = _decode_column(column, data, header.rows)
            arrays.append(array)
            if why:
                reasons[column.name] = why
        columns = [msgspec.structs.replace(column, nulls={}, stored="f8") for column in header.columns]
        return OpTable(columns, arrays, reasons)

    return _read("ops", table), header.meta


def encode_rows(kind: RowKind, rows: Sequence[Row], meta: Mapping[str, Any] | None = None) -> list[bytes]:
    """Rows in chunks; all rows of one op are in the same chunk, also where they come from different passes."""
    groups: dict[str, list[Row]] = {}
    for position, row in enumerate(rows):
        groups.setdefault(getattr(row, "op", f"row {position}"), []).append(_storable(row))
    chunks: list[list[Row]] = [[]]
    index: dict[str, int] = {}
    for op, group in groups.items():
        if kind in CHUNKED and len(chunks[-1]) >= ROWS_PER_CHUNK:
            chunks.append([])
        chunks[-1] += group
        if kind in CHUNKED:
            index[op] = len(chunks)
    elements: list[bytes] = [pack(to_json(chunk)) for chunk in chunks]
    return [_header(kind, len(rows), elements, index=index, meta=dict(meta or {})), *elements]


def decode_rows(kind: RowKind, blobs: Sequence[bytes]) -> list[Any]:
    _, elements = _open(kind, blobs)
    decode = _DECODERS[kind].decode
    largest = LARGEST_LOOSE_ELEMENT if kind in _LOOSE else LARGEST_ELEMENT
    return _read(kind, lambda: [row for data in unpacked(elements, largest) for row in decode(data)])


def read_header(kind: Kind, blob: bytes) -> Header:
    """Element 0 of a record, if it is whole and of a version that can be read."""
    sealed = bytes(blob)
    version = _read(kind, lambda: msgspec.json.decode(sealed, type=dict[str, Any]).get("version"))
    if isinstance(version, int) and version > VERSION:
        raise RecordError(f"the {kind} record has version {version}, this inc-tb reads up to {VERSION}. Update inc-tb.")
    header = _read(kind, lambda: msgspec.json.decode(sealed, type=Header))
    if _seal(b"{" + sealed.partition(b",")[2]) != sealed or header.kind != kind:
        raise _damaged(kind)
    return header


def check_element(header: Header, position: int, element: bytes) -> None:
    """Raise RecordError unless this is the element that the header speaks of; positions count from 1."""
    if position > len(header.checksums) or checksum(bytes(element)) != header.checksums[position - 1]:
        raise _damaged(header.kind)


def checksum(data: bytes) -> str:
    return f"{google_crc32c.value(data):08x}"


def _storable(row: Row) -> Row:
    """Numbers that are not finite would come back as null where a number is expected."""
    if isinstance(row, HistogramRow) and row.limits is not None and not all(map(math.isfinite, row.limits)):
        return msgspec.structs.replace(row, limits=None)
    if isinstance(row, Trial):
        given = {"accuracy": row.accuracy, "baseline": row.baseline, "target": row.target, "wall_s": row.wall_s}
        numbers = {name: None if value is None else float(value) for name, value in given.items()}  # also of a tensor
        objectives = {name: float(value) for name, value in row.objectives.items()}
        known: dict[str, float | None] = {**numbers, **objectives}
        odd: dict[str, float] = {
            name: value for name, value in known.items() if value is not None and not math.isfinite(value)
        }
        notes = [*row.notes, *(f"{name} was {value}, not a finite number" for name, value in odd.items())]
        finite = {name: value for name, value in objectives.items() if name not in odd}
        return msgspec.structs.replace(row, **numbers, objectives=finite, notes=notes)
    if isinstance(row, ProfileRow):
        spans = [span for span in row.spans if math.isfinite(span.start_us + span.duration_us)]
        convert_us = row.convert_us if math.isfinite(row.convert_us) else 0.0
        return msgspec.structs.replace(row, spans=spans, convert_us=convert_us)
    if isinstance(row, Suggestion):
        return msgspec.structs.replace(row, effects=[e for e in row.effects if math.isfinite(e.value)])
    return row


def _header(kind: Kind, rows: int, elements: Sequence[bytes], **more: Any) -> bytes:
    return _seal(to_json(Header(VERSION, kind, rows, [checksum(e) for e in elements], **more)))


def _seal(header: bytes) -> bytes:
    """The header with its own checksum as its first entry: TensorBoard's fast loader checks none."""
    return b'{"checksum":"' + checksum(header).encode() + b'",' + header[1:]


def _open(kind: Kind, blobs: Sequence[bytes]) -> tuple[Header, Sequence[bytes]]:
    if not blobs:
        raise RecordError(f"the {kind} record is empty; it was expected to begin with a header. Log the run again.")
    header, elements = read_header(kind, blobs[0]), blobs[1:]
    if len(elements) != len(header.checksums):
        raise _damaged(kind)
    for position, element in enumerate(elements, start=1):
        check_element(header, position, element)
    return header, elements


def _damaged(kind: str) -> RecordError:
    return RecordError(f"the {kind} record is damaged: its checksums do not fit its contents. Log the run again.")


def _read(kind: Kind, decode: Callable[[], Decoded]) -> Decoded:
    with reading(RecordError, f"the {kind} record", "cannot be read", "Log the run again."):
        return decode()


def _number_type(column: Column, array: npt.NDArray[Any]) -> Literal["f8", "f4"]:
    """float32 halves the log and what TensorBoard holds in memory; whole numbers and extreme ones stay exact."""
    if column.type == "text":
        return "f8"
    known = array[~np.isnan(array)]
    size = np.abs(known)
    measured = (size < np.finfo(np.float32).max) & (size > np.finfo(np.float32).tiny) & (known % 1 != 0)
    with np.errstate(over="ignore"):
        exact = known.astype(np.float32) == known
    return "f4" if np.all(measured | exact) else "f8"


def _encode_column(column: Column, array: npt.NDArray[Any], reasons: Sequence[str]) -> bytes:
    """Texts, or little-endian floats and, if any are missing, a text for each row that says why."""
    if column.type == "text":
        return _encode_texts(array.tolist())
    return array.astype(f"<{column.stored}").tobytes() + (_encode_texts(reasons) if any(reasons) else b"")


def _encode_texts(texts: Sequence[str]) -> bytes:
    """A JSON list of the distinct ones, padded to 4 bytes, after its length; and a uint32 code for each."""
    values = [storable_text(text) for text in texts]
    code = {text: i for i, text in enumerate(sorted(set(values)))}
    distinct = msgspec.json.encode(list(code))
    distinct += b" " * (-len(distinct) % 4)
    codes = np.array([code[text] for text in values], "<u4").tobytes()
    return len(distinct).to_bytes(4, "little") + distinct + codes


def _decode_column(column: Column, data: bytes, rows: int) -> tuple[npt.NDArray[Any], Sequence[str]]:
    if column.type == "text":
        return _decode_texts(data, rows), ()
    kind = np.dtype(f"<{column.stored}")
    array = np.frombuffer(data, kind, rows).astype(np.float64)
    rest = data[rows * kind.itemsize :]
    return array, _decode_texts(rest, rows).tolist() if rest else _from_ranges(column.nulls, rows)


def _decode_texts(data: bytes, rows: int) -> npt.NDArray[Any]:
    length = int.from_bytes(data[:4], "little")
    texts = np.array([*msgspec.json.decode(data[4 : 4 + length], type=list[str]), ""], dtype=object)[:-1]
    return cast("npt.NDArray[Any]", texts[np.frombuffer(data, "<u4", rows, 4 + length)])


def _from_ranges(nulls: Mapping[str, Sequence[tuple[int, int]]], rows: int) -> list[str]:
    found = [""] * rows if nulls else []
    for reason, ranges in nulls.items():
        for start, stop in ranges:
            for row in range(max(start, 0), min(stop, rows)):
                found[row] = reason
    return found
