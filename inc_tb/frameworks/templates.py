"""Filling a Recipe with the names of ops; the page, which always has some, does the same (src/recipes.ts)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from inc_tb.frameworks.patterns import escaped
from inc_tb.records import Recipe

_UNKNOWN: Mapping[str, str] = MappingProxyType({})


def write(
    recipe: Recipe,
    ops: Sequence[str],
    tensors: Mapping[str, str] = _UNKNOWN,
    patterns: Sequence[str] = (),
    modules: Mapping[str, str] = _UNKNOWN,
    statements: Mapping[str, str] = _UNKNOWN,
) -> str:
    """Where it is known: what each op writes, its module, and what the tool of the model is told instead of that.

    Tools that know `patterns` get these instead of the ops.
    """
    by_pattern = bool(patterns) and set(re.findall(r"\{(\w+)\}", recipe.item)) == {"pattern"}
    items, unnamed = [_filled(recipe.item, {"pattern": p}) for p in patterns if by_pattern], ""
    for name in () if by_pattern else ops:
        words = _words(name, tensors, modules)
        if recipe.of_statement and statements.get(name):
            items += [recipe.of_statement.replace("{statement}", line) for line in statements[name].split("\n")]
        elif words["module"] or "{module}" not in recipe.item:
            items.append(_filled(recipe.item, words))
        else:  # the whole model is called "", and would be kept in fp32
            unnamed += _filled(recipe.unnamed, words)
    if not items:  # neither a comma nor a line where there is no item
        return recipe.before.rstrip("\n") + recipe.after.lstrip(",\n") + unnamed
    return recipe.before + recipe.between.join(dict.fromkeys(items)) + recipe.after + unnamed


def _words(name: str, tensors: Mapping[str, str], modules: Mapping[str, str]) -> dict[str, str]:
    path = name.strip("/").split("/")
    return {
        "name": name,
        "pattern": escaped(name),
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
