"""The adapter against numbers that the test itself fetches from both models and works out with plain numpy.

Which tensor belongs to which is written down here: TFLite files have the ops of the graph in the same order, fake
quantization and Neural Compressor keep the names, and quantize_saved_model has the name of the layer in its own names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import inc_tb
from inc_tb.frameworks.ops import Pair
from inc_tb.frameworks.tensorflow.adapter import TensorFlowAdapter
from inc_tb.frameworks.tensorflow.engines import open_engine
from inc_tb.frameworks.tensorflow.quiet import quiet
from inc_tb.measure.diagnosis import Diagnosis
from tests.frameworks import tensorflow_zoo as zoo
from tests.frameworks.tensorflow_zoo import Array, Feeds, tf

raw = tf.raw_ops
TOLERANCE = 1e-5
LAST_DIGIT_DB = 120
"""Where nothing is rounded, the models differ in the last digits of float32, which are not the same twice."""
ERRORS = ("mse", "sqnr_db", "max_abs", "worst_channel")
HARD = {
    "v0/cg/conv0/Conv2D": "v0/cg/conv0/Relu", "v0/cg/conv1/pad": "v0/cg/conv1/pad",
    "v0/cg/conv1/Conv2D": "v0/cg/conv1/Relu", "v0/dw/depthwise": "v0/dw/Relu", "v0/pw/Conv2D": "v0/pw/BiasAdd",
    "v0/add": "v0/add_relu", "v0/cg/conv5/Conv2D": "v0/cg/conv5/Relu", "v0/avgpool": "v0/avgpool",
    "v0/flat": "v0/flat", "v0/fc1/MatMul": "v0/fc1/Relu", "v0/fc2/MatMul": "v0/fc2/BiasAdd",
}  # fmt: skip
"""Op -> the tensor behind which it is compared: its own output, or that of the last op that is folded into it."""
HARD_WEIGHTS = {
    **{f"v0/{name}/Conv2D": f"v0/{name}/kernel" for name in ("cg/conv0", "cg/conv1", "pw", "cg/conv5")},
    "v0/dw/depthwise": "v0/dw/kernel", **{f"v0/{name}/MatMul": f"v0/{name}/MatMul/b" for name in ("fc1", "fc2")},
}  # fmt: skip
EVERY_HARD_OP = [n.name for n in zoo.hard().node if n.op not in ("Const", "Placeholder", "Identity")]
IN_KERAS = "net_1/"
KERAS = {
    "conv0_1/convolution": "act0_1/Relu6", "dw_1/depthwise": "bn1_1/batchnorm/add_1", "hs_1/mul": "hs_1/mul",
    "pw_1/convolution": "pw_1/BiasAdd", "add_1/Add": "add_1/Add", "gap_1/Mean": "gap_1/Mean",
    "fc_1/MatMul": "fc_1/BiasAdd", "fc_1/Softmax": "fc_1/Softmax",
}  # fmt: skip
KERAS_SWISH = {f"hs_1/{name}": f"hs_1/{name}" for name in ("add", "Relu6", "truediv")}


class Grid(NamedTuple):
    scale: Array
    zero: Array
    low: int
    high: int

    def stored(self, values: Array) -> Array:
        return zoo.quantized(values, self.scale, self.zero, (self.low, self.high))

    def real(self, whole: Array) -> Array:
        return zoo.dequantized(whole, self.scale, self.zero)

    @property
    def limits(self) -> tuple[Array, Array]:
        return self.real(np.array(self.low)), self.real(np.array(self.high))


class Weight(NamedTuple):
    reference: Array
    quantized: Array
    scale: Array | None


class Truth:
    """A pair of models by the test's own means. Values are of one batch."""

    def __init__(self, points: Mapping[str, str], graph_def: Any, prefix: str = "") -> None:
        self.points = points
        self.graph_def = graph_def
        self.prefix = prefix
        """Of the names in the graph that the reference is read from."""
        self._known: dict[tuple[str, int], Array] = {}

    dynamic: frozenset[str] = frozenset()
    """Ops with a dynamically quantized input."""

    def reference(self, op: str, feeds: Feeds) -> Array:
        key = op, id(feeds)
        if key not in self._known:
            self._known[key] = zoo.fetch(self.graph_def, self.prefix + self.points[op], self.fed(feeds))
        return self._known[key]

    def fed(self, feeds: Feeds) -> Feeds:
        return feeds

    def quantized(self, op: str, feeds: Feeds) -> Array:
        raise NotImplementedError

    def grid(self, op: str) -> Grid | None:
        raise NotImplementedError

    def weights(self) -> dict[str, Weight]:
        raise NotImplementedError

    def alone(self, op: str, feeds: Feeds) -> Array:
        """The one op, on what the reference gives to it, rounded as the quantized model does."""
        raise NotImplementedError

    def input(self, feeds: Feeds) -> Array | None:
        """The model's input as it is rounded; None where it is not."""
        raise NotImplementedError


