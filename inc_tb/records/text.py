"""Texts that can be stored: JSON of anything, and names that are no UTF-8."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from reprlib import Repr
from typing import Any

import msgspec
import numpy as np

_EMPTY: tuple[Any, ...] = (None, "", [], {})
_SHORT = Repr()
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 4
_SHORT.maxstring = _SHORT.maxother = 80


def listed(names: Iterable[object], most: int = 6) -> str:
    """Names in a sentence: each once, and no more than so many."""
    some = list(dict.fromkeys(map(str, names)))
    return ", ".join(some[:most]) + (f" and {len(some) - most} more" if len(some) > most else "")


def plural(count: int, one: str, many: str = "") -> str:
    """1 op, 2 ops, 1,000 ops."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def brief(text: str, most: int = 60) -> str:
    """In one line, without what cannot be printed, and no longer than so many characters: the middle goes first."""
    some = text if len(text) <= 2 * most else text[:most] + text[-most:]
    plain = "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in some)
    return without_middle(plain, most, most // 3)


def without_middle(text: str, most: int, head: int) -> str:
    """Without its middle where it is longer; so many characters of its beginning stay."""
    return text if len(text) <= most else f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


def short_repr(self: Any) -> str:
    """As a dataclass, struct or named tuple shows itself, but no value fills the screen, however large the model is."""
    of_struct = getattr(self, "__struct_fields__", ()) or getattr(self, "_fields", ())
    names = [field.name for field in fields(self)] if is_dataclass(self) else of_struct
    values = {name: getattr(self, name) for name in names}
    told = (f"{name}={_SHORT.repr(value)}" for name, value in values.items() if value not in _EMPTY)
    return f"{type(self).__name__}({', '.join(told)})"


def storable_text(text: str) -> str:
    """File names may hold bytes that are no UTF-8; Python keeps those as characters that UTF-8 cannot hold."""
    return text.encode("utf-8", "backslashreplace").decode()


def to_json(value: Any) -> bytes:
    """Also of what JSON does not know: names that are no UTF-8, NumPy numbers, paths."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, UnicodeEncodeError):
        return msgspec.json.encode(_plain(value))


def _as_json(value: Any) -> Any:
    """Of a struct's field, which is read back as what it was."""
    return b64encode(value).decode() if isinstance(value, bytes) else _plain(value)


def _plain(value: Any) -> Any:
    """Configurations and evidence hold what their makers put there: NumPy numbers, paths, tuples as keys."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, msgspec.Struct):
        return {name: _as_json(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {storable_text(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return storable_text(str(value))
