"""How long a search may go on, so that one that was interrupted stops where it stopped before."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from inc_tb.search.journal import Journal


class Budget:
    """Seconds, from now on. With a journal the question that was the first to be answered with yes is kept there.

    Whoever asks must ask the same questions again when he goes on, as what rests on nothing but the answers does.
    """

    def __init__(self, seconds: float = math.inf, journal: Journal | None = None) -> None:
        self.seconds = seconds
        self._journal = journal
        self._began = time.monotonic()
        self._pauses = 0
        self._asked = 0
        self._stopped: dict[float, int] = {
            line["share"]: line["stopped"] for line in journal or () if "stopped" in line
        }  # fmt: skip
        """By share, the first question that was answered with yes."""

    def is_over(self, share: float = 1.0) -> bool:
        """Or such a share of it."""
        self._asked += 1
        if share not in self._stopped and time.monotonic() - self._began > share * self.seconds:
            self._stopped[share] = self._asked
            if self._journal is not None:
                self._journal.add({"stopped": self._asked, "share": share})
        return self._asked >= self._stopped.get(share, math.inf)

    @property
    def used(self) -> float:
        """The share of it that is over."""
        return min(1.0, (time.monotonic() - self._began) / self.seconds) if self.seconds > 0 else 1.0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What takes time meanwhile does not count."""
        self._pauses += 1
        began = time.monotonic()
        try:
            yield
        finally:
            self._pauses -= 1
            if not self._pauses:
                self._began += time.monotonic() - began
