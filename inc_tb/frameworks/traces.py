"""What ran when, as profilers write it: slices, and Chrome traces read back."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from inc_tb.errors import DataError

LARGEST_TRACE = 2 << 30
"""Bytes of a trace that is read."""
_SPARE_BYTES, _MOST_TO_ONE = 16 << 20, 40
"""A packed trace is read up to the first, a large one up to so many times its size: traces pack 20 to 1."""
LONGEST_US = 9e12
"""104 days; more picoseconds do not fit an XPlane."""
LATEST_US = 1e17
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


def is_time(us: float, limit: float) -> bool:
    return 0 <= us < limit  # also false for NaN


def _unpacked(path: Path, content: bytes) -> tuple[str, bool]:
    """The text, and whether all of it was there."""
    is_whole = True
    if content.startswith(b"\x1f\x8b"):
        unpacker = zlib.decompressobj(wbits=31)
        most = min(LARGEST_TRACE, _SPARE_BYTES + _MOST_TO_ONE * len(content))
        packed_mb = len(content) / 1e6
        try:
            content = unpacker.decompress(content, most + 1)
        except zlib.error as error:
            raise DataError(f"{path}: is damaged ({error}); expected a .json.gz that gunzip takes.") from error
        if most < len(content) <= LARGEST_TRACE:
            raise DataError(
                f"{path}: {packed_mb:.3g} MB unpack to more than {most / 1e6:,.0f} MB, which no trace does. If it is "
                "one nevertheless, unpack it first."
            )
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
        if not (is_time(start_us, LATEST_US) and is_time(duration_us, LONGEST_US)):
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
