"""How much memory there is, and samples in parts that fit into it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

from inc_tb.errors import OutOfMemoryError
from inc_tb.frameworks.feeds import count_rows, split
from inc_tb.frameworks.ops import Batch, Role

BUDGET = 1 << 30
"""Bytes for the arrays of a batch, where nobody says how many and the machine has twice as much free."""
_SHARE = 2
_MEMORY_OF_GROUPS = ("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")
"""Limit and use, as the two versions of Linux' control groups call them."""


def default_budget() -> int:
    free = free_bytes()
    return BUDGET if free is None else min(BUDGET, free // _SHARE)


def free_bytes() -> int | None:
    """What this process can still take: of the machine, of its control group, of its address space."""
    found = [_available(), *_left_in_groups(), _left_of_addresses()]
    return max(0, min(known)) if (known := [left for left in found if left is not None]) else None


def _available() -> int | None:
    for line in _lines(Path("/proc/meminfo")):
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) << 10
    return None


def _left_in_groups(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Iterator[int]:
    """Of the process's group and those around it; inside of a container its own may be mounted as the root."""
    for line in _lines(own):
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "memory" if controllers else root
        inner = top / path.lstrip("/")
        for folder in (inner, *inner.parents):
            for limit, used in _MEMORY_OF_GROUPS:
                if (most := _number(folder / limit)) is not None and (taken := _number(folder / used)) is not None:
                    yield most - taken + _reclaimable(folder)
            if folder == top:
                break


def _reclaimable(group: Path) -> int:
    """Copies of files that a group counts as its own, and that go when memory is asked for."""
    found = (line.split() for line in _lines(group / "memory.stat"))
    return sum(int(value) for name, value in found if name in ("inactive_file", "total_inactive_file")) if group else 0


def _left_of_addresses() -> int | None:
    if sys.platform == "win32":
        return None
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    taken = next((line.split()[0] for line in _lines(Path("/proc/self/statm"))), None)
    return None if limit == resource.RLIM_INFINITY or taken is None else limit - int(taken) * resource.getpagesize()


def _number(file: Path) -> int | None:
    """None where there is no such file, or no limit."""
    text = next(iter(_lines(file)), "")
    return int(text) if text.isdigit() else None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


class SampleSizes:
    """Bytes of each value for one sample, measured again when larger samples come."""

    def __init__(self, measure: Callable[[Batch], list[int]]) -> None:
        self._measure = measure
        self._largest = -1
        self._found: list[int] = []

    def of_one(self, feeds: Batch) -> list[int]:
        one = next(split(feeds, None, 1))
        size = sum(array.size for array in one.values())
        if size > self._largest:
            self._found, self._largest = self._measure(one), size
        rows = count_rows(one)
        return [-(-size // rows) for size in self._found]


class Placed(Protocol):
    """A pair of arrays, by the tensor that it is of."""

    @property
    def tensor(self) -> str: ...

    @property
    def role(self) -> Role: ...


_Made = TypeVar("_Made", bound=Placed)
Cut = Callable[[Batch, int], Iterator[Batch]]
"""A batch in parts of at most so many samples."""


class Parts:
    """Runs batches in parts of as many samples as fit, and in smaller ones after memory ran out."""

    def __init__(self, notes: list[str]) -> None:
        self._notes = notes
        self._most: int | None = None

    def run(self, work: Callable[[Batch], Iterator[_Made]], feeds: Batch, most: int, cut: Cut) -> Iterator[_Made]:
        for part in cut(feeds, most if self._most is None else min(most, self._most)):
            yield from self._run_part(work, part, frozenset(), cut)

    def _run_part(
        self, work: Callable[[Batch], Iterator[_Made]], part: Batch, done: frozenset[tuple[str, Role]], cut: Cut
    ) -> Iterator[_Made]:
        """Where memory runs out on the way, what was given already is left out of the smaller parts."""
        given = set(done)
        try:
            for made in work(part):
                if (made.tensor, made.role) not in done:
                    given.add((made.tensor, made.role))
                    yield made
            return
        except (MemoryError, OutOfMemoryError) as error:
            smaller, reason = self._halved(part, cut), str(error)
        # Not where it is caught: the error holds on to the arrays of those who raised it.
        if len(smaller) < 2:
            raise OutOfMemoryError(
                f"there is not enough memory for one sample ({reason or 'an allocation failed'}). Give this process "
                "more memory, give smaller samples, or allow it less at once with --memory."
            )
        for half in smaller:
            for part in cut(half, self._most or count_rows(half)):  # memory may have run out again since
                yield from self._run_part(work, part, frozenset(given), cut)

    def _halved(self, part: Batch, cut: Cut) -> list[Batch]:
        rows = count_rows(part)
        smaller = list(cut(part, max(1, rows // 2)))
        if len(smaller) > 1:
            self._most = count_rows(smaller[0])
            self._notes.append(f"memory ran out with {rows} samples at once; from there on {self._most} ran at once")
        return smaller
