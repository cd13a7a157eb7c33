"""What is stored: the contract between the library, the event file and the page.

A record is a sequence of byte strings. Element 0 is a JSON header (a checksum of itself, version,
kind, a checksum of each other element); the others are gzip: one column of a table each, or a chunk
of JSON. A reader therefore fetches one column of a hundred runs, or the histograms of one op, without
decoding the rest.

JSON has no NaN and no lone surrogates: a number that is not finite becomes null, and a character
that UTF-8 cannot hold becomes its escape.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast, get_args

import google_crc32c
import msgspec
import numpy as np
import numpy.typing as npt

from inc_tb.errors import RecordError

VERSION = 1
PLUGIN = "quantization"
RowKind = Literal["histograms", "channels", "suggestions", "graph", "trial"]
Kind = Literal["ops"] | RowKind
ROW_KINDS: tuple[RowKind, ...] = get_args(RowKind)
ROWS_PER_CHUNK = 32

Value = float | str
"""A number, or the reason why there is none."""


@dataclass(frozen=True)
class Quantization:
    """How one tensor is quantized. `axis` is None for one scale per tensor; dynamic ranges have no scale."""

    dtype: str
    scale: npt.NDArray[np.float32] | None
    zero_point: npt.NDArray[np.int64] | None
    low: int
    high: int
    axis: int | None = None
    block: int = 0

    @property
    def limits(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
        if self.scale is None or self.zero_point is None or self.block:
            return None
        return (self.low - self.zero_point) * self.scale, (self.high - self.zero_point) * self.scale

    @property
    def granularity(self) -> str:
        if self.block:
            return "per block"
        return "per tensor" if self.axis is None else "per channel"

    @property
    def scheme(self) -> str:
        if self.scale is None or self.zero_point is None:
            return "dynamic"
        middle = (self.low + self.high + 1) // 2
        return "symmetric" if np.all(self.zero_point == middle) else "asymmetric"


@dataclass
class Op:
    """A node or module of the reference model, by the name its user knows, in graph order."""

    name: str
    type: str
    index: int
    block: str = ""
    unit: str = ""
    tensor: str = ""
    inputs: list[str] = field(default_factory=list)
    """Ops that produce what this op consumes."""
    consumers: list[str] = field(default_factory=list)
    weight: Quantization | None = None
    activation: Quantization | None = None
    params: int = 0
    compared_at: str = ""
    """The op at whose output this op's result is compared: itself, the op it was folded into, or none."""
    note: str = ""
    """Why this op has no row of numbers of its own; empty when it has."""


class Column(msgspec.Struct, omit_defaults=True):
    name: str
    type: Literal["number", "text"] = "number"
    label: str = ""
    unit: str = ""
    better: Literal["higher", "lower", ""] = ""
    normal: tuple[float | None, float | None] | None = None
    help: str = ""
    nulls: dict[str, list[tuple[int, int]]] = {}
    """Reason -> ranges of rows [from, to) that have no value."""


class OpTable(Mapping[str, npt.NDArray[Any]]):
    """Column name -> array with one value an op; numbers without a value are NaN, with a reason."""

    def __init__(self, columns: Sequence[Column], arrays: Sequence[npt.NDArray[Any]]) -> None:
        self.columns = list(columns)
        self._arrays = {column.name: array for column, array in zip(columns, arrays, strict=True)}

    @classmethod
    def from_rows(cls, columns: Sequence[Column], rows: Sequence[Mapping[str, Value]]) -> OpTable:
        arrays: list[npt.NDArray[Any]] = []
        filled = []
        for column in columns:
            values = [row[column.name] for row in rows]
            if column.type == "text":
                arrays.append(np.array(values, dtype=object))
                filled.append(column)
                continue
            reasons = [_why_no_number(v) for v in values]
            arrays.append(np.array([np.nan if r else v for v, r in zip(values, reasons, strict=True)], np.float64))
            filled.append(msgspec.structs.replace(column, nulls=_ranges(reasons)))
        return cls(filled, arrays)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    @property
    def count(self) -> int:
        return len(self["name"])

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    def why_null(self, name: str, row: int) -> str:
        for reason, ranges in self.column(name).nulls.items():
            if any(start <= row < stop for start, stop in ranges):
                return reason
        return ""

    def rows(self) -> Iterator[dict[str, Any]]:
        """One dict an op; a number without a value is None."""
        lists = {name: array.tolist() for name, array in self._arrays.items()}
        for i in range(self.count):
            yield {name: None if values[i] != values[i] else values[i] for name, values in lists.items()}


