"""The limits of a project: [tool.inc-tb.check] in its pyproject.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from inc_tb.errors import UsageError
from inc_tb.gate.limits import Limit, parse_limit

_FILE = "pyproject.toml"


class _Table(msgspec.Struct, forbid_unknown_fields=True, rename="kebab"):
    limits: list[str] = []
    max_bad: int | None = None


def limits_of_project(folder: Path) -> list[Limit]:
    """Of the nearest pyproject.toml that has some, from the folder upwards."""
    for place in (folder, *folder.parents):
        found = _read(place / _FILE)
        if found is not None:
            return limits_of(found.limits, found.max_bad)
    return []


def limits_of(given: list[str] | tuple[str, ...], max_bad: int | None) -> list[Limit]:
    bad = [] if max_bad is None else [Limit("bad", "<=", float(max_bad))]
    return [*map(parse_limit, given), *bad]


def _read(path: Path) -> _Table | None:
    if not path.is_file():
        return None
    try:
        tables: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        for name in ("tool", "inc-tb", "check"):
            tables = tables.get(name, {})
        return msgspec.convert(tables, _Table) if tables else None
    except (ValueError, AttributeError) as error:  # of TOML, of UTF-8, and of msgspec
        raise UsageError(
            f"{path}: [tool.inc-tb.check] cannot be read ({error}); expected limits, a list of texts such as "
            "accuracy>=0.95, and max-bad, a whole number."
        ) from error
