"""Rounding to a range that is found while the model runs, as Keras' int8 layers do it: round(x * 127 / max|x|)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from inc_tb.frameworks.tensorflow.forms import source_of
from inc_tb.frameworks.tensorflow.library import tf

_SCALING = {"Abs", "Max", "Min", "Maximum", "AddV2", "Add", "RealDiv", "Mul", "Cast", "Identity", "Reciprocal", "Sub"}
_CONSTANT = {"Const", "HostConst"}
_Inputs = Callable[[Any], list[str]]


class RunTimeRounding(NamedTuple):
    source: str
    """The tensor that is rounded."""
    nodes: frozenset[str]
    """All that it takes."""


def find_run_time_roundings(nodes: Mapping[str, Any], inputs: _Inputs) -> dict[str, RunTimeRounding]:
    """By the node that gives the whole numbers."""
    found = {}
    for node in nodes.values():
        if node.op == "Cast" and node.attr["DstT"].type == tf.int8.as_datatype_enum:
            rounding = _rounding(node, nodes, inputs)
            if rounding is not None:
                found[node.name] = rounding
    return found


def _rounding(cast: Any, nodes: Mapping[str, Any], inputs: _Inputs) -> RunTimeRounding | None:
    on_the_way = [cast]
    at = nodes[source_of(cast.input[0])[0]]
    while at.op in ("Maximum", "Minimum", "Identity"):
        on_the_way.append(at)
        at = nodes[source_of(at.input[0])[0]]
    if at.op != "Round":
        return None
    product = nodes[source_of(at.input[0])[0]]
    on_the_way += [at, product]
    if product.op not in ("Mul", "RealDiv"):
        return None
    first, second = inputs(product)[:2]
    for source, scale in ((first, second), (second, first)):
        made_of = _scale_of(source, scale, nodes, inputs)
        if made_of:
            return RunTimeRounding(source, frozenset(node.name for node in on_the_way) | made_of)
    return None


def _scale_of(source: str, scale: str, nodes: Mapping[str, Any], inputs: _Inputs) -> frozenset[str]:
    """The nodes that make the scale out of the tensor; none where it is something else."""
    found: set[str] = set()
    waiting, is_reached = [scale], False
    while waiting:
        name = waiting.pop()
        if name == source:
            is_reached = True
            continue
        node = nodes[source_of(name)[0]]
        if node.op in _CONSTANT or node.name in found:
            continue
        if node.op not in _SCALING:
            return frozenset()
        found.add(node.name)
        # The axes of a maximum are no part of it.
        waiting += inputs(node)[:1] if node.op in ("Max", "Min") else inputs(node)
    return frozenset(found) if is_reached else frozenset()
