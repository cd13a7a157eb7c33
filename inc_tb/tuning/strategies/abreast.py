"""Attempts that do not depend on what comes of each other, each with those that follow it."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from itertools import islice
from typing import Any

from inc_tb.tuning.attempt import Attempt
from inc_tb.tuning.strategies.workbench import Workbench


def abreast(bench: Workbench, attempts: Iterable[Attempt]) -> Generator[Attempt, Any, None]:
    """The same in the same order; each tells as many of the next ones as are carried out beside it."""
    coming = iter(attempts)
    ahead = deque(islice(coming, 1 + bench.width))
    while ahead:
        attempt = ahead.popleft()
        yield attempt._replace(then=tuple(ahead))
        ahead.extend(islice(coming, 1))
