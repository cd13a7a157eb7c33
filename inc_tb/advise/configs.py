"""A set of ops that should stay out of int8, as the configuration of the tools that can do it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from inc_tb.errors import UsageError
from inc_tb.frameworks.formats import PLAIN, Format, Settings
from inc_tb.frameworks.ops import Op
from inc_tb.frameworks.patterns import exact_patterns
from inc_tb.frameworks.registry import frameworks, named
from inc_tb.frameworks.templates import write
from inc_tb.records import GraphNode, Recipe, Suggestion

SHOWN_IN = ("act_dtype", "weight_dtype", "weight_granularity", "act_scheme")
"""The columns of an op table which tell how the model is quantized."""


class Fitted(NamedTuple):
    """A format, and its recipe for a model that is quantized one way or another."""

    format: Format
    recipe: Recipe


def fitted(framework: str, settings: Settings) -> list[Fitted]:
    """The formats of a framework that are of use for a model that is quantized so."""
    known = named(framework)
    made = [(f, f.make(settings)) for f in (known.formats if known is not None else (PLAIN,))]
    return [
        Fitted(f, msgspec.structs.replace(recipe, rounds=f.rounds, elsewhere=f.elsewhere))
        for f, recipe in made
        if recipe is not None
    ]


def formats_listed() -> str:
    """Those of all frameworks, for a help text."""
    tools = {framework.title: dict.fromkeys(f.tool for f in framework.formats) for framework in frameworks()}
    return "; ".join(f"{title}: {', '.join(names)}" for title, names in tools.items())


def recipes_for(framework: str, table: Mapping[str, Any]) -> list[Fitted]:
    """For a model that was diagnosed; `table` has the columns of its ops, at least those that it is SHOWN_IN."""
    return fitted(framework, Settings.seen_in(*(table.get(column, ()) for column in SHOWN_IN)))


def configs(
    framework: str, table: Mapping[str, Any], graph: Iterable[GraphNode], ops: Sequence[str], first: Iterable[str] = ()
) -> dict[str, str]:
    """Tool -> what keeps these ops in fp32 there, or changes a setting instead; the tools named come `first`.

    Tools that know patterns get those that match these ops and no others of the model.
    """
    nodes, names = list(graph), [str(name) for name in table["name"]]
    kept = with_followers(framework, ops, nodes)
    patterns = exact_patterns(kept, names)
    found = {f.recipe.tool: write_for(f.recipe, kept, nodes, patterns) for f in recipes_for(framework, table)}
    return {tool: found[tool] for tool in dict.fromkeys([*first, *found]) if tool in found}


def with_followers(framework: str, ops: Sequence[str], graph: Iterable[GraphNode]) -> list[str]:
    """The ops, and those that the framework's tool must be told to keep along with them."""
    known = named(framework)
    return known.with_followers(ops, graph) if known is not None else list(ops)


def write_for(recipe: Recipe, ops: Sequence[str], nodes: Sequence[GraphNode | Op], patterns: Sequence[str] = ()) -> str:
    """The text for ops, of which the nodes of their graph tell the rest."""
    return write(
        recipe, ops, {n.name: n.tensor for n in nodes}, patterns, {n.name: n.module for n in nodes},
        {n.name: n.statement for n in nodes},
    )  # fmt: skip


def curing(fitted: Iterable[Fitted], rule: str, kind: str) -> list[str]:
    """Tools of which one setting takes away what the rule has found at an op of this type."""
    cures = ((f.recipe.tool, f.format.cures.get(rule)) for f in fitted)
    return [tool for tool, types in cures if types and re.search(types, kind, re.IGNORECASE)]


def is_setting(framework: str, table: Mapping[str, Any], suggestion: Suggestion) -> bool:
    """Whether its first config changes a setting for the whole model, and keeps none of its ops in fp32."""
    first = next(iter(suggestion.recipes), "")
    return any(f.recipe.tool == first and not f.recipe.item for f in recipes_for(framework, table))


def find_recipe(fitted: Sequence[Fitted], given: str) -> Recipe:
    """By the name of its tool or an alias, in any case, with - or _."""
    wanted = given.strip().lower().replace("_", "-")
    found = next((f.recipe for f in fitted if wanted in (f.recipe.tool, *f.format.aliases)), None)
    if found is None:
        there = ", ".join(f.recipe.tool for f in fitted)
        raise UsageError(f"format {given!r} is not among those for this run; expected one of {there}.")
    return found
