"""Functions of another package that do more for a while."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Function = Callable[..., Any]


@contextmanager
def replaced(owner: Any, name: str, make: Callable[[Function], Function]) -> Iterator[None]:
    """What `make` makes of the function of a class or a module stands in for it."""
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(make(original)))
    try:
        yield
    finally:
        setattr(owner, name, original)
