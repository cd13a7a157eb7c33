"""One config to try."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec


class Attempt(NamedTuple):
    settings: Mapping[str, Any]
    keep: tuple[str, ...] = ()
    note: str = ""
    proves: Callable[[], None] | None = None
    """Called once it has met the criterion."""


def key_of(attempt: Attempt) -> str:
    told = msgspec.json.encode([sorted(attempt.settings.items()), sorted(attempt.keep)])
    return hashlib.sha256(told).hexdigest()[:16]