class HistogramRow(msgspec.Struct, omit_defaults=True):
    """One pair's histograms. Counts are [bin, count, bin, count, …]; see inc_tb.histogram for the bins."""

    op: str
    role: str
    top: int
    reference: list[int]
    quantized: list[int]
    error_top: int
    error: list[int]
    limits: tuple[float, float] | None = None
    step: float | None = None


class ChannelRow(msgspec.Struct, omit_defaults=True):
    """One pair, channel by channel."""

    op: str
    role: str
    min: list[float | None]
    max: list[float | None]
    q_min: list[float | None]
    q_max: list[float | None]
    sqnr_db: list[float | None]


class Suggestion(msgspec.Struct):
    """Something to change. `ops` belong together: changing only some of them may make it worse."""

    ops: list[str]
    rule: str
    because: str
    evidence: dict[str, Any]
    recipes: dict[str, str] = {}
    """Tool -> configuration that can be pasted there."""
    pattern: str = ""
    rank: int = 0

    @property
    def recipe(self) -> str:
        """The configuration for the tool that the model most likely came from."""
        return next(iter(self.recipes.values()), "")


class GraphNode(msgspec.Struct):
    name: str
    type: str
    inputs: list[str]


class Trial(msgspec.Struct, omit_defaults=True):
    """One quantization config and what came of it."""

    name: str
    accuracy: float | None = None
    baseline: float | None = None
    fallback: list[str] = []
    config: dict[str, Any] = {}
    objectives: dict[str, float] = {}
    wall_s: float | None = None
    notes: list[str] = []


Row = TypeVar("Row", HistogramRow, ChannelRow, Suggestion, GraphNode, Trial)
Decoded = TypeVar("Decoded")
_DECODERS: Mapping[RowKind, msgspec.json.Decoder[list[Any]]] = {
    "histograms": msgspec.json.Decoder(list[HistogramRow]),
    "channels": msgspec.json.Decoder(list[ChannelRow]),
    "suggestions": msgspec.json.Decoder(list[Suggestion]),
    "graph": msgspec.json.Decoder(list[GraphNode]),
    "trial": msgspec.json.Decoder(list[Trial]),
}


class _Header(msgspec.Struct, omit_defaults=True):
    version: int
    kind: str
    rows: int
    checksums: list[str]
    columns: list[Column] = []
    index: dict[str, int] = {}
    """Op -> the element that holds its rows."""
    meta: dict[str, Any] = {}


def encode_table(table: OpTable, meta: Mapping[str, Any]) -> list[bytes]:
    elements = [_zip(_encode_column(column, table[column.name])) for column in table.columns]
    return [_header("ops", table.count, elements, columns=table.columns, meta=dict(meta)), *elements]


def decode_table(blobs: Sequence[bytes]) -> tuple[OpTable, dict[str, Any]]:
    header, elements = _open("ops", blobs)

    def columns() -> list[npt.NDArray[Any]]:
        return [
            _decode_column(column, gzip.decompress(element), header.rows)
            for column, element in zip(header.columns, elements, strict=True)
        ]

    return OpTable(header.columns, _read("ops", columns)), header.meta


def encode_rows(kind: RowKind, rows: Sequence[Row]) -> list[bytes]:
    """Rows in chunks; all rows of one op are in the same chunk, also where they come from different passes."""
    groups: dict[str, list[Row]] = {}
    for position, row in enumerate(rows):
        groups.setdefault(getattr(row, "op", f"row {position}"), []).append(_storable(row))
    chunks: list[list[Row]] = [[]]
    index: dict[str, int] = {}
    for group in groups.values():
        if len(chunks[-1]) >= ROWS_PER_CHUNK:
            chunks.append([])
        chunks[-1] += group
        op = getattr(group[0], "op", None)
        if isinstance(op, str):
            index[op] = len(chunks)
    elements: list[bytes] = [_zip(_json(chunk)) for chunk in chunks]
    return [_header(kind, len(rows), elements, index=index), *elements]


def decode_rows(kind: RowKind, blobs: Sequence[bytes]) -> list[Any]:
    _, elements = _open(kind, blobs)
    decode = _DECODERS[kind].decode
    return _read(kind, lambda: [row for element in elements for row in decode(gzip.decompress(element))])


def checksum(data: bytes) -> str:
    return f"{google_crc32c.value(data):08x}"


def storable_text(text: str) -> str:
    """File names may hold bytes that are no UTF-8; Python keeps those as characters that UTF-8 cannot hold."""
    return text.encode("utf-8", "backslashreplace").decode()


