"""What the C library keeps of freed memory for later. Near the budget it is told to give that back to the machine."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PAGES = Path("/proc/self/statm")
_SPARE = 320 << 20
"""Below the budget, from where on memory is given back: what the next arrays may take before it is looked at again."""


class Heap:
    """Only where the C library is one that can; elsewhere nothing happens."""

    def __init__(self, budget: int) -> None:
        self._trim = _find_trim()
        self._most = (
            _resident_pages() + max(budget // 2, budget - _SPARE) // _page_size() if self._trim is not None else 0
        )

    def trim(self) -> None:
        """Costs milliseconds, and the next arrays their first touch: so only when much is held."""
        if self._trim is not None and _resident_pages() > self._most:
            self._trim(0)


def _find_trim() -> Callable[[int], Any] | None:
    if not _PAGES.exists():
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def _resident_pages() -> int:
    return int(_PAGES.read_text().split()[1])


def _page_size() -> int:
    import resource

    return resource.getpagesize()
