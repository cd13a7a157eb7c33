"""What ran when, as other tools read and write it: the files of TensorBoard's Profile tab, and Chrome traces."""

from __future__ import annotations

import json
import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from inc_tb.errors import DataError

Item = TypeVar("Item")
LARGEST_TRACE = 2 << 30
"""Bytes of a trace that is read; a packed file may hold anything."""
_LONGEST_US = 9e12
"""104 days; more picoseconds do not fit an XPlane."""
_LATEST_US = 1e17
_HALF = re.compile(r"\\u[dD][89abAB]\w\w(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]\w\w)\\u[dD][c-fC-F]\w\w")
"""Half of a character, which JSON can write and nothing else."""
_UNREADABLE_EVENTS = 1000
"""After so many there is no point in looking for another readable one."""


class Slice(NamedTuple):
    """Something that ran on one thread; slices of one thread may lie inside of each other."""

    model: str
    """fp32 or int8, or what else the trace calls its process."""
    thread: str
    name: str
    start_us: float
    duration_us: float
    details: Mapping[str, str | float] = {}


class TraceEvent(NamedTuple):
    """A complete event of a Chrome trace."""

    category: str
    name: str
    process: str
    thread: str
    start_us: float
    duration_us: float
    args: Mapping[str, Any]


class Trace(NamedTuple):
    events: list[TraceEvent]
    """In the order of the file; what has no start or no duration is left out."""
    is_whole: bool
    """False where the file was cut off, or holds events that cannot be read."""


def to_xplane(slices: Sequence[Slice], host: str) -> bytes:
    """An XSpace, which the Profile tab (xprof) opens: a plane for each model, a line for each thread.

    The first slice starts at 0: xprof takes times since 1970 for something else.
    """
    by_model: dict[str, dict[str, list[Slice]]] = {}
    for s in _drawable(slices):
        by_model.setdefault(s.model, {}).setdefault(s.thread, []).append(s)
    planes = [_plane(number, model, threads) for number, (model, threads) in enumerate(by_model.items(), 1)]
    return b"".join([*(_field(1, plane) for plane in planes), _field(4, host)])


def to_chrome(slices: Sequence[Slice]) -> bytes:
    """JSON for Perfetto and chrome://tracing: a process for each model; the first slice starts at 0."""
    drawn = _drawable(slices)
    processes = _numbered(s.model for s in drawn)
    threads = _numbered((s.model, s.thread) for s in drawn)
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": number, "args": {"name": _text(model)}}
        for model, number in processes.items()
    ]
    events += [
        {"ph": "M", "name": "thread_name", "pid": processes[model], "tid": number, "args": {"name": _text(thread)}}
        for (model, thread), number in threads.items()
    ]
    events += [
        {
            "ph": "X", "name": _text(s.name), "cat": "op", "pid": processes[s.model], "tid": threads[s.model, s.thread],
            "ts": s.start_us, "dur": s.duration_us,
            "args": {_text(key): _text(value) if isinstance(value, str) else value for key, value in s.details.items()},
        }
        for s in drawn
    ]  # fmt: skip
    return msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": events})


def read_chrome(path: Path) -> Trace:
    """A trace as ONNX Runtime and torch.profiler write it, packed or not; of a damaged one what can be read."""
    try:
        packed = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); expected a trace (.json, .json.gz). Check the path."
        ) from error
    text, is_whole = _unpacked(path, packed)
    found = _parsed(text)
    if found is None:
        is_whole = False
        found = list(_readable_events(text))
    events = [event for event in found if isinstance(event, dict)]
    if not events:
        what = "is empty" if not text.strip() else "holds no events"
        raise DataError(
            f"{path}: {what}; expected a trace of ONNX Runtime or torch.profiler (a JSON list of events). "
            "Give the file that the profiler wrote."
        )
    return Trace(_complete(events), is_whole)


def write_traces(
    folder: Path, session: str, host: str, slices: Sequence[Slice], files: Mapping[str, bytes] | None = None
) -> list[Path]:
    """For the Profile tab, below the folder of a run: the slices, and files of other profilers beside them."""
    target = folder / "plugins" / "profile" / _file_name(session)
    contents = {f"{_file_name(host)}.xplane.pb": to_xplane(slices, host)} if slices else {}
    contents.update({_file_name(name): content for name, content in (files or {}).items()})
    if contents:
        target.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        beside = target / f".{name}.{os.getpid()}"
        beside.write_bytes(content)
        beside.replace(target / name)  # so that TensorBoard never sees half of it
    return [target / name for name in contents]


def _drawable(slices: Iterable[Slice]) -> list[Slice]:
    """Those whose times are times, counted from when the first of them starts."""
    timed = [s for s in slices if _is_time(s.start_us, _LATEST_US) and _is_time(s.duration_us, _LONGEST_US)]
    origin_us = min((s.start_us for s in timed), default=0.0)
    return [s._replace(start_us=s.start_us - origin_us) for s in timed if s.start_us - origin_us < _LONGEST_US]


def _is_time(us: float, limit: float) -> bool:
    return 0 <= us < limit  # also false for NaN