class LiteTruth(Truth):
    def __init__(self, content: bytes, points: Mapping[str, str], graph_def: Any, prefix: str = "") -> None:
        super().__init__(points, graph_def, prefix)
        self.content, self.file = content, zoo.LiteFile(content)
        steps = self.file.steps()
        assert len(steps) == len(points)
        self.ops = dict(zip(points, steps, strict=True))
        self.places = {op: int(step.outputs[0]) for op, step in self.ops.items()}
        self.dynamic = frozenset(
            op for op, step in self.ops.items()
            if self._has_weight(step) and self.file.grid(int(step.inputs[1])) and not self.grid(op)
        )  # fmt: skip

    def _has_weight(self, step: Any) -> bool:
        return self.file.kind(step) in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")

    def grid(self, op: str) -> Grid | None:
        return self._grid(self.places[op])

    def _grid(self, place: int) -> Grid | None:
        found = self.file.grid(place)
        return None if found is None else Grid(*found[:2], *self.file.limits(place))

    def given(self, feeds: Feeds) -> dict[int, Array]:
        place = int(self.file.main.inputs[0])
        grid, values = self._grid(place), next(iter(feeds.values()))
        return {place: values if grid is None else grid.stored(values).astype(np.int8)}

    def quantized(self, op: str, feeds: Feeds) -> Array:
        return self._at(self.places[op], feeds)

    def _at(self, place: int, feeds: Feeds) -> Array:
        found = zoo.run_lite(zoo.cut_behind(self.content, place), self.given(feeds))
        grid = self._grid(place)
        return found if grid is None else grid.real(found)

    def input(self, feeds: Feeds) -> Array | None:
        place, given = next(iter(self.given(feeds).items()))
        grid = self._grid(place)
        if grid is not None:
            return grid.real(given)
        rounding = [
            op for op in self.file.main.operators if self.file.kind(op) == "QUANTIZE" and int(op.inputs[0]) == place
        ]
        return self._at(int(rounding[0].outputs[0]), feeds) if rounding else None

    def alone(self, op: str, feeds: Feeds) -> Array:
        content, reads = zoo.single(self.content, self.places[op])
        made_by = {place: name for name, place in self.places.items()}
        given: dict[int, Array] = {}
        for place in reads:
            grid = self._grid(place)
            if place in made_by:
                values = self.reference(made_by[place], feeds)
            else:
                known = self.input(feeds)
                values = next(iter(feeds.values())) if known is None else known
            given[place] = values if grid is None else grid.stored(values).astype(self._dtype(place))
        found, grid = zoo.run_lite(content, given), self.grid(op)
        return found if grid is None else grid.real(found)

    def _dtype(self, place: int) -> Any:
        return np.int16 if self.file.limits(place)[0] < -128 else np.int8

    def weights(self) -> dict[str, Weight]:
        found = {}
        for op, reference in self.floats().items():
            stored, grid = self.file.weight(self.ops[op])
            values = zoo.dequantized(stored, *grid) if grid is not None else stored.astype(np.float32)
            kind = self.file.kind(self.ops[op])
            turned = values[0] if kind == "DEPTHWISE_CONV_2D" else np.moveaxis(values, 0, -1)
            found[op] = Weight(reference, turned.reshape(reference.shape), None if grid is None else grid[0])
        return found

    def floats(self) -> dict[str, Array]:
        return hard_weights() if self.points.keys() <= HARD.keys() else keras_weights()


def hard_weights() -> dict[str, Array]:
    """Depthwise weights as height, width, channels."""
    graph_def = zoo.hard()
    found = {op: zoo.constant(graph_def, name) for op, name in HARD_WEIGHTS.items()}
    return {op: w.reshape(w.shape[:3]) if op == "v0/dw/depthwise" else w for op, w in found.items()}


def keras_weights() -> dict[str, Array]:
    """With the batch norms behind them worked in."""
    model = zoo.keras_net()
    stored = {layer.name: [np.asarray(w) for w in layer.get_weights()] for layer in model.layers}
    factors = {}
    for name in ("bn0", "bn1"):
        gamma, _, _, variance = stored[name]
        factors[name] = gamma / np.sqrt(variance + np.float32(model.get_layer(name).epsilon))
    return {
        "conv0_1/convolution": stored["conv0"][0] * factors["bn0"],
        "dw_1/depthwise": stored["dw"][0][..., 0] * factors["bn1"],
        "pw_1/convolution": stored["pw"][0],
        "fc_1/MatMul": stored["fc"][0],
    }


class RoundedTruth(Truth):
    """A graph with ops in it that round: `t/fq` or `t/qdq` is the rounded form of `t`."""

    def __init__(
        self, graph_def: Any, rounded: Any, suffix: str, grids: Mapping[str, Grid], scales: Mapping[str, Array]
    ) -> None:
        super().__init__({op: op for op in EVERY_HARD_OP}, graph_def)
        self.rounded, self.suffix, self.grids, self.scales = rounded, suffix, grids, scales

    def grid(self, op: str) -> Grid | None:
        return self.grids.get(self.points[op])

    def _name(self, tensor: str) -> str:
        return f"{tensor}/{self.suffix}" if tensor in self.grids else tensor

    def quantized(self, op: str, feeds: Feeds) -> Array:
        return zoo.fetch(self.rounded, self._name(self.points[op]), feeds)

    def alone(self, op: str, feeds: Feeds) -> Array:
        others = {self.points[o]: self.reference(o, feeds) for o in self.points if o != op}
        return zoo.fetch(self.rounded, self._name(self.points[op]), {**feeds, **others})

    def input(self, feeds: Feeds) -> Array | None:
        return zoo.fetch(self.rounded, self._name("input"), feeds)

    def weights(self) -> dict[str, Weight]:
        found = {}
        for op, reference in hard_weights().items():
            values = zoo.fetch(self.rounded, f"{HARD_WEIGHTS[op]}/{self.suffix}", {})
            found[op] = Weight(reference, values.reshape(reference.shape), self.scales[op])
        return found


class Inlined:
    """A graph without calls, to walk in."""

    def __init__(self, graph_def: Any) -> None:
        self.graph_def = graph_def
        self.nodes = {node.name: node for node in graph_def.node}
        self.readers: dict[str, list[Any]] = {}
        for node in graph_def.node:
            for name in node.input:
                self.readers.setdefault(name.removeprefix("^").partition(":")[0], []).append(node)

    def find(self, kinds: Sequence[str], pattern: str) -> Any:
        found = [n for n in self.graph_def.node if n.op in kinds and re.search(pattern, n.name)]
        assert len(found) == 1, (kinds, pattern, [n.name for n in found])
        return found[0]

    def path(self, node: Any, is_last: Callable[[Any], bool]) -> list[Any]:
        """Down from a node as long as one alone reads each."""
        found = [node]
        while not is_last(found[-1]):
            (following,) = self.readers[found[-1].name]
            found.append(following)
        return found

    def past_identities(self, node: Any) -> Iterator[Any]:
        for reader in self.readers.get(node.name, ()):
            if reader.op == "Identity":
                yield from self.past_identities(reader)
            else:
                yield reader

    def source(self, name: str) -> Any:
        """The constant behind a tensor."""
        node = self.nodes[name]
        while node.op != "Const":
            node = self.nodes[node.input[0]]
        return node

    def value(self, name: str) -> Array:
        return zoo.fetch(self.graph_def, name, {})


