"""Whether the names that a tool is to be told are in the model: most tools pass over others in silence."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from inc_tb.errors import UsageError


def check_names(names: Iterable[str], known: Collection[str]) -> None:
    """Raise UsageError if a name is not one of the model's ops: a tool would silently keep nothing in fp32 for it."""
    there = set(known)
    missing = [name for name in dict.fromkeys(names) if name not in there]
    if missing:
        told = "; ".join(f"{name!r} ({_hint(name, known)})" for name in missing[:5])
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise UsageError(f"no op of this model is called {told}{more}. Give names as the table of ops has them.")


def _hint(name: str, known: Collection[str]) -> str:
    close = closest(name, known)
    return f"closest: {', '.join(close)}" if close else "nothing is close to it"


def closest(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Names that someone who wrote `name` may have meant, the likeliest first."""
    wanted = name.strip().lower()
    by_lower: dict[str, list[str]] = {}
    for candidate in known:
        by_lower.setdefault(candidate.lower(), []).append(candidate)
    if wanted in by_lower:
        return by_lower[wanted][:most]
    parts = [n for n in by_lower if _is_part(wanted.strip("/"), n.strip("/"))]
    parts.sort(key=lambda n: abs(len(n) - len(wanted)))
    alike = difflib.get_close_matches(wanted, by_lower, most, cutoff=0.6)
    found = dict.fromkeys([*parts[:most], *alike])
    return [candidate for n in found for candidate in by_lower[n]][:most]


def _is_part(given: str, name: str) -> bool:
    """Someone left out the beginning or the end of a name, or took it from the quantized model, where it is longer."""
    return (len(given) >= 3 and given in name) or (2 * len(name) >= len(given) and bool(name) and name in given)
