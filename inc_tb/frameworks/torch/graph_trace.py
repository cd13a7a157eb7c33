"""Who reads whose results in a graph, through the nodes that are no calls of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from inc_tb.frameworks.torch.graph_places import Place, Places
from inc_tb.frameworks.torch.graph_rounding import GraphRounding, is_choosing
from inc_tb.frameworks.torch.grids import quantization_of
from inc_tb.frameworks.torch.kinds import function_kind
from inc_tb.frameworks.torch.steps import Step, Trace, describe_module
from inc_tb.frameworks.torch.values import is_real, main_tensor

_EPS_AT = 7
"""Among the arguments of torch.ops.aten.batch_norm."""
_IN_PLACE = {"iadd", "imul", "isub", "itruediv", "ipow", "imatmul", "setitem"}


class _Origins(NamedTuple):
    """What a value comes from."""

    steps: set[int]
    inputs: set[str]
    is_dynamic: bool
    """It was rounded to a range that is found at run time."""


class GraphTracer:
    def __init__(self, places: Places) -> None:
        self.trace = Trace()
        self._places = places
        self._rounding = GraphRounding(places.modules)
        self._step_of: dict[fx.Node, int] = {}

    def visit(self, node: fx.Node, value: Any, weight: Any) -> None:
        """Told of each place in order, with what it made and the weights that it got."""
        self._note_mutations(node)
        result, place = main_tensor(value), self._places.at[node]
        if result is None or not is_real(result):
            return
        step = self._step(node, place, result)
        if isinstance(weight, Tensor):
            step.weight = weight.detach()
            step.weight_quantization = self._rounding.of_weight(place.weight_node, weight)
        if step.sources or step.reads or place.is_leaf:
            self.trace.steps.append(step)
            self._step_of[node] = step.index

    def _step(self, node: fx.Node, place: Place, result: Tensor) -> Step:
        step = Step(
            len(self.trace.steps), "", place.kind, place.path, place.module, not place.is_leaf,
            shape=tuple(result.shape), with_relu=place.with_relu, quantization=quantization_of(result),
        )  # fmt: skip
        computes = place.computes
        if function_kind(computes.target).name == "batch_norm" and len(computes.args) > _EPS_AT:
            step.eps = float(computes.args[_EPS_AT])
        self._find_sources(node, step)
        if place.module is not None:
            describe_module(step, place.module)
        return step

    def give_names(self, names: Mapping[fx.Node, str]) -> None:
        for node, index in self._step_of.items():
            self.trace.steps[index].name = names[node]

    def finish(self, graph: fx.Graph) -> None:
        """Now that all steps are known: who rounds what."""
        for node, index in self._step_of.items():
            step = self.trace.steps[index]
            if step.quantization is None:
                step.quantization, step.rounding = self._rounding.behind(node)
        for node in graph.nodes:
            if node.op == "placeholder":
                quantization, rounding = self._rounding.behind(node)
                if quantization is not None and rounding is not None:
                    self.trace.rounding[str(node.target)] = rounding
        origins: set[int] = set()
        for node in graph.output_node().all_input_nodes:
            origins.update(self._origins(node, set()).steps)
        self.trace.outputs = sorted(origins)

    def _find_sources(self, node: fx.Node, step: Step) -> None:
        sources: set[int] = set()
        reads: set[str] = set()
        seen: set[fx.Node] = set()
        for argument in node.all_input_nodes:
            found = self._origins(argument, seen)
            sources |= found.steps
            reads |= found.inputs
            if found.is_dynamic:
                step.is_dynamic = True
                step.reading = step.reading or self._rounding.at_run_time(argument)
        step.sources, step.reads = sorted(sources), sorted(reads)

    def _origins(self, node: fx.Node, seen: set[fx.Node]) -> _Origins:
        """Steps and inputs that a value comes from, through nodes that are no steps."""
        if node in self._step_of:
            return _Origins({self._step_of[node]}, set(), False)
        if node.op == "placeholder":
            return _Origins(set(), {str(node.target)}, False)
        sources: set[int] = set()
        inputs: set[str] = set()
        is_dynamic = is_choosing(node)
        seen.add(node)
        for argument in node.all_input_nodes:
            if argument not in seen:
                found = self._origins(argument, seen)
                sources |= found.steps
                inputs |= found.inputs
                is_dynamic |= found.is_dynamic
        return _Origins(sources, inputs, is_dynamic)

    def _note_mutations(self, node: fx.Node) -> None:
        changed = _changed_in_place(node, self._places.modules)
        if changed is not None:
            for origin in self._origins(changed, set()).steps:
                self.trace.steps[origin].is_mutated = True


def _changed_in_place(node: fx.Node, modules: Mapping[str, nn.Module]) -> fx.Node | None:
    """What a node reads and changes."""
    if node.op == "call_module":
        is_changing = bool(getattr(modules.get(str(node.target)), "inplace", False))
    elif isinstance(node.target, torch._ops.OpOverload):
        is_changing = node.target._schema.is_mutable
    else:
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        is_method = name.endswith("_") and not name.endswith("__")
        is_changing = is_method or name in _IN_PLACE or bool(node.kwargs.get("inplace"))
    return next(iter(node.all_input_nodes), None) if is_changing else None
