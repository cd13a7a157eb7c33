"""A frozen graph as steps and values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Any, Literal

import numpy as np

from inc_tb.errors import ModelError
from inc_tb.frameworks.ops import Array, Input, Quantization
from inc_tb.frameworks.rounding import dequantize
from inc_tb.frameworks.tensorflow.forms import Frozen, source_of
from inc_tb.frameworks.tensorflow.frozen_grids import FrozenGrids
from inc_tb.frameworks.tensorflow.graph import Step
from inc_tb.frameworks.tensorflow.grids import (
    attribute,
    unknown_grid,
)
from inc_tb.frameworks.tensorflow.kinds import ACTIVATIONS, LOOPS, WEIGHTED, composite_type, graph_type
from inc_tb.frameworks.tensorflow.library import tf
from inc_tb.frameworks.tensorflow.nodes import (
    adds_to,
    data_inputs,
    is_depthwise,
    is_transposed,
    name_of,
    on_fitting_axis,
    settings,
)

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
_FLOATS = {tf.float32, tf.float16, tf.bfloat16, tf.float64}
_WHOLE = {tf.qint8: "int8", tf.quint8: "uint8", tf.int8: "int8", tf.uint8: "uint8", tf.qint16: "int16"}
_SUMS = {tf.qint32, tf.int32}
_LOWEST = -128
_MADE_OF = re.compile(r"(?:_\d{6,}_\d+)+$|\.+$|_eightbit_.*$")


class FrozenGraph(FrozenGrids):
    def __init__(self, source: Frozen) -> None:
        super().__init__(source)
        self._read_inputs()
        for node in self.nodes.values():
            if node.name not in self._skipped:
                self._read(node)
        self.result_names = [name for name, _ in source.outputs]
        self.outputs = [self._result(name_of(tensor)) for _, tensor in source.outputs]

    def _read_inputs(self) -> None:
        for name, tensor in self.source.inputs:
            found = self.tensor(tensor)
            shape = () if found.shape.rank is None else tuple(found.shape.as_list())
            is_known = found.shape.rank is not None
            self.inputs.append(Input(name, np.dtype(found.dtype.as_numpy_dtype), shape, is_known))
            self.new_tensor(name_of(tensor))
            self.input_roots[name] = name_of(tensor)

    def _result(self, name: str) -> str:
        if name not in self.root:
            raise ModelError(f"{self.name}: its result {name} does not depend on its inputs; expected a network.")
        return self.root[name]

    def conversion(self, name: str) -> Literal["", "quantize", "restore"]:
        """What a node does that is there for the form of values only."""
        node, out = self.nodes[name], name_of(name)
        if name in self._skipped or name in self._run_time or out in self._auxiliary:
            return "quantize"
        is_form = self.root.get(out, out) != out or (out in self.constants and "uantize" in node.op)
        if not is_form or node.op in (*_PASSING, "IdentityN"):
            return ""
        return "restore" if self._is_dequantizer(node) or node.op == "Cast" else "quantize"

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

    def _join(self, first: str, out: str, found: Quantization | None, *, is_read: bool) -> None:
        """`out` is the same value as `first`, in another form."""
        value = self.tensors[self.root[first]]
        self.root[out] = value.root
        if value.quantization is None:
            value.quantization = found
        is_fixed = found is value.quantization and found is not None and found.scale is not None
        can_be_read = self.tensor(out).dtype in _FLOATS or (is_fixed and not any(map(adds_to, self.readers[out])))
        if is_read and value.read == value.root and can_be_read:
            value.read = out

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
            [i for i in inputs if i in self.constants], kept, also=_origins([node.name, end.name]),
            settings=settings(node, bool(inputs) and inputs[0] in self.constants),
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
            self.new_tensor(out, self._result_grid(end, step) if is_whole else None, is_integer=is_whole)
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

    def _fused(self, node: Any, composite: str) -> str:
        words = [s.decode() for s in (*attribute(node, "fused_ops").list.s, attribute(node, "activation_mode").s)]
        named = next((w for w in words if w in ACTIVATIONS), "")
        if named:
            return named
        text = composite.replace("_", "").lower() if composite else node.op.lower()
        return "Relu6" if "relu6" in text else "Relu" if "relu" in text else ""

    def _find_weight(self, step: Step, node: Any, inputs: list[str]) -> None:
        places = {"Gather": (0,), "MatMul": (1, 0)}.get(step.type, (1,))
        if node.op == "Conv2DBackpropInput":
            step.reads = [self.root[inputs[2]]] if len(inputs) > 2 and inputs[2] in self.root else step.reads
        if step.type not in (*WEIGHTED, "Gather"):
            return
        for at in places:
            if at < len(inputs) and inputs[at] in self.constants and self.tensor(inputs[at]).shape.num_elements() != 1:
                step.weight = inputs[at]
                step.weight_quantization = self._weight_grid(step, node, inputs)
                return

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

    def weight(self, step: Step) -> Array:
        stored = self.raw(step.weight)
        quantization = step.weight_quantization
        if stored.dtype.kind in "iu" and quantization is not None and quantization.scale is None:
            stored = stored.astype(np.float32)  # but for their scale
        elif stored.dtype.kind in "iu" and quantization is not None:
            if quantization.axis is not None and quantization.scale is not None:
                quantization = on_fitting_axis(quantization, stored.shape)
            stored = dequantize(stored, quantization)
        return self.canonical(step, stored)

    def canonical(self, step: Step, stored: Array) -> Array:
        node = self.nodes[step.name]
        if is_depthwise(node, self._composite(node)) and stored.ndim == 4:
            return stored.reshape(*stored.shape[:2], -1)
        if step.type == "ConvTranspose" and stored.ndim == 4:
            return stored.swapaxes(-1, -2)
        if step.type == "MatMul" and is_transposed(node, step.weight == data_inputs(node)[1]):
            return stored.swapaxes(-1, -2)
        return stored

    def stored(self, step: Step, canonical: Array) -> Array:
        """The way back of `canonical`."""
        shape = self.raw(step.weight).shape
        node = self.nodes[step.name]
        if step.type == "ConvTranspose" or (
            step.type == "MatMul" and is_transposed(node, step.weight == data_inputs(node)[1])
        ):
            canonical = canonical.swapaxes(-1, -2)
        return np.ascontiguousarray(canonical).reshape(shape)

    def bias(self, step: Step) -> Array | None:
        if not step.bias:
            return None
        values = self.raw(step.bias)
        if values.dtype.kind == "f":
            return values.ravel()
        node = self.nodes[step.name]
        before = self.tensors[step.reads[0]].quantization if step.reads else None
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


def _origins(names: Sequence[str]) -> frozenset[str]:
    found: set[str] = set()
    for name in names:
        for part in (name, *name.split(".")):
            found |= {part, _MADE_OF.sub("", part), part.rpartition("/tf.")[0]}
    return frozenset(found - {""})


def bytes_of(graph: FrozenGraph, root: str) -> int:
    shape = graph.tensor(root).shape
    return 4 * prod(n or 1 for n in shape.as_list()) if shape.rank is not None else 0
