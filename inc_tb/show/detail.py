"""How much a command prints: the verdict, the usual tables, or everything."""

from __future__ import annotations

from enum import IntEnum


class Detail(IntEnum):
    QUIET = 0
    """The verdict, and where things are."""
    USUAL = 1
    VERBOSE = 2
    """Every reason and every config, however long."""
