"""What a sample takes: the model is run on one, and tells the shape of every tensor, whatever the file says of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import helper

from inc_tb.frameworks.onnx.graph import Graph
from inc_tb.frameworks.onnx.model import all_inputs, with_shapes
from inc_tb.frameworks.onnx.sessions import Session
from inc_tb.frameworks.ops import Batch

_TELLS = "/inc_tb_shape"


class Gauge:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._made = [root for root in graph.types if root in graph.model.producer]

    def measure(self, feeds: Batch) -> dict[str, int]:
        """Bytes of each tensor of real numbers, as they are compared: half types as float32."""
        shapes = self._session.run(feeds)[: len(self._made)]
        found = dict(zip(self._made, (int(np.prod(shape)) for shape in shapes), strict=True))
        found |= {name: feeds[name].size for name in self._graph.types if name in feeds}
        return {root: size * self._width(root) for root, size in found.items()}

    def live_bytes(self, sizes: Mapping[str, int]) -> int:
        """The most that is held at once where nothing is fetched: what has been made and will still be read."""
        root, nodes = self._graph.root, self._graph.model.nodes
        last = {root.get(name, name): at for at, node in enumerate(nodes) for name in all_inputs(node)}
        ends: dict[int, list[str]] = {}
        for name, at in last.items():
            ends.setdefault(at, []).append(name)
        held, most = 0, 0
        for at, node in enumerate(nodes):
            held += sum(sizes.get(out, 0) for out in node.output)
            most = max(most, held)
            held -= sum(sizes.get(name, 0) for name in ends.get(at, ()) if name in self._graph.model.producer)
        return most

    def results(self, feeds: Batch) -> list[Any]:
        return self._session.run(feeds)[len(self._made) :]

    @cached_property
    def _session(self) -> Session:
        model = self._graph.model
        told = [root + _TELLS for root in self._made]
        nodes = [helper.make_node("Shape", [root], [name]) for root, name in zip(self._made, told, strict=True)]
        return Session(model, model.with_outputs([*told, *model.outputs], nodes), arena=False)

    def _width(self, root: str) -> int:
        return 8 if self._graph.types[root] == onnx.TensorProto.DOUBLE else 4


def told_bytes(graph: Graph, feeds: Batch) -> dict[str, int] | None:
    """The bytes of each tensor without a run, where all shapes follow from those of the feeds."""
    light = graph.without_weights()
    for info in light.graph.input:
        shape = feeds[info.name].shape if info.name in feeds else ()
        for dim, length in zip(info.type.tensor_type.shape.dim, shape, strict=False):
            dim.dim_value = length
    inferred = with_shapes(light)
    found = {}
    for info in [*inferred.graph.value_info, *inferred.graph.output, *inferred.graph.input]:
        tensor = info.type.tensor_type
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            found[info.name] = 4 * int(np.prod([dim.dim_value for dim in tensor.shape.dim]))
    return found if set(graph.types) <= set(found) else None
