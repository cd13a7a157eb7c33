"""Inputs by the thousand, each in a child process that has 10 seconds and 2 GB more than it began with for it.

An input is told by its reader and its number, so that one that failed can be made again anywhere.
"""

from __future__ import annotations

import json
import os
import random
import resource
import select
import signal
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from inc_tb.errors import IncTbError

LONGEST_S = 10
MOST_BYTES = 2 << 30
"""Of resident memory, more than the process had when it began with its inputs."""
_STUCK_S = 3 * LONGEST_S
"""After so long nothing in native code has looked at the alarm."""
_STARTING_S = 300
"""For the first input frameworks are loaded and seeds made."""
MARKER = "executed"
"""Hostile seeds make a file of this name beside themselves, if anything of them is run."""


class Reader(NamedTuple):
    """One kind of input: `make` writes what the number stands for into a folder, `read` does what people do with it."""

    name: str
    make: Callable[[Path, random.Random], Path]
    read: Callable[[Path], object]


@dataclass
class Outcome:
    """What came of the inputs of one reader."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)
    """Number of the input, and what it did that none may do."""

    def add(self, number: int, kind: str, told: str) -> None:
        self.counts[kind] += 1
        if kind not in ("read", "refused"):
            self.failures.append((number, f"{kind}: {told}"))


class _TooLongError(BaseException):
    """So that nothing that catches exceptions catches it."""


def fuzz(reader: Reader, numbers: Sequence[int]) -> Outcome:
    """A child that dies is told by the number it was at; the next one goes on behind it."""
    found, left = Outcome(), list(numbers)
    while left:
        done = 0
        for number, kind, told in _in_child(reader, left):
            found.add(number, kind, told)
            done += 1
        left = left[done:]
    return found


def _in_child(reader: Reader, numbers: Sequence[int]) -> Iterator[tuple[int, str, str]]:
    """Frameworks are loaded in the child only: their threads do not survive a fork."""
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        os.close(receive)
        _work(reader, numbers, send)
    os.close(send)
    told, is_stuck = 0, False
    with os.fdopen(receive, "rb", buffering=0) as lines:
        while not is_stuck:
            is_stuck = not select.select([lines], [], [], _STUCK_S if told else _STARTING_S)[0]
            line = b"" if is_stuck else lines.readline()
            if not line:
                break
            yield tuple(json.loads(line))
            told += 1
    if is_stuck:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    died = os.waitstatus_to_exitcode(status)
    if told < len(numbers) and (died or not told):
        kind = "hang" if is_stuck else "crash"
        yield numbers[told], kind, f"ended by signal {-died}" if died < 0 else f"ended with {died}"


def _work(reader: Reader, numbers: Sequence[int], send: int) -> None:
    """Never returns: what a test runner would do at the end is not the child's business."""
    try:
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        signal.signal(signal.SIGALRM, _too_long)
        begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        for number in numbers:
            kind, told = _tried(reader, number)
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - begun
            if grown > MOST_BYTES:
                kind, told = "memory", f"{grown >> 20} MiB"
            os.write(send, json.dumps((number, kind, told)).encode() + b"\n")
            if kind in ("memory", "hang"):
                break
    finally:
        os._exit(0)


def _tried(reader: Reader, number: int) -> tuple[str, str]:
    with tempfile.TemporaryDirectory(prefix="fuzz_") as place:
        given = reader.make(Path(place), random.Random(f"{reader.name} {number}"))
        signal.alarm(LONGEST_S)
        try:
            reader.read(given)
        except IncTbError as error:
            found = "refused", type(error).__name__
        except _TooLongError as error:
            found = "hang", f"over {LONGEST_S} s at {_place(error)}"
        except BaseException as error:  # noqa: BLE001  anything else is what is looked for
            found = "foreign", f"{type(error).__name__} at {_place(error)}: {error}"[:300]
        else:
            found = "read", ""
        finally:
            signal.alarm(0)
        return ("executed", str(given)) if any(Path(place).rglob(MARKER)) else found


def _too_long(*_: object) -> None:
    raise _TooLongError


def _place(error: BaseException) -> str:
    """The last line of ours that it came through."""
    ours = [
        f for f in traceback.extract_tb(error.__traceback__) if "/inc_tb/" in f.filename or "/tb_plugin/" in f.filename
    ]
    return f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "nowhere of ours"
