"""Whether the names and patterns that a tool is to be told are in the model: most tools pass over others in silence."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Sequence

from inc_tb.errors import UsageError


def check_names(names: Iterable[str], known: Collection[str]) -> None:
    """Raise UsageError if a name is not one of the model's ops: a tool would silently keep nothing in fp32 for it."""
    there = set(known)
    missing = [name for name in dict.fromkeys(names) if name not in there]
    if missing:
        told = "; ".join(f"{name!r} ({_hint(name, known)})" for name in missing[:5])
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise UsageError(f"no op of this model is called {told}{more}. Give names as the table of ops has them.")


def check_patterns(patterns: Iterable[str], known: Collection[str]) -> None:
    """Raise UsageError unless each regular expression matches the whole name of at least one op of the model."""
    for pattern in dict.fromkeys(patterns):
        try:
            matches = re.compile(pattern).fullmatch
        except re.error as error:
            raise UsageError(f"{pattern!r} is no regular expression ({error}). Give one, or a plain name.") from None
        if not any(matches(name) for name in known):
            plain = re.sub(r"\\(.)", r"\1", pattern.replace(r"\d+", "0"))
            raise UsageError(f"no op of this model matches {pattern!r} ({_hint(plain, known)}).")


def exact_patterns(patterns: Sequence[str], ops: Iterable[str], known: Collection[str]) -> list[str]:
    """The patterns, which are shorter than a list of names, unless they would take in more ops than these."""
    check_patterns(patterns, known)
    matched = {name for name in known if any(re.fullmatch(pattern, name) for pattern in patterns)}
    return list(patterns) if matched == set(ops) else []


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
