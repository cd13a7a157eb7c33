"""How much fits into a line of the terminal."""

from __future__ import annotations

COLUMN_WIDTH = 11
NAME_WIDTH = 24


def cut(name: str, width: int) -> str:
    """The end of a name tells more than its beginning."""
    return name if len(name) <= width else "…" + name[-(width - 1) :]