def _plane(number: int, model: str, threads: Mapping[str, Sequence[Slice]]) -> bytes:
    slices = [s for on_thread in threads.values() for s in on_thread]
    names = _numbered(s.name for s in slices)
    details = _numbered(key for s in slices for key in s.details)
    lines = [
        _line(line, thread, [_event(s, names, details) for s in on_thread])
        for line, (thread, on_thread) in enumerate(threads.items(), 1)
    ]
    return b"".join(
        [
            _field(1, number),
            _field(2, f"/device:CUSTOM:{model}"),  # xprof leaves out planes whose names it does not know
            *(_field(3, line) for line in lines),
            *(_field(4, _entry(value, name)) for name, value in names.items()),
            *(_field(5, _entry(value, name)) for name, value in details.items()),
        ]
    )


def _numbered(items: Iterable[Item]) -> dict[Item, int]:
    """From 1 on, in the order in which they first come: 0 is "not there" in protocol buffers."""
    return {item: number for number, item in enumerate(dict.fromkeys(items), 1)}


def _entry(number: int, name: str) -> bytes:
    """Of the maps from a number to a thing with that number and a name."""
    return _field(1, number) + _field(2, _field(1, number) + _field(2, name))


def _line(number: int, thread: str, events: Sequence[bytes]) -> bytes:
    return _field(1, number) + _field(2, thread) + b"".join(_field(4, event) for event in events)


def _event(s: Slice, names: Mapping[str, int], details: Mapping[str, int]) -> bytes:
    stats = [
        _field(1, details[key]) + (_field(5, value) if isinstance(value, str) else _field(2, float(value)))
        for key, value in s.details.items()
    ]
    head = _field(1, names[s.name]) + _field(2, round(s.start_us * 1e6)) + _field(3, round(s.duration_us * 1e6))
    return head + b"".join(_field(4, stat) for stat in stats)


def _field(number: int, value: int | float | str | bytes) -> bytes:
    """One field of a protocol buffer: whole numbers from 0 on, doubles, texts and messages."""
    if isinstance(value, float):
        return _varint(number << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    content = _text(value).encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _text(value: str) -> str:
    """Names that are not UTF-8 come as halves of characters, which no file takes."""
    return value.encode("utf-8", "replace").decode()


def _unpacked(path: Path, content: bytes) -> tuple[str, bool]:
    """The text, and whether all of it was there."""
    is_whole = True
    if content.startswith(b"\x1f\x8b"):
        unpacker = zlib.decompressobj(wbits=31)
        try:
            content = unpacker.decompress(content, LARGEST_TRACE + 1)
        except zlib.error as error:
            raise DataError(f"{path}: is damaged ({error}); expected a .json.gz that gunzip takes.") from error
        is_whole = unpacker.eof
    if len(content) > LARGEST_TRACE:
        raise DataError(f"{path}: holds over {LARGEST_TRACE >> 30} GiB; expected a trace of few runs. Profile fewer.")
    return _HALF.sub(r"\\ufffd", content.decode("utf-8-sig", "replace")), is_whole


def _parsed(text: str) -> list[Any] | None:
    """The events, or nothing where the text is not JSON."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(found, dict):
        found = found.get("traceEvents")
    return found if isinstance(found, list) else []


def _readable_events(text: str) -> Iterator[Any]:
    """Those of a list that is not JSON: cut off, or with names that ONNX Runtime did not escape."""
    start = re.match(r'\s*\[|\s*\{.*?"traceEvents"\s*:\s*\[', text, re.DOTALL)
    decoder, between, next_line = json.JSONDecoder(), re.compile(r"[\s,]*"), re.compile(r"\n\s*(?=\{)")
    place, unreadable = start.end() if start else len(text), 0
    while place < len(text):
        place = between.match(text, place).end()  # type: ignore[union-attr]  # it matches everywhere
        try:
            event, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            unreadable += 1
            found = next_line.search(text, place) if unreadable < _UNREADABLE_EVENTS else None
            place = found.end() if found else len(text)
        else:
            yield event


def _complete(events: Sequence[Mapping[str, Any]]) -> list[TraceEvent]:
    processes: dict[str, str] = {}
    threads: dict[tuple[str, str], str] = {}
    for event in events:
        if event.get("ph") == "M":
            name = _args(event).get("name")
            if isinstance(name, str) and event.get("name") == "process_name":
                processes[str(event.get("pid"))] = name
            if isinstance(name, str) and event.get("name") == "thread_name":
                threads[str(event.get("pid")), str(event.get("tid"))] = name
    found = []
    for event in events:
        start_us, duration_us = _number(event.get("ts")), _number(event.get("dur"))
        if event.get("ph") != "X" or start_us is None or duration_us is None:
            continue
        if not (_is_time(start_us, _LATEST_US) and _is_time(duration_us, _LONGEST_US)):
            continue
        process, thread = str(event.get("pid")), str(event.get("tid"))
        found.append(
            TraceEvent(
                str(event.get("cat", "")), str(event.get("name", "")), processes.get(process, process),
                threads.get((process, thread), thread), start_us, duration_us, _args(event),
            )
        )  # fmt: skip
    return found


def _args(event: Mapping[str, Any]) -> Mapping[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _file_name(name: str) -> str:
    """Of anything: xprof takes what stands before the first ".xplane.pb" for the host."""
    return re.sub(r"[^\w.-]+", "_", _text(name)).strip(".")[:100] or "unnamed"
