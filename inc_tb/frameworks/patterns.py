"""Regular expressions for names of ops that repeat in every layer; the page finds the same (src/patterns.ts)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

PATTERN_EXCESS = 1.5
"""Names that differ by numbers only are those of one thing, unless so many times more have such names."""
_FEWEST_LISTED = 3
"""Numbers in one pattern; of fewer names each is as short by itself."""
_LISTED_EXCESS = 2
"""Numbers of most layers are listed, not some out of many."""
_MOST_TOGETHER = 32
"""Patterns for names of one shape; more of them are no easier to read than the names."""


def exact_patterns(ops: Iterable[str], known: Collection[str]) -> list[str]:
    r"""As few expressions as match these ops and, of the `known` names of the model, no others.

    What repeats in every layer is `layer\.\d+`, what repeats in most of them `layer\.(0|1|3)`, and any other name
    stands for itself. They come in the order of the first op of each.
    """
    there, wanted = _by_shape(known), list(dict.fromkeys(ops))
    found: dict[str, str] = {}
    for shape, names in _by_shape(wanted).items():
        found.update(_patterns(names, there.get(shape, names)))
    return [found[name] for name in wanted if name in found]


def pattern_of(ops: Collection[str], known: Collection[str]) -> str:
    """All of them as one expression; nothing where that says no more than the names."""
    found = exact_patterns(ops, known)
    return "|".join(found) if len(found) < len(set(ops)) else ""


def matching(patterns: Iterable[str], known: Iterable[str]) -> list[str]:
    """The names that one of the patterns matches as a whole."""
    compiled = [re.compile(pattern) for pattern in patterns]
    return [name for name in known if any(one.fullmatch(name) for one in compiled)]


def is_repeated(names: Collection[str], known: Collection[str]) -> bool:
    """Whether few others have such names: then what differs is the number of a layer, and not just any."""
    wide = [_joined(alike, r"\d+") for alike in _by_shape(names).values()]
    return len(matching(wide, known)) <= PATTERN_EXCESS * len(names)


def shape_of(name: str) -> str:
    """The name with what may be an index left open."""
    return re.sub("[0-9]+", "#", name)


def escaped(name: str) -> str:
    """A regular expression that matches this name only."""
    return re.sub(r"([\\.^$*+?{}()\[\]|])", r"\\\1", name)


def _by_shape(names: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for name in dict.fromkeys(names):
        found[shape_of(name)].append(name)
    return found


def _patterns(names: Sequence[str], alike: Collection[str]) -> dict[str, str]:
    """By the first name of each: with all numbers left open, or all but one, or those that occur, or names alone."""
    for group in [[names], *_split(names)]:
        wide = [_joined(some, r"\d+") for some in group]
        is_shorter = len(wide) <= min(_MOST_TOGETHER, len(names) - 1)
        if is_shorter and all(map(_are_layers, group)) and set(matching(wide, alike)) == set(names):
            return {some[0]: one for some, one in zip(group, wide, strict=True)}
    caught = matching([_joined(names, r"\d+")], alike)
    if len(names) >= _FEWEST_LISTED and len(caught) <= _LISTED_EXCESS * len(names):
        listed = _joined(names)
        if set(matching([listed], alike)) == set(names):
            return {names[0]: listed}
    return {name: escaped(name) for name in names}


def _split(names: Sequence[str]) -> Iterable[list[Sequence[str]]]:
    """By one of the numbers in them."""
    for at in range(len(_numbers(names[0]))):
        groups: dict[str, list[str]] = defaultdict(list)
        for name in names:
            groups[_numbers(name)[at]].append(name)
        yield [*groups.values()]


def _are_layers(alike: Sequence[str]) -> bool:
    """Two of them may be conv1 and conv2, which are no layers of one kind; layer.0 and layer.1 are."""
    if len(alike) != 2:
        return True
    parts = list(zip(*(re.split("([0-9]+)", name) for name in alike), strict=True))
    differ = [at for at, (a, b) in enumerate(parts) if a != b]
    return not any(re.search("[A-Za-z]$", parts[at - 1][0]) for at in differ)


def _numbers(name: str) -> list[str]:
    return re.findall("[0-9]+", name)


def _joined(alike: Sequence[str], number: str = "") -> str:
    """Of names of one shape; what differs is `number`, or one of those that occur."""
    columns = [list(dict.fromkeys(column)) for column in zip(*(re.split("([0-9]+)", n) for n in alike), strict=True)]
    return "".join(escaped(c[0]) if len(c) == 1 else number or f"({'|'.join(c)})" for c in columns)
