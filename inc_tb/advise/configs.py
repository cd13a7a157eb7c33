"""A set of ops that should stay out of int8, as the configuration of the tools that can do it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from inc_tb.errors import UsageError
from inc_tb.frameworks.formats import PLAIN, Format, Settings
from inc_tb.frameworks.registry import frameworks, named
from inc_tb.frameworks.templates import write
from inc_tb.records import GraphNode, Recipe

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
    return [Fitted(f, recipe) for f, recipe in made if recipe is not None]


def formats_listed() -> str:
    """Those of all frameworks, for a help text."""
    tools = {framework.title: dict.fromkeys(f.tool for f in framework.formats) for framework in frameworks()}
    return "; ".join(f"{title}: {', '.join(names)}" for title, names in tools.items())


def recipes_for(framework: str, table: Mapping[str, Any]) -> list[Fitted]:
    """For a model that was diagnosed; `table` has the columns of its ops, at least those that it is SHOWN_IN."""
    return fitted(framework, Settings.seen_in(*(table.get(column, ()) for column in SHOWN_IN)))


def configs(framework: str, table: Mapping[str, Any], graph: Iterable[GraphNode], ops: Sequence[str]) -> dict[str, str]:
    """Tool -> what keeps these ops in fp32 there."""
    nodes = list(graph)
    tensors, modules = {n.name: n.tensor for n in nodes}, {n.name: n.module for n in nodes}
    return {f.recipe.tool: write(f.recipe, ops, tensors, (), modules) for f in recipes_for(framework, table)}


def find_recipe(fitted: Sequence[Fitted], given: str) -> Recipe:
    """By the name of its tool or an alias, in any case, with - or _."""
    wanted = given.strip().lower().replace("_", "-")
    found = next((f.recipe for f in fitted if wanted in (f.recipe.tool, *f.format.aliases)), None)
    if found is None:
        there = ", ".join(f.recipe.tool for f in fitted)
        raise UsageError(f"format {given!r} is not among those for this run; expected one of {there}.")
    return found
