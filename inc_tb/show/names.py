"""Long names in little room: the middle goes first, for a name is known by its beginning and its end."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import takewhile

from inc_tb.records import without_middle

_GAP = "…"
_BEGINNING = 4
"""Characters that stay of what all names share."""


def shortened(names: Sequence[str], width: int) -> list[str]:
    """No longer than so many characters, and as far as that goes still different from each other."""
    if all(len(name) <= width for name in names):
        return list(names)
    path = _path(names)
    without = [name[:_BEGINNING] + _GAP + name[path:] if path > _BEGINNING + 1 else name for name in names]
    if all(len(name) <= width for name in without):
        return without
    head = min(width // 3, _BEGINNING) if path > _BEGINNING else width // 3
    found = [without_middle(name, width, max(1, head)) for name in names]
    alike = defaultdict(set)
    for name, short in zip(names, found, strict=True):
        alike[short].add(name)
    return [
        _cut_around(name, width, alike[short]) if len(alike[short]) > 1 else short
        for name, short in zip(names, found, strict=True)
    ]


def shorten(name: str, width: int) -> str:
    return shortened([name], width)[0]


def _cut_around(name: str, width: int, others: set[str]) -> str:
    """What it differs in from the others stays, as the number of a layer, with the word that this belongs to."""
    before = _alike(others)
    behind = min(_alike({other[::-1] for other in others}), min(map(len, others)) - before)
    word = re.compile(r"[^/]*$").search(name[:before])
    start = word.start() if word is not None else 0
    piece = name[start : len(name) - behind]
    beginning = name[:start] if start <= _BEGINNING + 1 else name[:_BEGINNING] + _GAP
    end = width - len(beginning) - len(piece) - len(_GAP)
    if end < 1:
        return without_middle(name[start:], width, min(before - start + 3, width - 2))
    return beginning + piece + _GAP + name[len(name) - min(end, behind) :]


def _path(names: Sequence[str]) -> int:
    """Length of the path that all of them begin with."""
    some = set(names)
    return max(min(some).rfind(mark, 0, _alike(some)) for mark in "/.") + 1 if len(some) > 1 else 0


def _alike(names: set[str]) -> int:
    """How many characters all of them begin with."""
    pairs = zip(min(names), max(names), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