class SavedTruth(Truth):
    """What quantize_saved_model writes."""

    def __init__(self, reference: Any, quantized: Any, op_set: str, points: Mapping[str, str], prefix: str) -> None:
        super().__init__(points, reference, prefix)
        self.graph = Inlined(quantized)
        self.op_set = op_set
        self.weighted = {
            op: re.sub(r"[^/]*$", "", op) for op in points if op.endswith(("convolution", "depthwise", "Mul", "Conv2D"))
        }
        self.weighted = {op: scope for op, scope in self.weighted.items() if not op.startswith("hs_")}
        self.kernels = {op: self._kernel(op, scope) for op, scope in self.weighted.items()}
        self.nodes = {op: self._result(op) for op in points}

    @property
    def _source(self) -> str:
        return next(n.name for n in self.graph_def.node if n.op == "Placeholder")

    def fed(self, feeds: Feeds) -> Feeds:
        return {self._source: next(iter(feeds.values()))}

    def _given(self, feeds: Feeds) -> Feeds:
        name = next(n.name for n in self.graph.graph_def.node if n.op == "Placeholder")
        return {name: next(iter(feeds.values()))}

    def _kernel(self, op: str, scope: str) -> Any:
        kinds = {
            "TF": ("Conv2D", "DepthwiseConv2dNative", "MatMul"),
            "XLA": ("XlaConvV2", "XlaDotV2", "DepthwiseConv2dNative"),
            "UNIFORM_QUANTIZED": ("UniformQuantizedConvolution", "UniformQuantizedDot"),
        }[self.op_set]
        return self.graph.find(kinds, scope)

    def _result(self, op: str) -> Any:
        if op in self.kernels:
            kernel = self.kernels[op]
            if kernel.op == "DepthwiseConv2dNative" and self.op_set == "XLA":
                return kernel
            last = {
                "TF": lambda n: n.op == "Cast" and n.attr["DstT"].type == tf.int8.as_datatype_enum,
                "XLA": lambda n: n.op == "Minimum",
                "UNIFORM_QUANTIZED": lambda n: n.op == "UniformRequantize",
            }[self.op_set]
            return self.graph.path(kernel, last)[-1]
        kinds = ("AddV2", "Relu6", "Relu", "Mul", "Mean", "Softmax", "BiasAdd", "Pad", "AvgPool", "Reshape")
        return self.graph.find(kinds, rf"(^|[/.]){re.escape(op)}(\.[^.]*)?(_\d+)*$")

    def grid(self, op: str) -> Grid | None:
        node = self.nodes[op]
        if op in self.kernels:
            return self._kernel_grid(op)
        return self._rounding(node)

    def _kernel_grid(self, op: str) -> Grid | None:
        node = self.nodes[op]
        if self.op_set == "UNIFORM_QUANTIZED":
            return Grid(self.graph.value(node.input[3]), self.graph.value(node.input[4]), -128, 127)
        if self.op_set == "XLA":
            return None
        scaled, shifted = self._rescaling(op)
        ratio = self.graph.nodes[scaled.input[1]]
        return Grid(self.graph.value(ratio.input[1]), self.graph.value(shifted.input[1]), -128, 127)

    def _rescaling(self, op: str) -> tuple[Any, Any]:
        """Of the op set TF: sums times (input scale * weight scale / result's scale), then plus zero point."""
        path = self.graph.path(self.kernels[op], lambda n: n is self.nodes[op])
        at = next(i for i, n in enumerate(path) if n.op == "Mul")
        return path[at], path[at + 1]

    def _rounding(self, node: Any) -> Grid | None:
        """How what reads a float rounds it."""
        for reader in self.graph.past_identities(node):
            if reader.op == "UniformQuantize":
                return Grid(*(self.graph.value(i) for i in reader.input[1:3]), -128, 127)
            if reader.op == "Div":
                (shifted,) = self.graph.past_identities(reader)
                zero = np.rint(self.graph.value(shifted.input[1])).astype(np.int64)
                return Grid(self.graph.value(reader.input[1]), zero, -128, 127)
        return None

    def _real(self, op: str, found: Array) -> Array:
        grid = self.grid(op)
        if grid is None:
            return found
        return grid.real(found if found.dtype.kind in "iu" else grid.stored(found))

    def quantized(self, op: str, feeds: Feeds) -> Array:
        return self._real(op, zoo.fetch(self.graph.graph_def, self.nodes[op].name, self._given(feeds)))

    def alone(self, op: str, feeds: Feeds) -> Array:
        given = self._given(feeds)
        for other in self.points:
            if other != op:
                given[self.nodes[other].name] = self._stored(other, self.reference(other, feeds))
        return self._real(op, zoo.fetch(self.graph.graph_def, self.nodes[op].name, given))

    def _stored(self, op: str, values: Array) -> Array:
        grid = self.grid(op)
        if op not in self.kernels or grid is None:
            return values
        whole = grid.stored(values).astype(np.int8)
        return whole.view(tf.qint8.as_numpy_dtype) if self.op_set == "UNIFORM_QUANTIZED" else whole

    def input(self, feeds: Feeds) -> Array | None:
        node = next(n for n in self.graph.graph_def.node if n.op == "Placeholder")
        grid = self._rounding(node)
        assert grid is not None
        return grid.real(grid.stored(next(iter(feeds.values()))))

    def weights(self) -> dict[str, Weight]:
        found = {}
        floats = hard_weights() if self.op_set == "UNIFORM_QUANTIZED" else keras_weights()
        for op, reference in floats.items():
            kernel = self.kernels[op]
            stored = self.graph.source(kernel.input[1]).name
            values, scale = zoo.constant(self.graph.graph_def, stored), self._weight_scale(op)
            values = values.reshape(reference.shape)
            real = values if scale is None else zoo.dequantized(values, scale, np.zeros(1, np.int64))
            found[op] = Weight(reference, real, scale)
        return found

    def _weight_scale(self, op: str) -> Array | None:
        kernel = self.kernels[op]
        if self.op_set == "UNIFORM_QUANTIZED":
            return self.graph.value(kernel.input[4])
        if kernel.op == "DepthwiseConv2dNative" and self.op_set == "XLA":
            return None
        if self.op_set == "TF":
            product = self.graph.nodes[self.graph.nodes[self._rescaling(op)[0].input[1]].input[0]]
            return self.graph.value(product.input[1])
        path = self.graph.path(kernel, lambda n: n.op == "Mul")
        before = {"conv0_1/convolution": None, "pw_1/convolution": "hs_1/mul", "fc_1/MatMul": "gap_1/Mean"}[op]
        node = next(n for n in self.graph.graph_def.node if n.op == "Placeholder")
        grid = self._rounding(self.nodes[before] if before else node)
        assert grid is not None
        return self.graph.value(path[-1].input[1]) / grid.scale


