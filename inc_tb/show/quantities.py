"""Numbers with a unit, as people say them: 10.1 MB, 1.9 ms, and never 1.014e+04."""

from __future__ import annotations

from collections.abc import Sequence

_SIZES = {"_bytes": 1.0, "_kb": 1e3, "_mb": 1e6}
_TIMES = {"_us": 1.0, "_ms": 1e3, "_s": 1e6}


def quantity(name: str, value: float) -> str:
    """The value of something whose name ends with its unit, such as size_kb; any other one as a plain number."""
    for ending, factor in _SIZES.items():
        if name.endswith(ending):
            return size(value * factor)
    for ending, factor in _TIMES.items():
        if name.endswith(ending) and not name.endswith("per_s"):
            return duration(value * factor)
    return number(value)


def title(name: str) -> str:
    """Without the unit, which its values say."""
    ending = next((e for e in (*_SIZES, *_TIMES) if name.endswith(e) and not name.endswith("per_s")), "")
    return name.removesuffix(ending).replace("_", " ")


def size(count: float) -> str:
    """Of bytes, in steps of 1,000."""
    return _scaled(count, 1000, ("B", "kB", "MB", "GB", "TB"))


def duration(us: float) -> str:
    return _scaled(us, 1000, ("µs", "ms", "s"))


def number(value: float, digits: int = 4) -> str:
    """With so many digits, and without an exponent as far as a reader can count zeros."""
    if value == 0 or 1e-4 <= abs(value) < 1e9:
        text = f"{value:.{digits}g}"
        return f"{value:,.0f}" if "e" in text else text
    return f"{value:.{digits}g}"


def _scaled(value: float, step: float, units: Sequence[str]) -> str:
    """Three digits at least where it is not a whole number of the smallest unit."""
    unit = 0
    while abs(value) >= step * 0.99995 and unit < len(units) - 1:
        value /= step
        unit += 1
    text = f"{value:,.1f}" if abs(value) < 100 and value % 1 else f"{value:,.0f}"
    return f"{text} {units[unit]}"
