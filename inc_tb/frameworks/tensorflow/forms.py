"""The two forms in which models of TensorFlow are read, and how tensors and errors are named there."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_PLACE = re.compile(r'<unknown>:0: error: loc\(.*?"([^"@:]+)(?:@[^"]*)?"\].*?\)+: ')
"""Of the compiler; the first name in it is the op's."""
_LONGEST = 300
COMPOSITE = re.compile(r"^(?:__inference_)?(?:composite_)?((?:de)?quantize_i8|quantized_\w+?_fn)(?:_\d+)*$")
"""Functions that `quantize_saved_model` makes."""


@dataclass
class Frozen:
    """A graph without variables. Inputs and outputs: the name that users know, and the tensor."""

    name: str
    graph_def: Any
    inputs: list[tuple[str, str]]
    outputs: list[tuple[str, str]]
    layers: frozenset[str] = field(default_factory=frozenset)
    """Names of the Keras layers that it was made of."""


@dataclass
class Lite:
    name: str
    content: bytes


def source_of(reference: str) -> tuple[str, int]:
    """The node and the place of its output that an input of a node names."""
    name, _, at = reference.removeprefix("^").partition(":")
    return name, int(at) if at.isdigit() else 0


def first_line(error: Exception) -> str:
    """What an error of TensorFlow or Keras says, without where in their code it was raised, as a sentence."""
    lines = [line.strip() for line in _ESCAPE.sub("", str(error)).splitlines() if line.strip()]
    nodes = [at for at, line in enumerate(lines[:-1]) if line.startswith("Node: ")]
    if lines and lines[0].startswith("Graph execution error") and nodes:
        lines = [f"{lines[nodes[0]].removeprefix('Node: ')}: {lines[nodes[0] + 1]}"]
    elif len(lines) > 1 and lines[0].startswith("Exception encountered when calling"):
        lines = lines[1:]
    text = _PLACE.sub(r"\1: ", lines[0]) if lines else type(error).__name__
    return text[:_LONGEST].rstrip(".")