class NeuralCompressorTruth(Truth):
    """Kernels of TensorFlow that take whole numbers; each gives the range of its result beside it."""

    def __init__(self, points: Mapping[str, str], reference: Any, quantized: Any) -> None:
        super().__init__(points, reference)
        self.graph = Inlined(quantized)
        self.nodes = {op: self._node(op) for op in self.points}
        self.grids = {op: self._read_grid(self._rounding(op)) for op in self.points}

    def _node(self, op: str) -> Any:
        names = (f"{op}_eightbit_requantize", f"{op}_eightbit_quantized", op)
        return next(self.graph.nodes[name] for name in names if name in self.graph.nodes)

    def _rounding(self, op: str) -> Any:
        """The node that gives whole numbers and their range."""
        node = self.nodes[op]
        if node.op.startswith("Quantized"):
            return None if node.op.endswith("Dequantize") else node
        return next((n for n in self.graph.readers.get(node.name, ()) if n.op == "QuantizeV2"), None)

    def _read_grid(self, node: Any) -> Grid | None:
        if node is None:
            return None
        low, high = (self._fetched(f"{node.name}:{i}", {"input": zoo.digits(1)}).item() for i in (1, 2))
        last = 127 if low < 0 else 255
        scale = np.float32(max(high, -low) / last)
        return Grid(scale.reshape(1), np.zeros(1, int), -128 if low < 0 else 0, last)

    def grid(self, op: str) -> Grid | None:
        return self.grids[op]

    def _fetched(self, tensor: str, feeds: Feeds) -> Array:
        return zoo.fetch(self.graph.graph_def, tensor, feeds)

    def quantized(self, op: str, feeds: Feeds) -> Array:
        node, grid = self._rounding(op), self.grid(op)
        if node is None or grid is None:
            return self._fetched(self.nodes[op].name, feeds)
        return grid.real(self._fetched(node.name, feeds))

    def input(self, feeds: Feeds) -> Array | None:
        node = self.graph.nodes.get("v0/cg/conv0/Conv2D_eightbit_quantize_input")
        grid = self._read_grid(node)
        return None if grid is None else grid.real(self._fetched(node.name, feeds))

    def alone(self, op: str, feeds: Feeds) -> Array:
        """What goes into it comes from a QuantizeV2 in the place of each other kernel."""
        graph_def, given = tf.compat.v1.GraphDef(), dict(feeds)
        graph_def.CopyFrom(self.graph.graph_def)
        for node in list(graph_def.node):
            other = next((o for o in self.points if self.nodes[o].name == node.name and o != op), None)
            if other is None:
                continue
            if (grid := self.grid(other)) is None or not node.op.startswith("Quantized"):
                given[node.name] = self.reference(other, feeds)
                continue
            source = graph_def.node.add(name=f"{node.name}/given", op="Placeholder")
            source.attr["dtype"].type = tf.float32.as_datatype_enum
            given[source.name] = self.reference(other, feeds)
            ends = [
                zoo.add_constant(graph_def, f"{node.name}/{end}", np.float32(value))
                for end, value in (("low", 0), ("high", grid.scale.item() * grid.high))
            ]
            name = node.name
            node.Clear()
            node.name, node.op = name, "QuantizeV2"
            node.input.extend([source.name, *ends])
            node.attr["T"].type = tf.quint8.as_datatype_enum
            node.attr["mode"].s, node.attr["round_mode"].s = b"SCALED", b"HALF_TO_EVEN"
        node, grid = self._rounding(op), self.grid(op)
        found = zoo.fetch(graph_def, self.nodes[op].name if node is None else node.name, given)
        return found if grid is None else grid.real(found)

    def weights(self) -> dict[str, Weight]:
        found = {}
        for op, reference in hard_weights().items():
            name = HARD_WEIGHTS[op]
            if name in self.graph.nodes:
                found[op] = Weight(reference, reference, None)
                continue
            whole = zoo.constant(self.graph.graph_def, f"{name}_qint8_const").reshape(reference.shape)
            ends = [zoo.constant(self.graph.graph_def, f"{name}_{end}") for end in ("min", "max")]
            scale = (np.maximum(abs(ends[0]), abs(ends[1])) / np.float32(127)).astype(np.float32).ravel()
            found[op] = Weight(reference, zoo.dequantized(whole, scale, np.zeros(scale.size, int)), scale)
        return found


@dataclass
class Built:
    reference: Any
    quantized: Any
    truth: Truth
    batches: list[Feeds]
    within: str = ""
    """What the adapter's names have before those of the truth."""

    @cached_property
    def diagnosis(self) -> Diagnosis:
        return inc_tb.diagnose(self.reference, self.quantized, self.batches)

    @cached_property
    def adapter(self) -> TensorFlowAdapter:
        return TensorFlowAdapter(self.reference, self.quantized)

    def pairs(self, feeds: Feeds) -> dict[tuple[str, str], Pair]:
        return {(pair.op.removeprefix(self.within), pair.role): pair for pair in self.adapter.run(feeds)}

    def column(self, name: str) -> dict[str, float]:
        names = (op.removeprefix(self.within) for op in self.diagnosis.ops["name"])
        return dict(zip(names, self.diagnosis.ops[name], strict=True))


def digit_batches() -> list[Feeds]:
    return [{"input": zoo.digits(7, 200)}, {"input": zoo.digits(5, 300)}]


def image_batches() -> list[Feeds]:
    """They leave the calibrated range here and there."""
    return [{"img": 1.2 * zoo.keras_images(7, 20)}, {"img": zoo.keras_images(5, 21)}]


def hard_lite(kind: str) -> Built:
    graph_def = zoo.hard()
    if kind == "weight-only":
        content = zoo.weight_only(zoo.lite(graph_def, "float", zoo.digits(1)))
    else:
        content = zoo.lite(graph_def, kind, zoo.digits(64))
    return Built(graph_def, content, LiteTruth(content, HARD, graph_def), digit_batches())


def keras_lite(kind: str, folder: Path) -> Built:
    model = zoo.keras_net()
    path = zoo.export(model, folder / "keras")
    content = zoo.lite(model, kind, zoo.keras_images(32))
    prefix = "StatefulPartitionedCall/net_1/"
    truth = KerasLiteTruth(content, KERAS, zoo.frozen(path), prefix)
    return Built(path, content, truth, image_batches(), IN_KERAS)


class KerasLiteTruth(LiteTruth):
    def fed(self, feeds: Feeds) -> Feeds:
        name = next(n.name for n in self.graph_def.node if n.op == "Placeholder")
        return {name: feeds["img"]}


