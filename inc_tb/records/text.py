"""Texts that can be stored: JSON of anything, and names that are no UTF-8."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np


def listed(names: Iterable[str], most: int = 6) -> str:
    """Names in a sentence: each once, and no more than so many."""
    some = list(dict.fromkeys(map(str, names)))
    return ", ".join(some[:most]) + (f" and {len(some) - most} more" if len(some) > most else "")


def storable_text(text: str) -> str:
    """File names may hold bytes that are no UTF-8; Python keeps those as characters that UTF-8 cannot hold."""
    return text.encode("utf-8", "backslashreplace").decode()


def to_json(value: Any) -> bytes:
    """Also of what JSON does not know: names that are no UTF-8, NumPy numbers, paths."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, UnicodeEncodeError):
        return msgspec.json.encode(_plain(value))


def _plain(value: Any) -> Any:
    """Configurations and evidence hold what their makers put there: NumPy numbers, paths, tuples as keys."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {storable_text(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return storable_text(str(value))
