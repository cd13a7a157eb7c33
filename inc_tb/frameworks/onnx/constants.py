"""The constants of a model that is being changed."""

from __future__ import annotations

import onnx
from onnx import numpy_helper

from inc_tb.frameworks.onnx.model import Model, all_inputs
from inc_tb.frameworks.ops import Array


class Constants:
    """By the op that reads one, and which of its inputs it is. What others read as well stays theirs."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._nodes = {node.name: node for node in model.nodes}
        self._changed: dict[tuple[str, int], Array] = {}

    def __getitem__(self, place: tuple[str, int]) -> Array:
        name, at = place
        return self._changed[place] if place in self._changed else self._model.constant(self._nodes[name].input[at])

    def __setitem__(self, place: tuple[str, int], value: Array) -> None:
        self._changed[place] = value

    def written(self) -> onnx.ModelProto:
        """The model with all changes."""
        proto, replaced = self._model.proto, set()
        taken = {name for node in proto.graph.node for name in (*node.input, *node.output)}
        for (op, at), value in self._changed.items():
            node = self._nodes[op]
            old = node.input[at]
            new = old
            if old not in self._model.initializers or len(self._model.consumers[old]) > 1:
                new = f"{old}/{op}"
                while new in taken:
                    new += "#"
                taken.add(new)
                node.input[at] = new
            replaced.add(old)
            self._put(new, value)
        self._drop(replaced)
        return proto

    def _put(self, name: str, value: Array) -> None:
        stored = self._model.initializers.get(name) or self._model.proto.graph.initializer.add()
        stored.CopyFrom(numpy_helper.from_array(value, name))

    def _drop(self, names: set[str]) -> None:
        """What nobody reads any more, and what that was made of."""
        graph = self._model.proto.graph
        while names:
            read = {name for node in graph.node for name in all_inputs(node)} | {o.name for o in graph.output}
            unread = names - read
            names = set()
            for node in [n for n in graph.node if set(n.output) & unread and not set(n.output) & read]:
                names.update(all_inputs(node))
                graph.node.remove(node)
            for stored in [t for t in graph.initializer if t.name in unread]:
                graph.initializer.remove(stored)