def ranges(graph_def: Any, tensors: Sequence[str]) -> dict[str, tuple[float, float]]:
    feeds = {"input": zoo.digits(64)}
    found = {name: zoo.fetch(graph_def, name, feeds) for name in tensors}
    return {name: (min(0.0, float(a.min())), max(0.0, float(a.max()))) for name, a in found.items()}


ROUNDED_TENSORS = ["input", *(t for t in HARD.values() if t not in ("v0/cg/conv1/pad", "v0/flat"))]


def fake_quantized(*, per_channel: bool = False, bits: int = 8) -> Built:
    """FakeQuant moves a range so that zero is one of its steps."""
    graph_def = zoo.hard()
    limits = ranges(graph_def, ROUNDED_TENSORS)
    roundings = {name: zoo.fake_quant(*ends, bits=bits) for name, ends in limits.items()}
    scales: dict[str, Array] = {}
    for op, weight in hard_weights().items():
        axes = tuple(range(weight.ndim - 1)) if per_channel and op != "v0/dw/depthwise" else None
        reach = abs(weight).max(axis=axes)
        roundings[HARD_WEIGHTS[op]] = zoo.fake_quant(-reach, reach, bits=8, narrow=True)
        scales[op] = (reach.ravel() / 127).astype(np.float32)
    grids = {}
    for name, (low, high) in limits.items():
        scale = (np.float32(high) - np.float32(low)) / (2**bits - 1)
        grids[name] = Grid(np.float32(scale).reshape(1), np.rint(-low / scale).astype(int).reshape(1), 0, 2**bits - 1)
    quantized = zoo.rewritten(graph_def, roundings)
    return Built(graph_def, quantized, RoundedTruth(graph_def, quantized, "fq", grids, scales), digit_batches())


def round_trips(*, per_channel: bool) -> Built:
    graph_def = zoo.hard()
    limits = ranges(graph_def, ROUNDED_TENSORS)
    roundings = {name: zoo.round_trip(*ends) for name, ends in limits.items()}
    scales: dict[str, Array] = {}
    for op, weight in hard_weights().items():
        is_depthwise = op == "v0/dw/depthwise"
        axis = 2 if is_depthwise else weight.ndim - 1
        reach = abs(weight).max(axis=tuple(i for i in range(weight.ndim) if i != axis) if per_channel else None)
        roundings[HARD_WEIGHTS[op]] = zoo.round_trip(-reach, reach, axis=axis if per_channel else -1)
        scales[op] = (reach.ravel() / 127).astype(np.float32)
    grids = {}
    for name, (low, high) in limits.items():
        reach = max(-low * 127 / 128, high)
        grids[name] = Grid(np.float32(reach / 127).reshape(1), np.zeros(1, int), -128, 127)
    quantized = zoo.rewritten(graph_def, roundings)
    return Built(graph_def, quantized, RoundedTruth(graph_def, quantized, "qdq", grids, scales), digit_batches())


def saved(op_set: str, folder: Path) -> Built:
    if op_set == "UNIFORM_QUANTIZED":
        graph_def = zoo.hard()
        source = zoo.save_graph(graph_def, folder / "hard")
        made = zoo.quantize_saved(source, folder / op_set, op_set, [{"input": x[None]} for x in zoo.digits(64)])
        points = {**HARD, "v0/add": "v0/add", "v0/add_relu": "v0/add_relu"}
        truth = SavedTruth(graph_def, zoo.frozen(made), op_set, points, "")
        return Built(graph_def, made, truth, digit_batches())
    source = zoo.export(zoo.keras_net(), folder / "keras")
    made = zoo.quantize_saved(source, folder / op_set, op_set, [{"img": x[None]} for x in zoo.keras_images(32)])
    points = {**KERAS, **KERAS_SWISH}
    if op_set == "XLA":
        points |= {"dw_1/depthwise": "bn1_1/batchnorm/mul_1", "bn1_1/batchnorm/add_1": "bn1_1/batchnorm/add_1"}
    truth = SavedTruth(zoo.frozen(source), zoo.frozen(made), op_set, points, "StatefulPartitionedCall/net_1/")
    return Built(source, made, truth, image_batches(), IN_KERAS)


def neural_compressor(name: str, points: Mapping[str, str]) -> Built:
    graph_def, quantized = zoo.hard(), zoo.load(name)
    return Built(graph_def, quantized, NeuralCompressorTruth(points, graph_def, quantized), digit_batches())


FUSED_SUM = {**{op: tensor for op, tensor in HARD.items() if op != "v0/add"}, "v0/pw/Conv2D": "v0/add_relu"}


LITE = ("full", "int8", "tensor", "16x8", "dynamic", "weight-only", "half")
CASES: dict[str, Callable[[Path], Built]] = {
    **{f"lite-{kind}": lambda _, kind=kind: hard_lite(kind) for kind in LITE},
    **{f"keras-{kind}": lambda folder, kind=kind: keras_lite(kind, folder) for kind in ("int8", "full", "dynamic")},
    "fake": lambda _: fake_quantized(),
    "fake-per-channel": lambda _: fake_quantized(per_channel=True),
    "fake-16-bits": lambda _: fake_quantized(bits=16),
    "round-trip": lambda _: round_trips(per_channel=False),
    "round-trip-per-channel": lambda _: round_trips(per_channel=True),
    **{f"saved-{name}": lambda folder, name=name: saved(name, folder) for name in ("TF", "XLA", "UNIFORM_QUANTIZED")},
    "neural-compressor": lambda _: neural_compressor("inc26_hard_int8.pb", FUSED_SUM),
    "neural-compressor-tuned": lambda _: neural_compressor("inc26_hard_mse_tune.pb", {op: op for op in EVERY_HARD_OP}),
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Built]:
    known: dict[str, Built] = {}
    folder = tmp_path_factory.mktemp("models")

    def build(name: str) -> Built:
        if name not in known:
            known[name] = CASES[name](folder)
        return known[name]

    return build


@pytest.mark.parametrize("name", CASES)
def test_every_compared_op_is_expected(built: Callable[[str], Built], name: str) -> None:
    it = built(name)
    compared = {op for op, value in it.column("a_mse").items() if np.isfinite(value)}
    assert compared == set(it.truth.points)
    reasons = it.column("reason")
    assert all(reasons[op] for op in set(reasons) - compared)


