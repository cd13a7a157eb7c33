"""How long a search may go on, so that one that was interrupted stops where it stopped before."""

from __future__ import annotations

import math
import time

from inc_tb.search.journal import Journal


class Budget:
    """Seconds, from now on. With a journal the question that was the first to be answered with yes is kept there.

    Whoever asks must ask the same questions again when he goes on, as what rests on nothing but the answers does.
    """

    def __init__(self, seconds: float = math.inf, journal: Journal | None = None) -> None:
        self.seconds = seconds
        self._journal = journal
        self._began = time.monotonic()
        self._asked = 0
        self._stopped: int | None = next((line["stopped"] for line in journal or () if "stopped" in line), None)

    def is_over(self) -> bool:
        self._asked += 1
        if self._stopped is None and time.monotonic() - self._began > self.seconds:
            self._stopped = self._asked
            if self._journal is not None:
                self._journal.add({"stopped": self._asked})
        return self._stopped is not None and self._asked >= self._stopped

    @property
    def used(self) -> float:
        """The share of it that is over."""
        return min(1.0, (time.monotonic() - self._began) / self.seconds) if self.seconds > 0 else 1.0

    def prolong(self, seconds: float) -> None:
        """By time that was needed for something else."""
        self._began += seconds
