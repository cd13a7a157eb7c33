"""What ran when, as other tools read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Slice(NamedTuple):
    """Something that ran on one thread; slices of one thread may lie inside of each other."""

    model: str
    """fp32 or int8, or what else the trace calls its process."""
    thread: str
    name: str
    start_us: float
    duration_us: float
    details: Mapping[str, str | float] = {}
