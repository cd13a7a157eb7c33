"""How a tool is told which ops stay out of int8: one generator a tool, and one place to add a tool.

A generator is a function from Settings, how a model is quantized, to a Recipe: text around one item an op, which
templates.py and the page fill alike. It stands in the `formats.py` of its framework, which imports nothing of it. To
add a tool:

1. Write the function; it may return None for a model that the tool is of no use for. Names in the text that are not
   the ops' stand for what the user's own call has there: `model_input`, `calibration_data_reader`.
2. Put a Format with it into FORMATS of that file, where it should stand among the others. `inc-tb suggest --format`
   with its help, every suggestion's `recipes` and the page have it from there; docs/onnx.md lists it.
3. `python -m tests.advise.test_recipes` writes tests/data/recipe_cases.json anew, which holds Python and the page to
   the same texts; a test runs the text in its tool.

Where the framework has a Quantizer for the same tool, its `recipe` is the same function with everything that the
quantizer was told: see `Settings.told`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from inc_tb.frameworks.ops import Granularity, Scheme
from inc_tb.records import Recipe

_PER_CHANNEL: Granularity = "per channel"
_DYNAMIC: Scheme = "dynamic"


class Settings(NamedTuple):
    """How a model is quantized, as far as it shows; a config that leaves it out would quantize another way."""

    per_channel: bool
    activation: str
    weight: str
    dynamic: bool = False
    told: Mapping[str, Any] = MappingProxyType({})
    """What the tool was told, by the names of its Quantizer's settings: then the text makes the very model again.
    Nothing where only the model is known: then what a diagnosis does not show is left to the user."""

    @property
    def is_weight_only(self) -> bool:
        return bool(self.weight) and not self.activation and not self.dynamic

    @classmethod
    def seen_in(
        cls, activations: Iterable[str], weights: Iterable[str], granularities: Iterable[str], schemes: Iterable[str]
    ) -> Settings:
        """From the types, granularities and schemes of all ops; "" stands for fp32."""

        def usual(dtypes: Iterable[str]) -> str:
            return next((found for found, _ in Counter(d for d in dtypes if d).most_common(1)), "")

        # Most of them: a tool that quantizes dynamically may still give tables that are looked up fixed ranges.
        found = Counter(scheme == _DYNAMIC for scheme in schemes if scheme)
        is_dynamic = found[True] > found[False]
        return cls(_PER_CHANNEL in set(granularities), usual(activations), usual(weights), is_dynamic)


@dataclass(frozen=True)
class Format:
    """A tool's config, for models that are quantized one way or another."""

    tool: str
    """The name by which it is asked for."""
    make: Callable[[Settings], Recipe | None]
    """None where it is of no use for a model that is quantized so."""
    aliases: Sequence[str] = ()
    """What else people call the tool, or the setting that it takes."""
    cures: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Rules whose cause it takes away without keeping any op in fp32, each with a regular expression for the types of
    ops at which it does, as the framework calls them, in any case."""
    rounds: bool = False
    """Whether it keeps no op in fp32 but has it rounded otherwise, which makes none faster."""
    elsewhere: bool = False
    """Whether the tool takes the model only in another framework, from which it was exported or into which it goes."""


def always(recipe: Recipe) -> Callable[[Settings], Recipe]:
    """For a config that is the same however the model is quantized."""
    return lambda _: recipe


def with_activations(make: Callable[[Settings], Recipe | None]) -> Callable[[Settings], Recipe | None]:
    """For a tool that quantizes activations as well, which would make another model of one with rounded weights."""
    return lambda settings: None if settings.is_weight_only else make(settings)


PLAIN = Format(
    "json",
    always(
        Recipe("json", "JSON: list of names", '{"fp32": [\n', "    {name}", ",\n", "\n]}", "For tools of your own.")
    ),
    aliases=("plain",),
)
INC_ALIASES = ("neural-compressor", "inc2", "op-name-dict")
INC_LABEL = "Neural Compressor 2.x: op_name_dict"
INC_START = (
    "from neural_compressor.config import PostTrainingQuantConfig\n\n"
    'fp32 = {"activation": {"dtype": ["fp32"]}, "weight": {"dtype": ["fp32"]}}\n'
)
INC_NOTE = "Keeps the ops in fp32. The names are regular expressions, which have to match the whole name."


def inc_conf(settings: Settings) -> str:
    """How a config of Neural Compressor 2.x ends, whatever its framework."""
    approach = 'approach="dynamic", ' if settings.dynamic else ""
    return f"conf = PostTrainingQuantConfig({approach}op_name_dict=op_name_dict)"


def _inc_by_name(settings: Settings) -> Recipe:
    return Recipe(
        "inc", INC_LABEL, f"{INC_START}op_name_dict = {{\n", "    {pattern}: fp32", ",\n",
        f",\n}}\n{inc_conf(settings)}", INC_NOTE,
    )  # fmt: skip


INC_BY_NAME = Format("inc", with_activations(_inc_by_name), INC_ALIASES)
"""Where Neural Compressor has the names of the framework's own ops."""