@pytest.mark.parametrize("name", CASES)
def test_outputs(built: Callable[[str], Built], name: str) -> None:
    it = built(name)
    pairs = [it.pairs(batch) for batch in it.batches]
    for op in it.truth.points:
        arrays = [(it.truth.reference(op, batch), it.truth.quantized(op, batch)) for batch in it.batches]
        for (x, y), found in zip(arrays, pairs, strict=True):
            same(found[op, "output"].reference, x, f"{op} reference")
            same(found[op, "output"].quantized, y.reshape(x.shape), f"{op} quantized")
        x = np.concatenate([x for x, _ in arrays])
        y = np.concatenate([y.reshape(x.shape) for x, y in arrays])
        grid = it.truth.grid(op)
        is_quantized = grid is not None or op in it.truth.dynamic
        step, limits = (None, None) if grid is None else (grid.scale, grid.limits)
        check(it, op, "a", expected(x, y, -1, step, limits, is_quantized))


@pytest.mark.parametrize("name", CASES)
def test_weights(built: Callable[[str], Built], name: str) -> None:
    it = built(name)
    wanted = it.truth.weights()
    found = {pair.op.removeprefix(it.within): pair for pair in it.adapter.weights()}
    assert set(found) == set(wanted)
    for op, weight in wanted.items():
        same(found[op].reference, weight.reference, op)
        same(found[op].quantized, weight.quantized, op)
        check(it, op, "w", expected(weight.reference, weight.quantized, -1, weight.scale))


@pytest.mark.parametrize("name", CASES)
def test_added_error_is_that_of_the_op_alone(built: Callable[[str], Built], name: str) -> None:
    it = built(name)
    pairs = [it.pairs(batch) for batch in it.batches]
    added = it.column("added_sqnr_db")
    for op in it.truth.points:
        arrays = [(it.truth.reference(op, batch), it.truth.alone(op, batch)) for batch in it.batches]
        for (x, y), found in zip(arrays, pairs, strict=True):
            same(found[op, "isolated"].quantized, y.reshape(x.shape), op)
        wanted = sqnr(*(np.concatenate([a.ravel() for a in side]) for side in zip(*arrays, strict=True)))
        if wanted < LAST_DIGIT_DB:
            np.testing.assert_allclose(added[op], wanted, rtol=TOLERANCE, err_msg=op)
        else:
            assert not added[op] < LAST_DIGIT_DB, op


@pytest.mark.parametrize("name", CASES)
def test_the_input_is_rounded_as_the_model_does(built: Callable[[str], Built], name: str) -> None:
    it = built(name)
    first = next(iter(it.truth.points))
    for batch in it.batches:
        wanted, found = it.truth.input(batch), it.pairs(batch)
        assert (wanted is not None) == ((first, "input") in found)
        if wanted is not None:
            same(found[first, "input"].quantized, wanted, "quantized")
            same(found[first, "input"].reference, next(iter(batch.values())), "reference")


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith(("lite", "keras"))])
def test_values_in_between_survive(built: Callable[[str], Built], name: str) -> None:
    """An interpreter uses the memory of a tensor again unless it is told otherwise, or the tensor is a result."""
    it = built(name)
    assert isinstance(it.truth, LiteTruth)
    given = it.truth.given(it.batches[0])
    engine = open_engine(it.quantized)
    roots = list(engine.graph.producer)
    assert set(map(int, roots)) >= set(it.truth.places.values())
    found = engine.run({engine.graph.inputs[0].name: next(iter(it.batches[0].values()))}, roots)
    kept = zoo.kept(it.quantized, given)
    for op in it.truth.file.main.operators:
        for place in map(int, op.outputs):
            wanted = zoo.run_lite(zoo.cut_behind(it.quantized, place), given, is_plain=True)
            np.testing.assert_array_equal(kept[place], wanted, it.truth.file.kind(op))
    for root in roots:
        if int(root) in it.truth.places.values():
            op = next(op for op, place in it.truth.places.items() if place == int(root))
            same(found[root], it.truth.quantized(op, it.batches[0]), op)


@pytest.mark.parametrize("kind", ["int8", "tensor"])
def test_agrees_with_the_quantization_debugger(kind: str) -> None:
    """Theirs compares an op with its float form on the same dequantized inputs, mean square over samples.

    Ours compares with the float model, so it is the same for the first op, on images that are all steps of the input's
    grid, where rounding the input does nothing. Behind that, ours also has what rounding an op's inputs does, and its
    inputs are the float model's instead of the quantized one's: rarely less, and the same ops stand out.
    """
    graph_def = zoo.hard()
    images = np.round(zoo.digits(16) * 255) / np.float32(255)
    converter = zoo.converter(graph_def, kind, zoo.digits(64))
    with quiet():
        debugger = tf.lite.experimental.QuantizationDebugger(
            converter=converter, debug_dataset=lambda: ([x[None]] for x in images)
        )
        debugger.run()
    rows = dict(zip(HARD, debugger_rows(debugger), strict=True))
    content = debugger.get_nondebug_quantized_model()
    truth = LiteTruth(content, HARD, graph_def)
    alone = {
        pair.op: pair
        for pair in TensorFlowAdapter(graph_def, content).run({"input": images})
        if pair.role == "isolated"
    }
    theirs, ours = {}, {}
    for op in HARD_WEIGHTS:
        row, grid = rows[op], truth.grid(op)
        assert grid is not None
        np.testing.assert_allclose(row["scale"], grid.scale.item(), rtol=1e-6)
        theirs[op] = np.sqrt(row["mean_squared_error"]) / row["scale"]
        ours[op] = np.sqrt(np.square(alone[op].reference - alone[op].quantized).mean()) / row["scale"]
    np.testing.assert_allclose(ours["v0/cg/conv0/Conv2D"], theirs["v0/cg/conv0/Conv2D"], rtol=1e-4)
    assert all(0.99 * theirs[op] < ours[op] < 2 * theirs[op] for op in theirs)
    assert max(theirs, key=theirs.__getitem__) == max(ours, key=ours.__getitem__) == "v0/cg/conv1/Conv2D"


def debugger_rows(debugger: Any) -> list[dict[str, Any]]:
    import csv
    import io

    text = io.StringIO()
    debugger.layer_statistics_dump(text)
    text.seek(0)
    return [
        {k: v if k in ("op_name", "tensor_name") else float(v) for k, v in row.items()} for row in csv.DictReader(text)
    ]


