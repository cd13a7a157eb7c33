"""The reference's graph with a switch at everything that the quantized model rounds.

One placeholder, a mask, turns each of these sites on and off, so one session serves every subset. A tensor goes
through a fake quantization in one branch and is handed on in the other; of two tensors of weights one is handed on. The
branch that is off is not computed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from inc_tb.errors import ModelError
from inc_tb.frameworks.edges import before_softmax
from inc_tb.frameworks.feeds import split
from inc_tb.frameworks.ops import Array, Batch, Input, Quantization
from inc_tb.frameworks.protocols import Outputs, Switchable
from inc_tb.frameworks.tensorflow.adapter import fitted
from inc_tb.frameworks.tensorflow.engines import open_graph
from inc_tb.frameworks.tensorflow.failures import cannot_run
from inc_tb.frameworks.tensorflow.frozen import FrozenGraph
from inc_tb.frameworks.tensorflow.kinds import RESHAPES
from inc_tb.frameworks.tensorflow.library import tf
from inc_tb.frameworks.tensorflow.match import Matching
from inc_tb.frameworks.tensorflow.model import open_results
from inc_tb.frameworks.tensorflow.nodes import data_inputs, session_config
from inc_tb.frameworks.tensorflow.session import full_name
from inc_tb.frameworks.tensorflow.sites import OwnRange, Sites
from inc_tb.frameworks.tensorflow.source import as_reference, open_source

MASK = "inc_tb_mask"
_SOFTMAX = {"Softmax", "LogSoftmax"}
_PASSING = {*RESHAPES, "Transpose", "Cast"}
_LARGEST = 2**31 - 1
_KERAS_EPSILON = 1e-7


class TensorFlowSwitches(Switchable):
    """A pair of TensorFlow models of which the reference is a graph."""

    framework = "tensorflow"

    def __init__(self, reference: Any, quantized: Any) -> None:
        source = open_source(quantized)
        graph = open_graph(as_reference(source) if reference is None else reference)
        if not isinstance(graph, FrozenGraph):
            raise ModelError(
                f"{graph.name} is a TFLite file, whose kernels cannot be simulated; expected the graph that "
                "it was made of. Give the SavedModel, the Keras model or the frozen graph as the reference."
            )
        self._reference = graph
        self._matching = Matching(self._reference, open_graph(source))
        self._found = Sites(self._matching, self._reference)
        self.units, self.sites, self.notes = self._found.units, self._found.all, self._found.notes
        sizes = [i.shape[0] for i in self._reference.inputs if i.is_known and i.shape]
        self._at_once = next((n for n in sizes if n is not None), None)
        self.inputs: list[Input] = [
            i._replace(shape=(None, *i.shape[1:])) if i.shape else i for i in self._reference.inputs
        ]
        self._place = {site.name: i for i, site in enumerate(self.sites)}
        self._quantized = source
        self._session: Any = None
        self._moved: dict[str, str] = {}
        self._real: Any = None

    def run(self, batch: Batch, on: Collection[str]) -> Outputs:
        if self._session is None:
            self._session = self._opened()
        mask = np.zeros(len(self._place), bool)
        mask[[self._place[name] for name in on]] = True
        results = [self._moved.get(root, root) for root in self._reference.outputs]
        roots = [before_softmax(root, self._maker, _SOFTMAX, _PASSING) for root in self._reference.outputs]
        scores = [self._moved.get(root, root) for root in roots]
        feeds = fitted(batch, self.inputs, self._at_once)
        rows = max((len(a) for a in feeds.values() if a.ndim), default=1)
        parts = [self._fetch([*scores, *results], part, mask) for part in split(feeds, self._at_once, rows)]
        arrays = [np.concatenate(a) if len(parts) > 1 and a[0].ndim else a[0] for a in zip(*parts, strict=True)]
        return Outputs(arrays[: len(scores)], arrays[len(scores) :])

    def _fetch(self, names: Sequence[str], feeds: Batch, mask: Array) -> list[Array]:
        given = {full_name(self._reference.input_roots[name]): array for name, array in feeds.items()}
        try:
            arrays = self._session.run([full_name(n) for n in names], {**given, f"{MASK}:0": mask})
            return [np.asarray(a) for a in arrays]
        except (tf.errors.OpError, ValueError, TypeError) as error:
            raise cannot_run(self._reference.name, "TensorFlow", error) from error

    def run_real(self, batch: Batch) -> list[Array]:
        if self._real is None:
            self._real = open_results(self._quantized)
        names = self._matching.input_names
        arrays = self._real({names.get(name, name): array for name, array in batch.items()})
        theirs = self._matching.quantized.outputs
        places = [self._matching.points.get(root) for root in self._reference.outputs]
        return [arrays[theirs.index(p)] if p in theirs else arrays[i] for i, p in enumerate(places)]

    def _maker(self, root: str) -> tuple[str, str] | None:
        step = self._reference.producer.get(root)
        return None if step is None or not step.reads else (step.type, step.reads[0])

    # the graph

    def _opened(self) -> Any:
        graph_def = tf.compat.v1.GraphDef()
        graph_def.CopyFrom(self._reference.source.graph_def)
        edit = _Edit(graph_def)
        edit.add_mask(len(self._place))
        rounding = self._found.rounding
        self._moved = {}
        for site, (root, grid) in rounding.tensors.items():
            self._moved[root] = edit.add_rounding(self._place[site], root, grid, self._dtype(root))
        originals = list(self._reference.source.graph_def.node)
        nodes = {node.name: node for node in graph_def.node}
        reads = {(node, root): (site, grid) for site, (root, node, grid) in rounding.reads.items()}
        weights = {(node, tensor): (site, array) for site, (node, tensor, array) in rounding.weights.items()}
        for original in originals:
            node = nodes[original.name]
            controls = [i for i in original.input if i.startswith("^")]
            made = []
            for name in data_inputs(original):
                root = self._reference.root.get(name, name)
                read = self._moved.get(root, name)
                if (node.name, root) in reads:
                    site, read_as = reads[node.name, root]
                    read = edit.add_rounding(self._place[site], read, read_as, self._dtype(root))
                elif (node.name, name) in weights:
                    site, array = weights[node.name, name]
                    read = edit.add_choice(self._place[site], name, array)
                made.append(read)
            node.input[:] = made + controls
        if graph_def.ByteSize() >= _LARGEST:
            raise ModelError(
                f"{self._reference.name}: over 2 GB with the rounded weights beside its own, too large to be "
                "simulated. Use a strategy without simulation, such as basic."
            )
        graph = tf.Graph()
        with graph.as_default():
            tf.import_graph_def(graph_def, name="")
        return tf.compat.v1.Session(graph=graph, config=session_config())

    def _dtype(self, root: str) -> Any:
        return self._reference.tensor(root).dtype


class _Edit:
    """Adds nodes to a graph."""

    def __init__(self, graph_def: Any) -> None:
        self._graph_def = graph_def

    def add_mask(self, count: int) -> None:
        """One boolean a site."""
        placeholder = self._graph_def.node.add(name=MASK, op="Placeholder")
        placeholder.attr["dtype"].type = tf.bool.as_datatype_enum
        if count:
            placeholder.attr["shape"].shape.dim.add(size=count)
            switches = self._graph_def.node.add(name=f"{MASK}/switches", op="Unpack", input=[MASK])
            switches.attr["num"].i = count
            switches.attr["T"].type = tf.bool.as_datatype_enum

    def add_rounding(self, place: int, source: str, grid: Quantization | OwnRange, dtype: Any) -> str:
        name = f"inc_tb_{place}"
        self._switch(name, place, source, dtype)
        if isinstance(grid, OwnRange):
            self._dynamic(name, dtype, grid)
        else:
            self._fixed(name, grid)
        return self._merge(name, [name, f"{name}/rounded"], dtype)

    def add_choice(self, place: int, source: str, instead: Array) -> str:
        name = f"inc_tb_{place}"
        constant = self._graph_def.node.add(name=f"{name}/instead", op="Const")
        tensor = tf.make_tensor_proto(instead)
        constant.attr["dtype"].type = tensor.dtype
        constant.attr["value"].tensor.CopyFrom(tensor)
        dtype = tf.dtypes.as_dtype(tensor.dtype)
        self._switch(name, place, source, dtype)
        self._switch(f"{name}/other", place, constant.name, dtype)
        return self._merge(name, [name, f"{name}/other:1"], dtype)

    def _switch(self, name: str, place: int, source: str, dtype: Any) -> None:
        pred = f"{MASK}/switches:{place}" if place else f"{MASK}/switches"
        node = self._graph_def.node.add(name=name, op="Switch", input=[source, pred])
        node.attr["T"].type = dtype.as_datatype_enum

    def _merge(self, name: str, inputs: Sequence[str], dtype: Any) -> str:
        node = self._graph_def.node.add(name=f"{name}/chosen", op="Merge", input=list(inputs))
        node.attr["T"].type = dtype.as_datatype_enum
        node.attr["N"].i = len(inputs)
        return str(node.name)

    def _fixed(self, name: str, grid: Quantization) -> None:
        limits = grid.limits
        assert limits is not None
        node = self._graph_def.node.add(name=f"{name}/rounded", op="FakeQuantWithMinMaxArgs", input=[f"{name}:1"])
        node.attr["min"].f, node.attr["max"].f = float(limits[0].flat[0]), float(limits[1].flat[0])
        steps = grid.high - grid.low + 1
        node.attr["num_bits"].i = max(2, int(np.ceil(np.log2(steps))))
        node.attr["narrow_range"].b = steps & (steps - 1) != 0

    def _dynamic(self, name: str, dtype: Any, found: OwnRange) -> None:
        with tf.Graph().as_default() as graph:
            x = tf.compat.v1.placeholder(dtype, name="x")
            axes = tf.range(1, tf.rank(x)) if found.axes is None else tf.constant(found.axes)
            if found.is_symmetric:  # as Keras does it
                scale = 127 / (tf.reduce_max(tf.abs(x), axes, keepdims=True) + _KERAS_EPSILON)
                tf.divide(tf.clip_by_value(tf.round(x * scale), -127, 127), scale, name="rounded")
            else:  # as TFLite does it
                low = tf.minimum(tf.reduce_min(x, axes, keepdims=True), 0)
                high = tf.maximum(tf.reduce_max(x, axes, keepdims=True), 0)
                scale = tf.where(high > low, (high - low) / 255, tf.ones_like(high))
                zero = tf.clip_by_value(tf.round(-128 - low / scale), -128, 127)
                whole = tf.clip_by_value(tf.round(x / scale) + zero, -128, 127)
                tf.multiply(whole - zero, scale, name="rounded")
        for node in graph.as_graph_def().node:
            if node.name != "x":
                inputs = [f"{name}:1" if i == "x" else f"{name}/{i}" for i in node.input]
                controls = [] if inputs else [f"^{name}/alive"]  # constants belong to the branch, too
                added = self._graph_def.node.add()
                added.CopyFrom(node)
                added.name, added.input[:] = f"{name}/{node.name}", [*inputs, *controls]
        alive = self._graph_def.node.add(name=f"{name}/alive", op="Identity", input=[f"{name}:1"])
        alive.attr["T"].type = dtype.as_datatype_enum