def _storable(row: Row) -> Row:
    """Numbers that are not finite would come back as null where a number is expected."""
    if isinstance(row, HistogramRow) and row.limits is not None and not all(map(math.isfinite, row.limits)):
        return msgspec.structs.replace(row, limits=None)
    if isinstance(row, Trial):
        numbers = {"accuracy": row.accuracy, "baseline": row.baseline, "wall_s": row.wall_s, **row.objectives}
        odd: dict[str, float] = {name: v for name, v in numbers.items() if v is not None and not math.isfinite(v)}
        notes = [*row.notes, *(f"{name} was {value}, not a finite number" for name, value in odd.items())]
        objectives = {name: value for name, value in row.objectives.items() if name not in odd}
        return msgspec.structs.replace(row, objectives=objectives, notes=notes)
    return row


def _json(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, UnicodeEncodeError):
        return msgspec.json.encode(_plain(value))


def _plain(value: Any) -> Any:
    """Configurations and evidence hold what their makers put there: NumPy numbers, paths, tuples as keys."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {storable_text(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return storable_text(str(value))


def _zip(data: bytes) -> bytes:
    return gzip.compress(data, compresslevel=6, mtime=0)


def _header(kind: Kind, rows: int, elements: Sequence[bytes], **more: Any) -> bytes:
    return _seal(_json(_Header(VERSION, kind, rows, [checksum(e) for e in elements], **more)))


def _seal(header: bytes) -> bytes:
    """The header with its own checksum as its first entry: TensorBoard's fast loader checks none."""
    return b'{"checksum":"' + checksum(header).encode() + b'",' + header[1:]


def _open(kind: Kind, blobs: Sequence[bytes]) -> tuple[_Header, Sequence[bytes]]:
    if not blobs:
        raise RecordError(f"the {kind} record is empty; it was expected to begin with a header. Log the run again.")
    sealed = bytes(blobs[0])
    version = _read(kind, lambda: msgspec.json.decode(sealed, type=dict[str, Any]).get("version"))
    if isinstance(version, int) and version > VERSION:
        raise RecordError(f"the {kind} record has version {version}, this inc-tb reads up to {VERSION}. Update inc-tb.")
    header = _read(kind, lambda: msgspec.json.decode(sealed, type=_Header))
    intact = _seal(b"{" + sealed.partition(b",")[2]) == sealed
    if not intact or header.kind != kind or [checksum(bytes(e)) for e in blobs[1:]] != header.checksums:
        raise RecordError(f"the {kind} record is damaged: its checksums do not fit its contents. Log the run again.")
    return header, blobs[1:]


def _read(kind: Kind, decode: Callable[[], Decoded]) -> Decoded:
    try:
        return decode()
    except (ValueError, IndexError, RecursionError, OSError, EOFError, zlib.error) as error:
        raise RecordError(f"the {kind} record cannot be read ({error}). Log the run again.") from error


def _encode_column(column: Column, array: npt.NDArray[Any]) -> bytes:
    """Numbers as little-endian float64; texts as a JSON list of the distinct ones, padded to 4, and uint32 codes."""
    if column.type == "number":
        return array.astype("<f8").tobytes()
    values = [storable_text(text) for text in array.tolist()]
    code = {text: i for i, text in enumerate(sorted(set(values)))}
    texts = msgspec.json.encode(list(code))
    texts += b" " * (-len(texts) % 4)
    codes = np.array([code[text] for text in values], "<u4").tobytes()
    return len(texts).to_bytes(4, "little") + texts + codes


def _decode_column(column: Column, data: bytes, rows: int) -> npt.NDArray[Any]:
    if column.type == "number":
        return np.frombuffer(data, "<f8", rows).astype(np.float64)
    length = int.from_bytes(data[:4], "little")
    texts = np.array([*msgspec.json.decode(data[4 : 4 + length], type=list[str]), ""], dtype=object)[:-1]
    return cast("npt.NDArray[Any]", texts[np.frombuffer(data, "<u4", rows, 4 + length)])


def _why_no_number(value: Value) -> str:
    if isinstance(value, str):
        return value or "no reason was given"
    return "" if np.isfinite(value) else "not a finite number"


def _ranges(reasons: Sequence[str]) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for row, reason in enumerate(reasons):
        if not reason:
            continue
        ranges = found.setdefault(reason, [])
        if ranges and ranges[-1][1] == row:
            ranges[-1] = (ranges[-1][0], row + 1)
        else:
            ranges.append((row, row + 1))
    return found