@pytest.mark.parametrize("name", ["lite-tensor", "fake", "neural-compressor"])
def test_the_first_suggestion_names_both_ends_of_the_bad_tensor(built: Callable[[str], Built], name: str) -> None:
    it = built(name)
    found = inc_tb.diagnose(it.reference, it.quantized, {"input": zoo.digits(128)})
    assert {"v0/cg/conv0/Conv2D", "v0/cg/conv1/Conv2D"} <= set(found.suggestions[0].ops)


def joined(adapter: TensorFlowAdapter, batches: Sequence[Feeds]) -> dict[tuple[str, str], tuple[Array, Array]]:
    parts: dict[tuple[str, str], list[Pair]] = {}
    for batch in batches:
        for pair in adapter.run(batch):
            parts.setdefault((pair.op, pair.role), []).append(pair)
    return {
        key: (np.concatenate([p.reference for p in pairs]), np.concatenate([p.quantized for p in pairs]))
        for key, pairs in parts.items()
    }


def same_pairs(
    found: Mapping[Any, tuple[Array, Array]], wanted: Mapping[Any, tuple[Array, Array]], but_for_steps: bool = False
) -> None:
    """Kernels add up in another order for another number of samples, and where a value lies between two steps, its last
    digit decides: `but_for_steps` lets that make up a hundredth of the error.
    """
    assert set(found) == set(wanted)
    for key, (x, y) in wanted.items():
        same(found[key][0], x, f"{key} reference")
        if but_for_steps:
            last_digit = TOLERANCE * abs(y).max()
            off, error = np.square(found[key][1] - y).mean(), np.square(x - y).mean()
            assert off <= last_digit**2 + error / 100, key
        else:
            same(found[key][1], y, f"{key} quantized")


@pytest.mark.parametrize("name", CASES)
def test_samples_alone_or_together_or_in_parts_give_the_same(built: Callable[[str], Built], name: str) -> None:
    it = built(name)
    batch = it.batches[0]
    wanted = joined(it.adapter, [batch])
    rows = [{key: array[i : i + 1] for key, array in batch.items()} for i in range(7)]
    same_pairs(joined(it.adapter, rows), wanted, but_for_steps=True)
    short = TensorFlowAdapter(it.reference, it.quantized, memory_budget=100_000)
    assert short.batch_size() < 7
    same_pairs(joined(short, [batch]), wanted, but_for_steps=True)


def test_a_file_for_one_sample_takes_many() -> None:
    """The converter leaves the reshape out where it knows how many samples there are."""
    graph_def, feeds = zoo.hard(), {"input": zoo.digits(10, 90)}
    contents = [zoo.lite(graph_def, "int8", zoo.digits(64), fixed=fixed) for fixed in (None, 1)]
    wanted, found = (joined(TensorFlowAdapter(graph_def, content), [feeds]) for content in contents)
    del wanted["v0/flat", "output"], wanted["v0/flat", "isolated"]
    same_pairs(found, wanted, but_for_steps=True)
    tables = [inc_tb.diagnose(graph_def, content, feeds).ops for content in contents]
    at = list(tables[0]["name"]).index("v0/flat")
    assert tables[1]["reason"][at].startswith("it only changes the shape")
    for column in ("a_mse", "a_sqnr_db", "added_sqnr_db", "w_sqnr_db", "a_min", "a_max", "a_max_abs"):
        a, b = (np.delete(np.asarray(table[column]), at) for table in tables)
        np.testing.assert_allclose(a, b, rtol=TOLERANCE, err_msg=column)


def test_a_keras_model_and_its_files_are_the_same(tmp_path: Path) -> None:
    model, feeds = zoo.keras_net(), {"img": zoo.keras_images(4, 8)}
    content = zoo.lite(model, "int8", zoo.keras_images(32))
    with quiet():
        model.save(tmp_path / "net.keras")
    exported = zoo.export(model, tmp_path / "net")
    wanted = joined(TensorFlowAdapter(model, content), [feeds])
    same_pairs(joined(TensorFlowAdapter(exported, content), [feeds]), wanted)
    same_pairs(joined(TensorFlowAdapter(tmp_path / "net.keras", content), [feeds]), wanted)


def trip(y: Any, low: float, high: float, **options: Any) -> Any:
    return raw.QuantizeAndDequantizeV2(input=y, input_min=low, input_max=high, **{"range_given": True, **options})


def there_and_back(y: Any, low: float, high: float, dtype: Any, mode: str, way: str) -> Any:
    whole = raw.QuantizeV2(input=y, min_range=low, max_range=high, T=dtype, mode=mode, round_mode=way)
    return raw.Dequantize(input=whole[0], min_range=whole[1], max_range=whole[2], mode=mode)


