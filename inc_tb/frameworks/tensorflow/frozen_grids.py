"""How nodes of a frozen graph say that a tensor is quantized: in every way that a tool has for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from inc_tb.frameworks.ops import Array, Quantization
from inc_tb.frameworks.tensorflow.forms import source_of
from inc_tb.frameworks.tensorflow.frozen_nodes import FrozenNodes
from inc_tb.frameworks.tensorflow.graph import Step
from inc_tb.frameworks.tensorflow.grids import (
    FAKE,
    ROUND_TRIPS,
    attribute,
    grid,
    of_fake_quantization,
    of_range,
    of_round_trip,
    unknown_grid,
)
from inc_tb.frameworks.tensorflow.kinds import ACTIVATIONS
from inc_tb.frameworks.tensorflow.library import tf
from inc_tb.frameworks.tensorflow.nodes import (
    data_inputs,
    name_of,
    session_config,
)

_CONSTANTS = {"Const", "HostConst"}
_PASSING = {
    "Identity", "StopGradient", "PreventGradient", "CheckNumerics", "Print", "Snapshot", "PlaceholderWithDefault",
    "EnsureShape", "DebugIdentity", "DebugIdentityV2", "DebugIdentityV3",
}  # fmt: skip
_FLOATS = {tf.float32, tf.float16, tf.bfloat16, tf.float64}
_WHOLE = {tf.qint8: "int8", tf.quint8: "uint8", tf.int8: "int8", tf.uint8: "uint8", tf.qint16: "int16"}
_REST_OF_A_SUM = {
    "UniformQuantizedAdd", "UniformQuantizedClipByValue", "UniformRequantize", "Requantize", "RequantizePerChannel",
    "Cast", "AddV2", "Add", "Sub", "Mul", "RealDiv", "Maximum", "Minimum", "Relu", "Relu6", "Identity", "Round",
}  # fmt: skip
"""What scales the whole numbers that a product of integers has added up, and cuts them to size."""


class FrozenGrids(FrozenNodes):
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
        before = [self.tensors[v].quantization for v in step.reads]
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
