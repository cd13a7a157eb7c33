"""Runs a frozen graph, as it is or cut into its ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from inc_tb.frameworks.ops import Array, Batch, Quantization
from inc_tb.frameworks.rounding import dequantize, quantize, rounded
from inc_tb.frameworks.tensorflow.failures import cannot_run
from inc_tb.frameworks.tensorflow.frozen import FrozenGraph, bytes_of
from inc_tb.frameworks.tensorflow.library import tf
from inc_tb.frameworks.tensorflow.nodes import adds_to, data_inputs, session_config
from inc_tb.frameworks.tensorflow.quiet import quiet


class FrozenEngine:
    """Fulfils graph.Engine."""

    def __init__(self, graph: FrozenGraph) -> None:
        self.graph = graph
        self._sums = _summands(graph)
        self._copies = {root: f"inc_tb_copy_{i}" for i, root in enumerate(self._sums)}
        self._session = self._opened(self._watched()) if self._sums else opened(graph.tf_graph)
        self._rounded = {root: f"inc_tb_rounded_{i}" for i, root in enumerate(_rounded_behind(graph))}
        self._pieces: tuple[frozenset[str], Any, dict[str, str]] | None = None

    def most_samples(self) -> int | None:
        firsts = [i.shape[0] for i in self.graph.inputs if i.is_known and i.shape]
        return next((n for n in firsts if n is not None), None)

    def bytes_by_root(self) -> Mapping[str, int]:
        return {root: bytes_of(self.graph, root) for root in self.graph.tensors}

    def run(self, feeds: Batch, roots: Sequence[str]) -> dict[str, Array]:
        reads = {root: self._copies.get(root) or self.graph.tensors[root].read for root in roots}
        made = self._fetch(self._session, reads, {self.graph.input_roots[n]: array for n, array in feeds.items()})
        final = {root for root in roots if reads[root] not in (root, self._copies.get(root))}
        return {root: self._as_read(root, array, root in final) for root, array in made.items()}

    def _as_read(self, root: str, array: Array, is_final: bool) -> Array:
        value = self.graph.tensors[root]
        grid = value.quantization if _is_fixed(value.quantization) else None
        if array.dtype.names:
            array = array.view(array.dtype[0])
        if array.dtype.kind in "iu" or (root in self._copies and value.is_integer):
            return dequantize(array, grid) if grid is not None else array
        if not is_final and grid is not None and not value.is_integer:
            return rounded(array, grid)  # its readers round it themselves
        return np.asarray(array, np.float32) if array.dtype.kind not in "fb" or array.itemsize == 2 else array

    def run_isolated(self, feeds: Batch, given: Mapping[str, Array], roots: Sequence[str]) -> dict[str, Array]:
        cut = frozenset(root for root in given if root in self.graph.producer and self._can_be_fed(root))
        if self._pieces is None or self._pieces[0] != cut:
            self._pieces = cut, *self._cut_up(cut)
        _, session, places = self._pieces
        arrays = {places[root]: self._stored(root, given[root]) for root in cut}
        arrays |= {self.graph.input_roots[name]: array for name, array in feeds.items()}
        reads = {root: self._rounded.get(root, root) for root in roots}
        made = self._fetch(session, reads, arrays)
        return {root: self._as_read(root, array, root in self._rounded) for root, array in made.items()}

    def _can_be_fed(self, root: str) -> bool:
        value = self.graph.tensors[root]
        return not value.is_integer or _is_fixed(value.quantization)

    def _stored(self, root: str, array: Array) -> Array:
        """As the graph holds it."""
        value, dtype = self.graph.tensors[root], self.graph.tensor(root).dtype.as_numpy_dtype
        if value.is_integer and value.quantization is not None:
            whole = np.ascontiguousarray(quantize(array, value.quantization))
            dtype = np.dtype(dtype)
            return whole.astype(dtype[0]).view(dtype) if dtype.names else whole.astype(dtype)
        return np.asarray(array, dtype)

    def _cut_up(self, cut: frozenset[str]) -> tuple[Any, dict[str, str]]:
        """The graph with a placeholder wherever one of these values is read."""
        places = {root: f"inc_tb_cut_{i}" for i, root in enumerate(sorted(cut))}
        graph_def = self._copied()
        for node in list(graph_def.node):
            controls = [i for i in node.input if i.startswith("^")]
            reads = data_inputs(node)
            node.input[:] = [places.get(name, name) for name in reads] + controls
            for root in self._sums:
                if root in cut and node.name in self._sums[root]:
                    fresh = _add_round_trip(
                        graph_def, places[root], f"{node.name}/inc_tb", self.graph.tensor(root).dtype
                    )
                    node.input[:] = [fresh if name == root else places.get(name, name) for name in reads] + controls
        for root, name in self._rounded.items():
            node = graph_def.node.add()
            node.CopyFrom(self.graph.nodes[self.graph.tensors[root].read])
            node.name = name
            node.input[:] = [root, *data_inputs(node)[1:]]
        for root, place in places.items():
            placeholder = graph_def.node.add(name=place, op="Placeholder")
            placeholder.attr["dtype"].type = self.graph.tensor(root).dtype.as_datatype_enum
        return self._opened(graph_def), places

    def _watched(self) -> Any:
        """The graph with a copy of every value that a kernel adds to in its place, made before it does."""
        graph_def = self._copied()
        for root, name in self._copies.items():
            _add_floats(graph_def, root, name, self.graph.tensor(root).dtype)
        for node in graph_def.node:
            node.input.extend(f"^{name}" for root, name in self._copies.items() if node.name in self._sums[root])
        return graph_def

    def _copied(self) -> Any:
        graph_def = tf.compat.v1.GraphDef()
        graph_def.CopyFrom(self.graph.source.graph_def)
        return graph_def

    def _opened(self, graph_def: Any) -> Any:
        graph = tf.Graph()
        with graph.as_default():
            tf.import_graph_def(graph_def, name="")
        return opened(graph)

    def _fetch(self, session: Any, wanted: Mapping[str, str], given: Mapping[str, Array]) -> dict[str, Array]:
        try:
            arrays = session.run([full_name(t) for t in wanted.values()], {full_name(t): a for t, a in given.items()})
        except (tf.errors.OpError, ValueError, TypeError) as error:
            raise cannot_run(self.graph.name, "TensorFlow", error) from error
        return {root: np.asarray(array) for root, array in zip(wanted, arrays, strict=True)}


def opened(graph: Any) -> Any:
    with quiet():
        return tf.compat.v1.Session(graph=graph, config=session_config())


def _summands(graph: FrozenGraph) -> dict[str, set[str]]:
    """Values that a kernel adds its result to in place, and the kernels: they crash where another holds the value."""
    found: dict[str, set[str]] = {}
    for node in graph.nodes.values():
        for name in data_inputs(node)[2:] if adds_to(node) else ():
            if name in graph.root:
                found.setdefault(name, set()).add(node.name)
    return found


def _rounded_behind(graph: FrozenGraph) -> list[str]:
    """Values that one node makes of what the op itself gives."""
    found = [v for v in graph.tensors.values() if v.read != v.root and not v.is_integer and v.read in graph.nodes]
    return [v.root for v in found if data_inputs(graph.nodes[v.read])[0] == v.root]


def _add_floats(graph_def: Any, source: str, name: str, dtype: Any) -> None:
    """The same numbers in memory of their own; whole numbers as floats."""
    if not dtype.is_quantized:
        _add_number(graph_def, f"{name}/one", 1.0)
        node = graph_def.node.add(name=name, op="Mul", input=[source, f"{name}/one"])
        node.attr["T"].type = dtype.as_datatype_enum
        return
    reach = float(np.iinfo(np.dtype(dtype.as_numpy_dtype)[0]).max)
    for end, value in (("low", -reach if dtype == tf.qint8 else 0.0), ("high", reach)):
        _add_number(graph_def, f"{name}/{end}", value)
    node = graph_def.node.add(name=name, op="Dequantize", input=[source, f"{name}/low", f"{name}/high"])
    node.attr["T"].type = dtype.as_datatype_enum
    node.attr["mode"].s = b"SCALED"


def _add_round_trip(graph_def: Any, source: str, name: str, dtype: Any) -> str:
    """The same numbers in memory of their own."""
    if not dtype.is_quantized:
        _add_floats(graph_def, source, name, dtype)
        return name
    _add_floats(graph_def, source, f"{name}_float", dtype)
    node = graph_def.node.add(name=name, op="QuantizeV2")
    node.input.extend([f"{name}_float", f"{name}_float/low", f"{name}_float/high"])
    node.attr["T"].type = dtype.as_datatype_enum
    node.attr["mode"].s = b"SCALED"
    node.attr["round_mode"].s = b"HALF_TO_EVEN"
    return name


def _add_number(graph_def: Any, name: str, value: float) -> None:
    node = graph_def.node.add(name=name, op="Const")
    node.attr["dtype"].type = tf.float32.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.float32))


def full_name(tensor: str) -> str:
    return tensor if ":" in tensor else f"{tensor}:0"


def _is_fixed(quantization: Quantization | None) -> bool:
    return quantization is not None and quantization.scale is not None