CHANNELS = 64
LOWS, HIGHS = (np.tile(np.float32(ends), CHANNELS // 4) for ends in ([-1, -2, -0.1, 0], [1, 0.3, 2, 3]))
ROUNDINGS: dict[str, Callable[[Any], Any]] = {
    "args": lambda y: raw.FakeQuantWithMinMaxArgs(inputs=y, min=-1.3, max=2.1),
    "args-default": lambda y: raw.FakeQuantWithMinMaxArgs(inputs=y),
    "narrow": lambda y: raw.FakeQuantWithMinMaxVars(inputs=y, min=-1.3, max=2.1, narrow_range=True, num_bits=5),
    "without-zero": lambda y: raw.FakeQuantWithMinMaxVars(inputs=y, min=0.5, max=2.1),
    "below-zero": lambda y: raw.FakeQuantWithMinMaxVars(inputs=y, min=-3, max=-0.5),
    "symmetric": lambda y: raw.FakeQuantWithMinMaxVars(inputs=y, min=-1.7, max=1.7),
    "channels": lambda y: raw.FakeQuantWithMinMaxVarsPerChannel(inputs=y, min=LOWS, max=HIGHS),
    "trip": lambda y: trip(y, -3.0, 1.0),
    "trip-narrow": lambda y: trip(y, -3.0, 1.0, narrow_range=True, num_bits=6),
    "trip-unsigned": lambda y: trip(y, -3.0, 2.0, signed_input=False),
    "trip-channels": lambda y: raw.QuantizeAndDequantizeV3(
        input=y, input_min=LOWS, input_max=HIGHS, num_bits=7, range_given=True, axis=1
    ),
    "trip-gradient": lambda y: raw.QuantizeAndDequantizeV4(input=y, input_min=-1.0, input_max=0.5, range_given=True),
    "trip-own-range": lambda y: trip(y, 0.0, 0.0, range_given=False),
    **{
        f"{dtype.name}-{mode}-{way}-{low}-{high}".lower(): partial(
            there_and_back, low=low, high=high, dtype=dtype, mode=mode, way=way
        )
        for dtype in (tf.qint8, tf.quint8)
        for mode, way in (
            ("SCALED", "HALF_TO_EVEN"), ("SCALED", "HALF_AWAY_FROM_ZERO"), ("MIN_FIRST", "HALF_AWAY_FROM_ZERO"),
            ("MIN_COMBINED", "HALF_AWAY_FROM_ZERO"),
        )
        for low, high in ((-1.0, 2.0), (-2.0, 1.0), (0.0, 2.0))
        if low == 0 or (dtype, mode) != (tf.quint8, "SCALED")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ROUNDINGS)
def test_every_way_to_round_in_a_graph(name: str) -> None:
    """The values, those of the op alone, and the grid that the table speaks of."""
    x = np.random.default_rng(1).normal(size=(30, 4)).astype(np.float32) * 2
    plain, rounded = rounding_net(None), rounding_net(ROUNDINGS[name])
    read = next(n for n in rounded.node if n.name == "z").input[0]
    wanted = zoo.fetch(rounded, read, {"x": x})
    adapter = TensorFlowAdapter(plain, rounded)
    pairs = {(pair.op, pair.role): pair for pair in adapter.run({"x": x})}
    same(pairs["y", "output"].quantized, wanted, name)
    same(pairs["y", "isolated"].quantized, wanted, name)
    grid = adapter.ops()[0].activation
    assert grid is not None
    assert (grid.scale is None) == (name == "trip-own-range")
    if grid.scale is not None and grid.limits is not None:
        steps = wanted / grid.scale
        np.testing.assert_allclose(steps, np.rint(steps), atol=1e-3)
        low, high = (np.asarray(end) for end in grid.limits)
        assert ((wanted > low - 1e-4) & (wanted < high + 1e-4)).all()
        if grid.scale.size == 1:
            assert np.isclose(wanted.max(), high, atol=1e-4)
            assert wanted.min() < low + 1.01 * grid.scale


def rounding_net(add: Callable[[Any], Any] | None) -> Any:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 4], name="x")
        weight = np.random.default_rng(0).normal(size=(4, CHANNELS)).astype(np.float32)
        y = tf.matmul(x, tf.constant(weight, name="w"), name="y")
        tf.nn.softmax(y if add is None else add(y), name="z")
    return graph.as_graph_def()


def same(found: Array, wanted: Array, what: str) -> None:
    assert found.shape == wanted.shape, what
    np.testing.assert_allclose(found, wanted, rtol=TOLERANCE, atol=TOLERANCE * abs(wanted).max(), err_msg=what)


def sqnr(x: Array, y: Array) -> float:
    x, y = x.astype(np.float64), y.astype(np.float64)
    noise = ((x - y) ** 2).sum()
    return float(10 * np.log10((x**2).sum() / noise)) if noise > 0 else np.nan


def expected(
    x: Array,
    y: Array,
    axis: int,
    step: Array | None = None,
    limits: tuple[Array, ...] | None = None,
    is_quantized: bool = False,
) -> dict[str, float]:
    """Every column from the whole arrays; NaN where there is no answer."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    e = x - y
    found = {"mse": (e**2).mean(), "nmse": (e**2).sum() / (x**2).sum(), "sqnr_db": sqnr(x, y), "max_abs": abs(e).max()}
    for prefix, values in (("", x), ("q_", y)):
        found |= {f"{prefix}min": values.min(), f"{prefix}max": values.max(), f"{prefix}mean": values.mean()}
        found |= {f"{prefix}std": values.std(), f"{prefix}var": values.var()}
    found["range"] = x.max() - x.min()
    found["cosine"] = (x * y).sum() / np.sqrt((x**2).sum() * (y**2).sum())
    scaled = [(v - v.min()) / (v.max() - v.min()) for v in (x, y)]
    found["inc_mse"] = ((scaled[0] - scaled[1]) ** 2).mean()
    found["kurtosis"] = ((x - x.mean()) ** 4).mean() / x.var() ** 2
    found["rmse_lsb"] = found["clipped"] = found["range_used"] = found["flushed"] = np.nan
    if step is not None:
        found["rmse_lsb"] = np.sqrt(((e / zoo.aligned(step.astype(np.float64), axis, x.ndim)) ** 2).mean())
    if limits is not None:
        found["clipped"] = ((x < limits[0]) | (x > limits[1])).mean()
        low, high = (np.asarray(limit, np.float64) for limit in limits)
        if low.size == high.size == 1:
            reached = min(x.max(), high.item()) - max(x.min(), low.item())
            found["range_used"] = max(0.0, reached) / (high.item() - low.item())
    if is_quantized:
        found["flushed"] = (y[x != 0] == 0).mean()
    return found | by_channel(x, y, axis)


def by_channel(x: Array, y: Array, axis: int) -> dict[str, float]:
    rows = [np.moveaxis(v, axis, 0).reshape(v.shape[axis], -1) for v in (x, y)]
    reach = abs(rows[0]).max(axis=1)
    alive = reach[reach > 0]
    ratios = [sqnr(a, b) if a.any() else np.nan for a, b in zip(*rows, strict=True)]
    found = {"channel_ratio": alive.max() / np.median(alive), "worst_channel": np.nan, "worst_channel_sqnr_db": np.nan}
    if not np.isnan(ratios).all():
        found |= {"worst_channel": float(np.nanargmin(ratios)), "worst_channel_sqnr_db": np.nanmin(ratios)}
    return found


def check(it: Built, op: str, side: str, wanted: Mapping[str, float]) -> None:
    columns = [name for name in it.diagnosis.ops if name.startswith(f"{side}_")]
    assert {name.removeprefix(f"{side}_") for name in columns} <= set(wanted)
    if wanted["sqnr_db"] > LAST_DIGIT_DB:
        columns = [name for name in columns if not name.endswith(ERRORS)]
    for name in columns:
        found = it.column(name)[op]
        np.testing.assert_allclose(found, wanted[name[2:]], rtol=TOLERANCE, atol=0, err_msg=f"{op} {name}")
