"""Graph modules of FX and torch.export, run as a copy of their graph that stops at every call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, fx, nn

from inc_tb.frameworks.torch.arguments import call
from inc_tb.frameworks.torch.graph_places import Places
from inc_tb.frameworks.torch.graph_trace import GraphTracer
from inc_tb.frameworks.torch.steps import Call, Trace, Visit
from inc_tb.frameworks.torch.values import main_tensor
from inc_tb.records import GraphNode

_VISIT = "_inc_tb_visit"


class _Visitor(nn.Module):  # type: ignore[misc]
    """A node of the instrumented graph, which may run in several threads at once."""

    def __init__(self) -> None:
        super().__init__()
        self.here = threading.local()

    def forward(self, index: int, value: Any, weight: Any) -> Any:
        return self.here.visit(index, value, weight)


class GraphRunner:
    def __init__(self, model: fx.GraphModule, leaves: set[str] | None = None) -> None:
        self.model = model
        self._places = Places(model, leaves)
        self.leaves = self._places.leaves
        """Paths of the modules that are ops."""
        self._nodes = list(self._places.at)
        self._names = self._places.names(self._nodes)
        self._instrumented, self._visitor = self._instrument()
        self.modules = dict(self._instrumented.named_modules(remove_duplicate=False))
        """Those that really run, by their paths."""

    def run(self, inputs: Mapping[str, Tensor], visit: Visit) -> Any:
        """The model's outputs; `visit` is called for every call."""

        def at(index: int, value: Any, weight: Any) -> Any:
            node = self._nodes[index]
            place = self._places.at[node]
            return visit(Call(self._names.get(node, ""), place.kind, place.module, place.path, (), value))

        return self._run(inputs, at)

    def trace(self, inputs: Mapping[str, Tensor]) -> Trace:
        found = GraphTracer(self._places)
        real: list[fx.Node] = []

        def at(index: int, value: Any, weight: Any) -> Any:
            node = self._nodes[index]
            if main_tensor(value) is not None:
                real.append(node)
            found.visit(node, value, weight)
            return value

        self._run(inputs, at)
        self._names = self._places.names(real)  # functions of whole numbers are no ops, and do not count
        found.give_names(self._names)
        found.finish(self.model.graph)
        return found.trace

    def graph(self) -> list[GraphNode]:
        """The ops and what they read, without running anything."""
        names = self._names

        def sources(node: fx.Node, seen: set[fx.Node]) -> Iterator[str]:
            for argument in node.all_input_nodes:
                if argument in names:
                    yield names[argument]
                elif argument not in seen:
                    seen.add(argument)
                    yield from sources(argument, seen)

        return [
            GraphNode(names[node], place.kind, list(dict.fromkeys(sources(node, set()))), "", place.path)
            for node, place in self._places.at.items()
        ]

    def op_of(self, node: fx.Node) -> str:
        """The op that a node belongs to; "" where it is in none."""
        if node in self._names:
            return self._names[node]
        leaf = self._places.leaf(node)
        return next((n for end, n in self._names.items() if leaf and self._places.leaf(end) == leaf), "")

    def kind_of(self, op: str) -> str:
        return next(self._places.at[node].kind for node, name in self._names.items() if name == op)

    def copied(self) -> tuple[fx.GraphModule, dict[fx.Node, fx.Node]]:
        """A graph of its own with the same modules, and where each node is in it."""
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        output = graph.graph_copy(self.model.graph, copies)
        graph.output(output)
        graph.set_codegen(self.model.graph._codegen)
        made = fx.GraphModule(self.model, graph)
        for name in ("_in_spec", "_out_spec"):
            if hasattr(self.model, name):
                setattr(made, name, getattr(self.model, name))
        made.graph.output_node().meta.update(self.model.graph.output_node().meta)
        return made, copies

    def _run(self, inputs: Mapping[str, Tensor], at: Callable[[int, Any, Any], Any]) -> Any:
        self._visitor.here.visit = at
        return call(self._instrumented, inputs)

    def _instrument(self) -> tuple[fx.GraphModule, _Visitor]:
        made, copies = self.copied()
        visitor = _Visitor()
        made.add_submodule(_VISIT, visitor)
        for index, (node, place) in enumerate(self._places.at.items()):
            copy, weight = copies[node], place.weight_node
            with made.graph.inserting_after(copy):
                visit = made.graph.call_module(_VISIT, (index, copy, None if weight is None else copies[weight]))
            copy.replace_all_uses_with(visit, delete_user_cb=lambda user, own=visit: user is not own)
        made.recompile()
        return made, visitor
