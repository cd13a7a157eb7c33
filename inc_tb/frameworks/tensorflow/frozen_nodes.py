"""The nodes of a frozen graph, and the constants that they hold."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import Any

import numpy as np

from inc_tb.errors import ModelError
from inc_tb.frameworks.ops import Array
from inc_tb.frameworks.tensorflow.forms import COMPOSITE, Frozen, first_line, source_of
from inc_tb.frameworks.tensorflow.graph import Graph, Step
from inc_tb.frameworks.tensorflow.grids import (
    attribute,
)
from inc_tb.frameworks.tensorflow.library import tf
from inc_tb.frameworks.tensorflow.nodes import (
    data_inputs,
    in_order,
    name_of,
    plain,
    session_config,
)
from inc_tb.frameworks.tensorflow.runtime import find_run_time_roundings

_CONSTANTS = {"Const", "HostConst"}
_CALLS = {"PartitionedCall", "StatefulPartitionedCall"}


class FrozenNodes(Graph):
    """A graph that TensorFlow has opened, before it is read as steps."""

    def __init__(self, source: Frozen) -> None:
        super().__init__(source.name)
        self.source = source
        self.layers = source.layers
        self.tf_graph = self._imported()
        self._tensors: dict[str, Any] = {}
        self.nodes = {node.name: node for node in in_order(source.graph_def.node)}
        self.readers: dict[str, list[Any]] = defaultdict(list)
        for node in self.nodes.values():
            for name in dict.fromkeys(data_inputs(node)):
                self.readers[name].append(node)
        self.constants: set[str] = set()
        self._computed: set[str] = set()
        """Nodes that make constants of constants."""
        self._made: dict[str, Array] = {}
        self._skipped: set[str] = set()
        self.part_of: dict[str, str] = {}
        """Nodes behind the one that a step is named by, which make its result of its sums -> the step."""
        self._run_time = find_run_time_roundings(self.nodes, data_inputs)
        """Where Keras' int8 layers round what they read to a range of its own: node -> what it is of."""
        scales = {name for rounding in self._run_time.values() for name in rounding.nodes} - set(self._run_time)
        self._auxiliary = {out for name in scales for out in self._outputs(self.nodes[name])}
        self._skipped |= scales

    def _imported(self) -> Any:
        graph = tf.Graph()
        try:
            with graph.as_default():
                tf.import_graph_def(self.source.graph_def, name="")
        except (ValueError, TypeError, tf.errors.OpError) as error:
            raise ModelError(f"{self.name}: TensorFlow cannot open it: {first_line(error)}.") from error
        return graph

    def tensor(self, name: str) -> Any:
        if name not in self._tensors:
            self._tensors[name] = self.tf_graph.get_tensor_by_name(name if ":" in name else f"{name}:0")
        return self._tensors[name]

    def _outputs(self, node: Any) -> list[str]:
        return [name_of(t.name) for t in self.tf_graph.get_operation_by_name(node.name).outputs]

    def _composite(self, node: Any) -> str:
        found = COMPOSITE.match(attribute(node, "f").func.name) if node.op in _CALLS else None
        return found[1] if found is not None else ""

    def raw(self, name: str) -> Array:
        """As it is stored."""
        if name not in self._made:
            node = self.nodes[source_of(name)[0]]
            while node.op in ("Identity", "StopGradient"):
                node = self.nodes[source_of(data_inputs(node)[0])[0]]
            if node.op in _CONSTANTS:
                self._made[name] = plain(tf.make_ndarray(attribute(node, "value").tensor))
            else:
                self._evaluate(name)
        return self._made[name]

    def _evaluate(self, name: str) -> None:
        """With the others that steps read: a run takes longer than what it is to do."""
        read = {c for step in self.steps for c in step.constants if source_of(c)[0] in self._computed}
        names = [name, *sorted(read - {name} - set(self._made))]
        arrays = self._evaluator.run([self.tensor(n) for n in names])
        self._made.update(zip(names, map(plain, arrays), strict=True))

    @cached_property
    def _evaluator(self) -> Any:
        """One for all constants: opening a session takes longer than what it is to do."""
        return tf.compat.v1.Session(graph=self.tf_graph, config=session_config())

    def constant(self, name: str) -> Array:
        return self.raw(name)

    def shape_of(self, root: str) -> tuple[int | None, ...] | None:
        shape = self.tensor(root).shape
        return None if shape.rank is None else tuple(shape.as_list())

    def weight_shape(self, step: Step) -> tuple[int, ...]:
        return tuple(self.tensor(step.weight).shape.as_list()) if step.weight else ()

    def run_time_axes(self, step: Step) -> tuple[int, ...]:
        """Over which a layer of Keras seeks the largest magnitude of what it reads."""
        rounded = (source_of(i)[0] for i in data_inputs(self.nodes[step.name]))
        nodes = next(self._run_time[name].nodes for name in rounded if name in self._run_time)
        largest = next((self.nodes[name] for name in nodes if self.nodes[name].op == "Max"), None)
        return tuple(np.ravel(self.raw(data_inputs(largest)[1])).tolist()) if largest is not None else (-1,)

    def _known(self, name: str) -> Array | None:
        return self.raw(name) if name in self.constants else None

    def _has_bias(self, node: Any) -> bool:
        return "WithBias" in node.op or any(s == b"BiasAdd" for s in attribute(node, "fused_ops").list.s)

    def _is_kernel(self, node: Any) -> bool:
        return "Quantize" in node.op or node.op.startswith("Requantize")
