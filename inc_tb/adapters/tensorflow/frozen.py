"""A frozen graph as steps and values."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any, Literal

import numpy as np

from inc_tb.adapters.tensorflow.graph import Graph, Step
from inc_tb.adapters.tensorflow.grids import (
    FAKE,
    ROUND_TRIPS,
    attribute,
    grid,
    of_fake_quantization,
    of_range,
    of_round_trip,
    unknown_grid,
)
from inc_tb.adapters.tensorflow.kinds import ACTIVATIONS, LOOPS, WEIGHTED, composite_type, graph_type
from inc_tb.adapters.tensorflow.library import tf
from inc_tb.adapters.tensorflow.runtime import find_run_time_roundings
from inc_tb.adapters.tensorflow.source import COMPOSITE, Frozen, first_line, source_of
from inc_tb.capture import Array, Input
from inc_tb.errors import ModelError
from inc_tb.records import Quantization
from inc_tb.rounding import dequantize

_CONSTANTS = {"Const", "HostConst"}
_PASSING = {
    "Identity", "StopGradient", "PreventGradient", "CheckNumerics", "Print", "Snapshot", "PlaceholderWithDefault",
    "EnsureShape", "DebugIdentity", "DebugIdentityV2", "DebugIdentityV3",
}  # fmt: skip
_RANDOM = {
    "RandomUniform", "RandomStandardNormal", "TruncatedNormal", "RandomUniformInt", "Multinomial",
    "StatelessRandomUniform",
    "StatelessRandomUniformV2", "StatelessRandomNormal", "StatelessRandomNormalV2", "RandomShuffle",
}  # fmt: skip
_CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
_FLOATS = {tf.float32, tf.float16, tf.bfloat16, tf.float64}
_WHOLE = {tf.qint8: "int8", tf.quint8: "uint8", tf.int8: "int8", tf.uint8: "uint8", tf.qint16: "int16"}
_SUMS = {tf.qint32, tf.int32}
_LOWEST = -128
_REST_OF_A_SUM = {
    "UniformQuantizedAdd", "UniformQuantizedClipByValue", "UniformRequantize", "Requantize", "RequantizePerChannel",
    "Cast", "AddV2", "Add", "Sub", "Mul", "RealDiv", "Maximum", "Minimum", "Relu", "Relu6", "Identity", "Round",
}  # fmt: skip
"""What scales the whole numbers that a product of integers has added up, and cuts them to size."""
_MADE_OF = re.compile(r"(?:_\d{6,}_\d+)+$|\.+$|_eightbit_.*$")


class FrozenGraph(Graph):
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
        self._read_inputs()
        for node in self.nodes.values():
            if node.name not in self._skipped:
                self._read(node)
        self.result_names = [name for name, _ in source.outputs]
        self.outputs = [self._result(name_of(tensor)) for _, tensor in source.outputs]

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

    def _read_inputs(self) -> None:
        for name, tensor in self.source.inputs:
            found = self.tensor(tensor)
            shape = () if found.shape.rank is None else tuple(found.shape.as_list())
            is_known = found.shape.rank is not None
            self.inputs.append(Input(name, np.dtype(found.dtype.as_numpy_dtype), shape, is_known))
            self.new_value(name_of(tensor))
            self.input_roots[name] = name_of(tensor)

    def _result(self, name: str) -> str:
        if name not in self.root:
            raise ModelError(f"{self.name}: its result {name} does not depend on its inputs; expected a network.")
        return self.root[name]

    def run_time_axes(self, step: Step) -> tuple[int, ...]:
        """Over which a layer of Keras seeks the largest magnitude of what it reads."""
        rounded = (source_of(i)[0] for i in data_inputs(self.nodes[step.name]))
        nodes = next(self._run_time[name].nodes for name in rounded if name in self._run_time)
        largest = next((self.nodes[name] for name in nodes if self.nodes[name].op == "Max"), None)
        return tuple(np.ravel(self.raw(data_inputs(largest)[1])).tolist()) if largest is not None else (-1,)

    def conversion(self, name: str) -> Literal["", "quantize", "restore"]:
        """What a node does that is there for the form of values only."""
        node, out = self.nodes[name], name_of(name)
        if name in self._skipped or name in self._run_time or out in self._auxiliary:
            return "quantize"
        is_form = self.root.get(out, out) != out or (out in self.constants and "uantize" in node.op)
        if not is_form or node.op in (*_PASSING, "IdentityN"):
            return ""
        return "restore" if self._is_dequantizer(node) or node.op == "Cast" else "quantize"

    # reading

    def _read(self, node: Any) -> None:
        inputs = data_inputs(node)
        outputs = self._outputs(node)
        if node.op in _CONSTANTS or (inputs and all(i in self.constants for i in inputs) and node.op not in _RANDOM):
            self.constants.update(outputs)
            if node.op not in (*_CONSTANTS, "Identity", "StopGradient"):
                self._computed.add(node.name)
            return
        if (
            inputs
            and all(i in self.constants or i in self._auxiliary for i in inputs)
            and node.name not in self._run_time
        ):
            self._auxiliary.update(outputs)
            return
        first = inputs[0] if inputs else ""
        if first not in self.root:
            first = ""
        if node.name in self._run_time:
            self._join(self._run_time[node.name].source, outputs[0], unknown_grid("int8"), is_read=False)
            return
        if first and node.op in _PASSING and node.name not in self.root:
            self.root[outputs[0]] = self.root[first]
        elif node.op == "IdentityN":
            self.root.update({out: self.root[i] for out, i in zip(outputs, inputs, strict=True) if i in self.root})
        elif first and node.op == "Cast" and {self.tensor(first).dtype, self.tensor(outputs[0]).dtype} <= _FLOATS:
            self.root[outputs[0]] = self.root[first]
        elif first and (found := self._quantization_by(node, inputs)) is not None:
            self._join(first, outputs[0], found, is_read=True)
        elif first and (chain := self._rounding_chain(node)):
            self._skipped.update(n.name for n in chain)
            self._join(first, name_of(chain[-1].name), self._chain_grid(chain), is_read=False)
        elif first and self._is_dequantizer(node):
            self._join(first, outputs[0], self._read_as(node, inputs), is_read=True)
        elif any(i in self.root for i in inputs) or self._is_source(node, inputs):
            self._add_step(node, inputs, outputs)

    def _is_source(self, node: Any, inputs: Sequence[str]) -> bool:
        """Real numbers out of whole ones, as of a table of embeddings; shapes and their like are no values."""
        return bool(inputs) and any(self.tensor(out).dtype in _FLOATS for out in self._outputs(node))

    def _outputs(self, node: Any) -> list[str]:
        return [name_of(t.name) for t in self.tf_graph.get_operation_by_name(node.name).outputs]

    def _join(self, first: str, out: str, found: Quantization | None, *, is_read: bool) -> None:
        """`out` is the same value as `first`, in another form."""
        value = self.values[self.root[first]]
        self.root[out] = value.root
        if value.quantization is None:
            value.quantization = found
        is_fixed = found is value.quantization and found is not None and found.scale is not None
        can_be_read = self.tensor(out).dtype in _FLOATS or (is_fixed and not any(map(adds_to, self.readers[out])))
        if is_read and value.read == value.root and can_be_read:
            value.read = out

    def _known(self, name: str) -> Array | None:
        return self.raw(name) if name in self.constants else None

    def _quantization_by(self, node: Any, inputs: list[str]) -> Quantization | None:
        """What a node rounds its first input to, if that is all that it does."""
        if node.op in FAKE:
            return of_fake_quantization(node, inputs, self._known)
        if node.op in ROUND_TRIPS:
            return of_round_trip(node, inputs, self._known)
        if node.op == "QuantizeV2":
            dtype = _WHOLE[tf.dtypes.as_dtype(attribute(node, "T").type)]
            mode = attribute(node, "mode").s.decode() or "MIN_COMBINED"
            return of_range(dtype, *self._range_behind(node, inputs), mode, is_kernel=False)
        if node.op == "UniformQuantize":
            return self._uniform(inputs[1:3], tf.dtypes.as_dtype(attribute(node, "Tout").type))
        if self._composite(node) == "quantize_i8":
            return self._uniform(inputs[1:3], tf.int8)
        return None

    def _range_behind(self, node: Any, inputs: Sequence[str]) -> tuple[Array | None, Array | None]:
        """The range that a QuantizeV2 gives beside its numbers: some kernels make it symmetric, others do not."""
        ends = self._known(inputs[1]), self._known(inputs[2])
        if ends[0] is None or ends[1] is None or attribute(node, "mode").s != b"SCALED":
            return ends
        source = self.tensor(inputs[0])
        shape = (1,) if source.shape.rank is None else [n or 1 for n in source.shape.as_list()]
        with tf.compat.v1.Session(graph=self.tf_graph, config=session_config()) as session:
            low, high = session.run([f"{node.name}:1", f"{node.name}:2"], {source: np.zeros(shape, np.float32)})
        return low, high

    def _uniform(self, parameters: Sequence[str], dtype: Any, axis: int = -1) -> Quantization:
        scale, zero = (self._known(p) for p in parameters)
        return unknown_grid(_WHOLE[dtype]) if scale is None or zero is None else grid(_WHOLE[dtype], scale, zero, axis)

    def _composite(self, node: Any) -> str:
        found = COMPOSITE.match(attribute(node, "f").func.name) if node.op in _CALLS else None
        return found[1] if found is not None else ""

    def _is_dequantizer(self, node: Any) -> bool:
        return node.op in ("Dequantize", "UniformDequantize") or self._composite(node) == "dequantize_i8"

    def _read_as(self, node: Any, inputs: list[str]) -> Quantization | None:
        if node.op != "Dequantize":
            return self._uniform(inputs[1:3], self.tensor(inputs[0]).dtype)
        dtype = _WHOLE.get(self.tensor(inputs[0]).dtype)
        mode = attribute(node, "mode").s.decode() or "MIN_COMBINED"
        ends = self._known(inputs[1]), self._known(inputs[2])
        return of_range(dtype, *ends, mode, is_kernel=False) if dtype else None

    def _rounding_chain(self, node: Any) -> list[Any]:
        """X / scale + zero, between two ends, rounded, as whole numbers: what `quantize_saved_model` writes for XLA."""
        found = [node]
        for allowed in (("Div", "RealDiv", "Mul"), ("AddV2",), ("Maximum",), ("Minimum",), ("Round",), ("Cast",)):
            if found[-1].op not in allowed:
                return []
            if found[-1].op in ("Round", "Cast") or all(i in self.constants for i in data_inputs(found[-1])[1:]):
                if allowed == ("Cast",):
                    return found if self.tensor(found[-1].name).dtype == tf.int8 else []
                readers = self.readers[found[-1].name]
                if len(readers) == 1:
                    found.append(readers[0])
                    continue
            return []
        return []

    def _chain_grid(self, chain: Sequence[Any]) -> Quantization:
        scale, zero = (self.raw(data_inputs(n)[1]) for n in chain[:2])
        return grid("int8", 1 / scale if chain[0].op == "Mul" else scale, np.rint(zero))

    # steps

    def _add_step(self, node: Any, inputs: list[str], outputs: list[str]) -> None:
        composite = self._composite(node)
        chain, fused = self._behind_sum(node) if self.tensor(outputs[0]).dtype in _SUMS else ([], "")
        end = chain[-1] if chain else node
        made = self._outputs(end) if chain else outputs
        # A quantized kernel gives the range of its result beside it; those are no values.
        kept = made[:1] if self._is_kernel(end) else [m for m in made if self._is_value(m)]
        if graph_type(node.op) in LOOPS:  # what else they hand around is nobody's business
            kept = [m for m in kept if self._is_read(m)] or kept[:1]
        if not kept or not self._is_value(kept[0]):
            return
        self._skipped.update(n.name for n in chain)
        self.part_of.update((n.name, node.name) for n in chain)
        step = Step(
            len(self.steps), node.name, composite or node.op, composite_type(composite) if composite else
            graph_type(node.op), [self.root[i] for i in inputs if i in self.root and self._is_value(i)],
            [i for i in inputs if i in self.constants], kept, _origins([node.name, end.name]),
            _settings(node, bool(inputs) and inputs[0] in self.constants),
            axis=1 if attribute(node, "data_format").s.startswith(b"NC") else -1,
        )  # fmt: skip
        self._find_weight(step, node, inputs)
        step.bias = self._find_bias(step, node, inputs, chain)
        step.is_dynamic = any(source_of(i)[0] in self._run_time for i in inputs)
        step.is_integer = bool(composite) or self._is_kernel(node) or node.op.startswith(("Uniform", "Xla"))
        if node.op.startswith("Xla"):
            self._find_factor(step, chain)
            fused = fused or ("Relu" if step.zero == _LOWEST else "")  # what is below zero has no number
        step.activation = fused or (self._fused(node, composite) if step.type not in ACTIVATIONS else "")
        for out in kept:
            is_whole = self.tensor(out).dtype in _WHOLE
            self.new_value(out, self._result_grid(end, step) if is_whole else None, is_integer=is_whole)
        self.add(step)

    def _find_factor(self, step: Step, chain: Sequence[Any]) -> None:
        factor = next((n for n in chain if n.op == "Mul"), None)
        if factor is not None:
            step.factor = self.raw(data_inputs(factor)[1]).ravel()
            behind = chain[chain.index(factor) + 1 :]
            if behind and behind[-1].op == "Cast":
                zeros = (float(self.raw(data_inputs(n)[1])) for n in behind if n.op == "AddV2")
                step.zero = round(next(zeros, 0.0))

    def _is_value(self, name: str) -> bool:
        return self.tensor(name).dtype in _FLOATS or self.tensor(name).dtype in _WHOLE

    def _is_read(self, name: str) -> bool:
        return bool(self.readers[name]) or any(name_of(tensor) == name for _, tensor in self.source.outputs)

    def _is_kernel(self, node: Any) -> bool:
        return "Quantize" in node.op or node.op.startswith("Requantize")

    def _behind_sum(self, node: Any) -> tuple[list[Any], str]:
        """What turns the sums of a product of whole numbers into its result, and the activation among it."""
        chain: list[Any] = []
        fused = ""
        name = name_of(node.name)
        while len(readers := self.readers[name]) == 1 and readers[0].op in _REST_OF_A_SUM:
            following = readers[0]
            others = [i for i in data_inputs(following) if i != name and not i.startswith(f"{node.name}:")]
            if not all(map(self._is_scale, others)):
                break
            is_scaled = chain and self.tensor(name).dtype in _FLOATS
            if is_scaled and following.op not in (*ACTIVATIONS, "Identity", "Mul", "RealDiv"):
                break
            chain.append(following)
            name = name_of(following.name)
            if following.op in ("Relu", "Relu6", "UniformQuantizedClipByValue"):
                fused = "Relu" if following.op != "Relu6" else "Relu6"
            if following.op in ("UniformRequantize", "Requantize", "RequantizePerChannel"):
                break
            if following.op == "Mul" and (tail := self._rounding_tail(name)):
                chain += tail
                break
        return chain, fused

    def _rounding_tail(self, name: str) -> list[Any]:
        """What makes int8 of scaled sums again: + zero, between two ends, rounded."""
        found: list[Any] = []
        for op in ("AddV2", "Maximum", "Minimum", "Round", "Cast"):
            readers = self.readers[name]
            if len(readers) != 1 or readers[0].op != op:
                if op == "AddV2":
                    continue  # no zero point
                return []
            found.append(readers[0])
            name = name_of(readers[0].name)
        return found if self.tensor(name).dtype == tf.int8 else []

    def _is_scale(self, name: str) -> bool:
        """It depends on the data by the scale of what a layer reads, if at all."""
        if name in self.constants or name in self._auxiliary:
            return True
        node = self.nodes[source_of(name)[0]]
        return node.op in _CONSTANTS or (bool(node.input) and all(map(self._is_scale, data_inputs(node))))

    def _fused(self, node: Any, composite: str) -> str:
        words = [s.decode() for s in (*attribute(node, "fused_ops").list.s, attribute(node, "activation_mode").s)]
        named = next((w for w in words if w in ACTIVATIONS), "")
        if named:
            return named
        text = composite.replace("_", "").lower() if composite else node.op.lower()
        return "Relu6" if "relu6" in text else "Relu" if "relu" in text else ""

    def _result_grid(self, node: Any, step: Step) -> Quantization | None:
        inputs = data_inputs(node)
        composite = self._composite(node)
        if node.op == "Cast":
            return unknown_grid("int8")
        if composite:
            return self._uniform(inputs[-2:], tf.int8)
        dtype = self.tensor(name_of(node.name)).dtype
        if node.op == "UniformRequantize":
            return self._uniform(inputs[3:5], dtype)
        if node.op.startswith("Uniform"):
            return self._uniform(inputs[-2:], dtype)
        frozen = self._frozen_range(node, inputs)
        if frozen is not None:
            return of_range(_WHOLE[dtype], *frozen)
        before = [self.values[v].quantization for v in step.values]
        return before[0] if before and before[0] is not None else unknown_grid(_WHOLE[dtype])

    def _frozen_range(self, node: Any, inputs: Sequence[str]) -> tuple[Array | None, Array | None] | None:
        """The range that a kernel was told to give its result."""
        if "Requantize" not in node.op and not any(b"Requantize" in s for s in attribute(node, "fused_ops").list.s):
            return None
        if node.op.startswith("Requantize"):
            return self._known(inputs[3]), self._known(inputs[4])
        at = 7 if self._has_bias(node) else 6
        if node.op.startswith("_"):  # with all of its inputs before all of their ranges
            scalars = [i for i in inputs if i in self.constants and self.raw(i).size == 1]
            return (self._known(scalars[-2]), self._known(scalars[-1])) if len(scalars) > 1 else (None, None)
        return (self._known(inputs[at]), self._known(inputs[at + 1])) if len(inputs) > at + 1 else (None, None)

    # weights

    def _find_weight(self, step: Step, node: Any, inputs: list[str]) -> None:
        places = {"Gather": (0,), "MatMul": (1, 0)}.get(step.type, (1,))
        if node.op == "Conv2DBackpropInput":
            step.values = [self.root[inputs[2]]] if len(inputs) > 2 and inputs[2] in self.root else step.values
        if step.type not in (*WEIGHTED, "Gather"):
            return
        for at in places:
            if at < len(inputs) and inputs[at] in self.constants and self.tensor(inputs[at]).shape.num_elements() != 1:
                step.weight = inputs[at]
                step.weight_quantization = self._weight_grid(step, node, inputs)
                return

    def _weight_grid(self, step: Step, node: Any, inputs: list[str]) -> Quantization | None:
        composite = self._composite(node)
        axis = 2 if "epthwise" in node.op or "depthwise" in composite else -1
        if composite:
            at = 5 if "bias" in composite else 4
            return self._uniform(inputs[at : at + 2], tf.int8, axis) if len(inputs) > at + 1 else None
        if node.op.startswith("UniformQuantized"):
            return self._uniform(inputs[4:6], tf.int8, axis)
        if node.op.startswith("Xla"):
            return unknown_grid("int8") if self.tensor(step.weight).dtype in _WHOLE else None  # the factor tells it
        if any(source_of(i)[0] in self._run_time for i in inputs):
            return self._keras_weight_grid(node)
        if self._is_kernel(node) and self.tensor(step.weight).dtype in _WHOLE:
            at = 5 if self._has_bias(node) else 4
            ends = [self._known(i) for i in inputs[at : at + 2]]
            if len(ends) == 2 and ends[0] is not None and ends[1] is not None:
                return of_range("int8", ends[0], ends[1], axis=axis)
        return self._rounded_constant(step.weight, axis)

    def _has_bias(self, node: Any) -> bool:
        return "WithBias" in node.op or any(s == b"BiasAdd" for s in attribute(node, "fused_ops").list.s)

    def _keras_weight_grid(self, node: Any) -> Quantization | None:
        """The divisor behind the sum is the input's scale times the weights', each as steps for one."""
        chain, _ = self._behind_sum(node)
        divisor = next((self.nodes[source_of(data_inputs(n)[1])[0]] for n in chain if n.op == "RealDiv"), None)
        factors = [i for i in data_inputs(divisor) if i not in self._auxiliary] if divisor is not None else []
        return grid("int8", 1 / self.raw(factors[0]).ravel(), 0, -1) if len(factors) == 1 else None

    def _rounded_constant(self, name: str, axis: int) -> Quantization | None:
        """The rounding that a constant went through in the graph."""
        node, _ = source_of(name)
        found = self.nodes[node]
        while found.op in (
            *_PASSING,
            "Reshape",
            "Transpose",
            "Cast",
            *FAKE,
            *ROUND_TRIPS,
            "Dequantize",
            "UniformDequantize",
        ):
            inputs = data_inputs(found)
            if found.op in FAKE or found.op in ROUND_TRIPS:
                rounding = self._quantization_by(found, inputs)
                is_per_channel = rounding is not None and rounding.axis is not None and found.op in FAKE
                return replace(rounding, axis=axis) if rounding is not None and is_per_channel else rounding
            if found.op in ("Dequantize", "UniformDequantize"):
                return self._read_as(found, inputs)
            found = self.nodes[source_of(inputs[0])[0]]
        return None

    def _find_bias(self, step: Step, node: Any, inputs: list[str], chain: Sequence[Any]) -> str:
        if step.type not in WEIGHTED:
            return ""
        if self._composite(node):
            has_bias = "bias" in self._composite(node) and len(inputs) > 2
        else:
            has_bias = self._has_bias(node) and len(inputs) > 2
        if has_bias:
            return inputs[2] if inputs[2] in self.constants else ""
        added = next((n for n in chain if n.op in ("UniformQuantizedAdd", "AddV2")), None)
        return data_inputs(added)[1] if added is not None else ""

    # constants

    def raw(self, name: str) -> Array:
        """As it is stored."""
        if name not in self._made:
            node = self.nodes[source_of(name)[0]]
            while node.op in ("Identity", "StopGradient"):
                node = self.nodes[source_of(data_inputs(node)[0])[0]]
            if node.op in _CONSTANTS:
                self._made[name] = _plain(tf.make_ndarray(attribute(node, "value").tensor))
            else:
                self._evaluate(name)
        return self._made[name]

    def _evaluate(self, name: str) -> None:
        """With the others that steps read: a run takes longer than what it is to do."""
        read = {c for step in self.steps for c in step.constants if source_of(c)[0] in self._computed}
        names = [name, *sorted(read - {name} - set(self._made))]
        arrays = self._evaluator.run([self.tensor(n) for n in names])
        self._made.update(zip(names, map(_plain, arrays), strict=True))

    @cached_property
    def _evaluator(self) -> Any:
        """One for all constants: opening a session takes longer than what it is to do."""
        return tf.compat.v1.Session(graph=self.tf_graph, config=session_config())

    def constant(self, name: str) -> Array:
        return self.raw(name)

    def weight(self, step: Step) -> Array:
        stored = self.raw(step.weight)
        quantization = step.weight_quantization
        if stored.dtype.kind in "iu" and quantization is not None and quantization.scale is None:
            stored = stored.astype(np.float32)  # but for their scale
        elif stored.dtype.kind in "iu" and quantization is not None:
            if quantization.axis is not None and quantization.scale is not None:
                quantization = _on_fitting_axis(quantization, stored.shape)
            stored = dequantize(stored, quantization)
        return self.canonical(step, stored)

    def canonical(self, step: Step, stored: Array) -> Array:
        node = self.nodes[step.name]
        if is_depthwise(node, self._composite(node)) and stored.ndim == 4:
            return stored.reshape(*stored.shape[:2], -1)
        if step.type == "ConvTranspose" and stored.ndim == 4:
            return stored.swapaxes(-1, -2)
        if step.type == "MatMul" and _is_transposed(node, step.weight == data_inputs(node)[1]):
            return stored.swapaxes(-1, -2)
        return stored

    def stored(self, step: Step, canonical: Array) -> Array:
        """The way back of `canonical`."""
        shape = self.raw(step.weight).shape
        node = self.nodes[step.name]
        if step.type == "ConvTranspose" or (
            step.type == "MatMul" and _is_transposed(node, step.weight == data_inputs(node)[1])
        ):
            canonical = canonical.swapaxes(-1, -2)
        return np.ascontiguousarray(canonical).reshape(shape)

    def weight_shape(self, step: Step) -> tuple[int, ...]:
        return tuple(self.tensor(step.weight).shape.as_list()) if step.weight else ()

    def shape_of(self, root: str) -> tuple[int | None, ...] | None:
        shape = self.tensor(root).shape
        return None if shape.rank is None else tuple(shape.as_list())

    def bias(self, step: Step) -> Array | None:
        if not step.bias:
            return None
        values = self.raw(step.bias)
        if values.dtype.kind == "f":
            return values.ravel()
        node = self.nodes[step.name]
        before = self.values[step.values[0]].quantization if step.values else None
        weights = step.weight_quantization
        if (
            node.op.startswith("Xla")
            or before is None
            or before.scale is None
            or weights is None
            or weights.scale is None
        ):
            return None
        return np.asarray(values.ravel() * (before.scale * weights.scale), np.float32)


def data_inputs(node: Any) -> list[str]:
    return [name_of(i) for i in node.input if not i.startswith("^")]


def adds_to(node: Any) -> bool:
    """Whether a kernel adds its result to one of its inputs, in the memory of that."""
    return "Quantize" in node.op and ("Sum" in node.op or b"Sum" in attribute(node, "fused_ops").list.s)


def name_of(tensor: str) -> str:
    """One name for each tensor: the first result of a node is called like the node."""
    return tensor.removesuffix(":0")


def session_config() -> Any:
    """Nothing is rewritten: every tensor exists and has the value that the graph says."""
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = -1
    return config


def is_depthwise(node: Any, composite: str = "") -> bool:
    if "epthwise" in node.op or "depthwise" in composite:
        return True
    groups = attribute(node, "feature_group_count").i if node.op.startswith("Uniform") else 1
    return bool(groups > 1)


def _is_transposed(node: Any, is_second: bool) -> bool:
    names = ("transpose_b", "adj_y") if is_second else ("transpose_a", "adj_x")
    return any(attribute(node, name).b for name in names if name in node.attr)


def _on_fitting_axis(quantization: Quantization, shape: tuple[int, ...]) -> Quantization:
    """Depthwise weights have their channels on the last axis but one, or on the last, as their kernel likes."""
    size = 0 if quantization.scale is None else quantization.scale.size
    axis = quantization.axis if quantization.axis is not None else -1
    if shape[axis] == size:
        return quantization
    fitting = next((i for i in range(len(shape) - 1, -1, -1) if shape[i] == size), axis)
    return replace(quantization, axis=fitting)


def _plain(array: Any) -> Array:
    """TensorFlow's quantized types come as records of one field."""
    array = np.asarray(array)
    return np.asarray(array.view(array.dtype[0]) if array.dtype.names else array)


