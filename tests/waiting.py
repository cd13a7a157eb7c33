"""For what happens in its own time: in another process or thread, or by a clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 300
"""On a machine that is as busy as can be; nothing waits that long unless it is broken."""


def until(holds: Callable[[], Any], told: Callable[[], object] = lambda: "did not happen") -> Any:
    """What `holds` gives as soon as it is true; `told` says what is the case instead."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < deadline, told()
        time.sleep(0.05)
    return found


class Clock:
    """One that stands still unless it is told to go on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def tick(self, seconds: float) -> None:
        self.now += seconds
