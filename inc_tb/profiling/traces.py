"""What ran when, for other tools: the files of TensorBoard's Profile tab, and Chrome traces."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from inc_tb.errors import writing
from inc_tb.frameworks.traces import LATEST_US, LONGEST_US, Slice, is_time

Item = TypeVar("Item")


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


def write_traces(
    folder: Path, session: str, host: str, slices: Sequence[Slice], files: Mapping[str, bytes] | None = None
) -> list[Path]:
    """For the Profile tab, below the folder of a run: the slices, and files of other profilers beside them."""
    target = folder / "plugins" / "profile" / _file_name(session)
    contents = {f"{_file_name(host)}.xplane.pb": to_xplane(slices, host)} if slices else {}
    contents.update({_file_name(name): content for name, content in (files or {}).items()})
    for name, content in contents.items():
        beside = target / f".{name}.part"
        with writing(target / name):
            target.mkdir(parents=True, exist_ok=True)
            try:
                beside.write_bytes(content)
                beside.replace(target / name)  # so that TensorBoard never sees half of it
            finally:
                beside.unlink(missing_ok=True)
    return [target / name for name in contents]


def _drawable(slices: Iterable[Slice]) -> list[Slice]:
    """Those whose times are times, counted from when the first of them starts."""
    timed = [s for s in slices if is_time(s.start_us, LATEST_US) and is_time(s.duration_us, LONGEST_US)]
    origin_us = min((s.start_us for s in timed), default=0.0)
    return [s._replace(start_us=s.start_us - origin_us) for s in timed if s.start_us - origin_us < LONGEST_US]


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


def _file_name(name: str) -> str:
    """Of anything: xprof takes what stands before the first ".xplane.pb" for the host."""
    return re.sub(r"[^\w.-]+", "_", _text(name)).strip(".")[:100] or "unnamed"