def _settings(node: Any, is_constant_first: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"constant_first": is_constant_first}
    if b"FusedBatchNorm" in attribute(node, "fused_ops").list.s:
        found["has_norm"] = True
    if "epsilon" in node.attr:
        found["epsilon"] = attribute(node, "epsilon").f
    if "ksize" in node.attr:
        channels_first = attribute(node, "data_format").s.startswith(b"NC")
        ends = slice(2, 4) if channels_first else slice(1, 3)
        found["window"] = tuple(n for k in ("ksize", "strides") for n in list(attribute(node, k).list.i)[ends])
    return found


def _origins(names: Sequence[str]) -> frozenset[str]:
    found: set[str] = set()
    for name in names:
        for part in (name, *name.split(".")):
            found |= {part, _MADE_OF.sub("", part), part.rpartition("/tf.")[0]}
    return frozenset(found - {""})


def in_order(nodes: Sequence[Any]) -> Iterator[Any]:
    """Every node behind those that it reads from, otherwise as in the file."""
    by_name = {node.name: node for node in nodes}
    done: set[str] = set()
    for start in nodes:
        stack = [start.name]
        while stack:
            name = stack[-1]
            waiting = [
                s for s, _ in map(source_of, by_name[name].input) if s not in done and s != name and s in by_name
            ]
            waiting = [s for s in waiting if s not in stack]  # loops of control flow
            if name in done or not waiting:
                stack.pop()
                if name not in done:
                    done.add(name)
                    yield by_name[name]
            else:
                stack += waiting


def bytes_of(graph: FrozenGraph, root: str) -> int:
    shape = graph.tensor(root).shape
    return 4 * prod(n or 1 for n in shape.as_list()) if shape.rank is not None else 0
