"""Filling a Recipe with the names of ops; the page, which always has some, does the same (src/recipes.ts)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from inc_tb.records import Recipe

_UNKNOWN: Mapping[str, str] = MappingProxyType({})


def write(
    recipe: Recipe,
    ops: Sequence[str],
    tensors: Mapping[str, str] = _UNKNOWN,
    patterns: Sequence[str] = (),
    modules: Mapping[str, str] = _UNKNOWN,
) -> str:
    """`tensors` and `modules` have what each op writes, and the PyTorch module it belongs to, where that is known."""
    if not ops:  # neither a comma nor a line where there is no item
        return recipe.before.rstrip("\n") + recipe.after.lstrip(",\n")
    by_pattern = bool(patterns) and "{pattern}" in recipe.item
    words = [{"pattern": p} for p in patterns] if by_pattern else [_words(name, tensors, modules) for name in ops]
    if "{module}" in recipe.item:
        words = [w for w in words if w["module"]]  # the whole model is called "", and would be kept in fp32
    items = dict.fromkeys(_filled(recipe.item, w) for w in words)
    return recipe.before + recipe.between.join(items) + recipe.after


def _words(name: str, tensors: Mapping[str, str], modules: Mapping[str, str]) -> dict[str, str]:
    path = name.strip("/").split("/")
    pattern = re.sub(r"([\\.^$*+?{}()\[\]|])", r"\\\1", name)
    return {
        "name": name,
        "pattern": pattern,
        "tensor": tensors.get(name) or name,
        # What torch's export calls /Relu is a function at the top, in no module but the whole model.
        "module": modules.get(name) or ".".join(path[:-1] or ([] if name.startswith("/") else path)),
    }


def _filled(item: str, words: Mapping[str, str]) -> str:
    """In one go: a name may itself hold the text of a placeholder."""
    return re.sub("|".join(rf"\{{{word}\}}" for word in words), lambda m: quoted(words[m[0][1:-1]]), item)


def quoted(text: str) -> str:
    """A string as JSON and Python both read it."""
    return json.dumps(text, ensure_ascii=False)
