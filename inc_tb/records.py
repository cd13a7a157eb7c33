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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast, get_args

import google_crc32c
import msgspec
import numpy as np
import numpy.typing as npt

from inc_tb.errors import RecordError

VERSION = 2
PLUGIN = "quantization"
RowKind = Literal["histograms", "channels", "suggestions", "graph", "trial", "profile"]
Kind = Literal["ops"] | RowKind
ROW_KINDS: tuple[RowKind, ...] = get_args(RowKind)
ROWS_PER_CHUNK = 32
CHUNKED: frozenset[RowKind] = frozenset({"histograms", "channels"})
"""Read for one op at a time; the others are read whole, so they are one chunk."""

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
    module: str = ""
    """The PyTorch module that it is, or is called in, where that is known; the symbol that MXNet makes it part of."""
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
    """Version 1 kept the reasons of empty cells here: reason -> ranges of rows [from, to)."""
    stored: Literal["f8", "f4"] = "f8"
    """Numbers as float64, or as float32 where that loses no more than the eighth digit."""


class OpTable(Mapping[str, npt.NDArray[Any]]):
    """Column name -> array with one value an op; numbers without a value are NaN, with a reason."""

    def __init__(
        self,
        columns: Sequence[Column],
        arrays: Sequence[npt.NDArray[Any]],
        reasons: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """`reasons` has a text for each row of the columns that lack values; "" where the row's own reason holds."""
        self.columns = list(columns)
        self._arrays = {column.name: array for column, array in zip(columns, arrays, strict=True)}
        self._reasons = dict(reasons or {})

    @classmethod
    def from_rows(cls, columns: Sequence[Column], rows: Sequence[Mapping[str, Value]]) -> OpTable:
        arrays: list[npt.NDArray[Any]] = []
        reasons: dict[str, Sequence[str]] = {}
        for column in columns:
            values = [row[column.name] for row in rows]
            if column.type == "text":
                arrays.append(np.array(values, dtype=object))
                continue
            why = [_why_no_number(v) for v in values]
            arrays.append(np.array([np.nan if w else v for v, w in zip(values, why, strict=True)], np.float64))
            if any(why):
                reasons[column.name] = why
        return cls(columns, arrays, reasons)

    def replaced(self, columns: Mapping[str, Sequence[Value]]) -> OpTable:
        """The same table with other values in some columns: numbers, reasons why there is none, or texts."""
        chosen = [column for column in self.columns if column.name in columns]
        rows = [{c.name: columns[c.name][i] for c in chosen} for i in range(self.count)]
        new = OpTable.from_rows(chosen, rows)
        arrays = [new[c.name] if c.name in columns else self[c.name] for c in self.columns]
        kept = {name: why for name, why in self._reasons.items() if name not in columns}
        return OpTable(self.columns, arrays, {**kept, **new._reasons})

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
        if self.column(name).type == "text" or not np.isnan(self[name][row]):
            return ""
        own = self._reasons[name][row] if name in self._reasons else ""
        return own or (str(self["reason"][row]) if "reason" in self else "") or "no reason was given"

    def own_reasons(self, name: str) -> Sequence[str]:
        """For each row why the column has no number there, unless the row's `reason` says the same; or nothing."""
        why = self._reasons.get(name, ())
        if "reason" not in self:
            return why
        return ["" if w == r else w for w, r in zip(why, self["reason"].tolist(), strict=bool(why))]

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


class Effect(msgspec.Struct):
    """What following a suggestion recovers or costs."""

    kind: Literal["recovers", "costs"]
    label: str
    value: float
    unit: str
    basis: Literal["measured", "counted", "estimated"]
    how: str


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
    effects: list[Effect] = []

    @property
    def recipe(self) -> str:
        """The configuration for the tool that the model most likely came from."""
        return next(iter(self.recipes.values()), "")


class Recipe(msgspec.Struct):
    """How a tool wants to be told which ops stay out of int8: text around one item an op.

    In `item`, {name} stands for the op's name, {pattern} for a regular expression that matches only it, {tensor} for
    the tensor it writes and {module} for its module, each as a quoted string.
    """

    tool: str
    label: str
    before: str
    item: str
    between: str
    after: str
    note: str = ""


class GraphNode(msgspec.Struct, omit_defaults=True):
    name: str
    type: str
    inputs: list[str]
    tensor: str = ""
    """The tensor that it writes, where the framework gives tensors names of their own."""
    module: str = ""
    """As of Op."""


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
    target: float | None = None
    """The accuracy that the user asked for."""
    lower_is_better: bool = False
    """Whether `accuracy` is a loss."""

    @property
    def drop(self) -> float | None:
        """How much worse than the baseline; negative when better."""
        if self.accuracy is None or self.baseline is None:
            return None
        return self.accuracy - self.baseline if self.lower_is_better else self.baseline - self.accuracy


class Span(msgspec.Struct, array_like=True):
    """One execution of an op in one of the two models."""

    model: Literal["fp32", "int8"]
    thread: int
    start_us: float
    duration_us: float


class ProfileRow(msgspec.Struct, omit_defaults=True):
    """Time of one op, the median over runs; the op "" is what no op accounts for. Of one model or of both."""

    op: str
    type: str = ""
    fp32_us: float | None = None
    int8_us: float | None = None
    convert_us: float = 0.0
    """Quantizing, dequantizing and reordering around the op, not part of `int8_us`."""
    fp32_p95_us: float | None = None
    int8_p95_us: float | None = None
    differs: bool | None = None
    """Whether the two times can be told apart from noise."""
    spans: list[Span] = []
    """One run of each model, for the timeline."""
    fp32_mean_us: float | None = None
    int8_mean_us: float | None = None
    ops: list[str] = []
    """Other ops that run as part of it, because the runtime has fused them: they have no time of their own."""
    difference_us: float | None = None
    """int8 with conversion minus fp32: negative is faster; of undisturbed runs, so not the difference of medians."""
    low_us: float | None = None
    high_us: float | None = None
    """The interval that holds the difference in 95 of 100 cases, for all ops together."""


Row = TypeVar("Row", HistogramRow, ChannelRow, Suggestion, GraphNode, Trial, ProfileRow)
Decoded = TypeVar("Decoded")
_DECODERS: Mapping[RowKind, msgspec.json.Decoder[list[Any]]] = {
    "histograms": msgspec.json.Decoder(list[HistogramRow]),
    "channels": msgspec.json.Decoder(list[ChannelRow]),
    "suggestions": msgspec.json.Decoder(list[Suggestion]),
    "graph": msgspec.json.Decoder(list[GraphNode]),
    "trial": msgspec.json.Decoder(list[Trial]),
    "profile": msgspec.json.Decoder(list[ProfileRow]),
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
    elements = [_zip(_encode_column(c, table[c.name], table.own_reasons(c.name))) for c in columns]
    return [_header("ops", table.count, elements, columns=columns, meta=dict(meta)), *elements]


def decode_table(blobs: Sequence[bytes]) -> tuple[OpTable, dict[str, Any]]:
    header, elements = _open("ops", blobs)

    def table() -> OpTable:
        arrays, reasons = [], {}
        for column, element in zip(header.columns, elements, strict=True):
            array, why = _decode_column(column, gzip.decompress(element), header.rows)
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
    elements: list[bytes] = [_zip(to_json(chunk)) for chunk in chunks]
    return [_header(kind, len(rows), elements, index=index, meta=dict(meta or {})), *elements]


def decode_rows(kind: RowKind, blobs: Sequence[bytes]) -> list[Any]:
    _, elements = _open(kind, blobs)
    decode = _DECODERS[kind].decode
    return _read(kind, lambda: [row for element in elements for row in decode(gzip.decompress(element))])


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


def listed(names: Iterable[str], most: int = 6) -> str:
    """Names in a sentence: each once, and no more than so many."""
    some = list(dict.fromkeys(map(str, names)))
    return ", ".join(some[:most]) + (f" and {len(some) - most} more" if len(some) > most else "")


def storable_text(text: str) -> str:
    """File names may hold bytes that are no UTF-8; Python keeps those as characters that UTF-8 cannot hold."""
    return text.encode("utf-8", "backslashreplace").decode()


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


def to_json(value: Any) -> bytes:
    """Also of what JSON does not know: names that are no UTF-8, NumPy numbers, paths."""
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
    return gzip.compress(data, compresslevel=4, mtime=0)


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
    try:
        return decode()
    except (ValueError, IndexError, RecursionError, OSError, EOFError, zlib.error) as error:
        raise RecordError(f"the {kind} record cannot be read ({error}). Log the run again.") from error


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
            found[start:stop] = [reason] * (stop - start)
    return found


def _why_no_number(value: Value) -> str:
    if isinstance(value, str):
        return value or "no reason was given"
    return "" if np.isfinite(value) else "not a finite number"
