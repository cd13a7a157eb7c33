"""One config to try."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from inc_tb.records import short_repr


class Attempt(NamedTuple):
    """What a strategy yields: a way to quantize the model."""

    settings: Mapping[str, Any]
    """Of the quantizer, such as `bench.quantizer.settings` or some of them changed."""
    keep: tuple[str, ...] = ()
    """The ops that stay in fp32, by the names of `bench.units`."""
    note: str = ""
    """Why it is tried; stored with the trial."""
    proves: Callable[[], None] | None = None
    """Called once it has met the criterion."""
    goes_on: bool = False
    """Whether the strategy wants to go on even if this meets the criterion and there is no timeout."""
    then: tuple[Attempt, ...] = ()
    """What it tries next whatever comes of this, as many as `bench.width`: carried out meanwhile."""

    def __repr__(self) -> str:
        return short_repr(self)


def key_of(attempt: Attempt) -> str:
    told = msgspec.json.encode([sorted(attempt.settings.items()), sorted(attempt.keep)])
    return hashlib.sha256(told).hexdigest()[:16]
