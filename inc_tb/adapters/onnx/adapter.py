"""Two ONNX models as ops and pairs of arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from inc_tb.adapters.common import fitted, linked, with_unmatched
from inc_tb.adapters.onnx.graph import Graph, Step
from inc_tb.adapters.onnx.match import Match, Matching
from inc_tb.adapters.onnx.model import Model, attribute, subgraphs
from inc_tb.adapters.onnx.passes import Result, Runner
from inc_tb.capture import Array, Batch, Input, Pair
from inc_tb.errors import ModelError
from inc_tb.records import Op, Quantization

_MOST_SAMPLES = 32
_CHANNELS_FIRST = {"Conv", "ConvTranspose", "BatchNormalization", "MaxPool", "AveragePool", "GlobalAveragePool",
                   "GlobalMaxPool", "InstanceNormalization", "LRN", "Resize", "Upsample", "DepthToSpace"}  # fmt: skip
_CHANNELS_LAST = {"MatMul", "Gemm", "LayerNormalization", "Attention", "Softmax", "Gather"}
_ACTIVATIONS = {"Relu", "Clip", "BatchNormalization", "LeakyRelu", "Add", "Mul"}


class OnnxAdapter:
    framework = "onnx"

    def __init__(self, reference: Any, quantized: Any, *, memory_budget: int = 1 << 30) -> None:
        self._budget = memory_budget
        self._reference = Graph(Model(reference))
        self._quantized = Graph(Model(quantized))
        self._matching = Matching(self._reference, self._quantized)
        self._inputs = self._describe_inputs()
        names = {i.name for i in self._inputs}
        self._points = {r: q for r, q in self._matching.points.items() if r in self._reference.types or r in names}
        self._compared = self._choose_compared()
        self._axes = _channel_axes(self._reference)
        self._ops = self._describe_ops()
        self._op_at = {match.end.outputs[0]: op for op, match in self._compared.items()}
        readers = self._find_readers()
        self._op_at |= readers
        self._runner = Runner(
            self._reference, self._quantized, self._points,
            [match.end.outputs[0] for match in self._compared.values()], list(readers), memory_budget,
        )  # fmt: skip
        self.notes = self._runner.notes
        self._note_subgraphs()
        self._note_unnamed()
        self._note_batch_norms()

    def twins(self) -> dict[str, list[str]]:
        """Op of the quantized model -> ops of the reference that it stands for."""
        found: dict[str, list[str]] = {}
        for match in self._matching.matches.values():
            found.setdefault(match.twin.name, []).extend(step.name for step in (match.step, *match.folded))
        graph = self._quantized
        made_by = {out: step.name for step in graph.steps for out in step.outputs}
        return with_unmatched(found, {s.name: [made_by[v] for v in s.values if v in made_by] for s in graph.steps})

    def inputs(self) -> Sequence[Input]:
        return self._inputs

    def batch_size(self) -> int:
        one = {i.name: np.empty([1 if n is None else n for n in i.shape], i.dtype) for i in self._inputs}
        return max(1, min(_MOST_SAMPLES, self._budget // max(1, self._runner.bytes_needed(one))))

    def trace(self, batch: Batch) -> None:
        """Nothing to find out: the file says it all."""

    def ops(self) -> Sequence[Op]:
        return self._ops

    def weights(self) -> Iterator[Pair]:
        known = {op.name for op in self._ops}
        for match in self._matching.matches.values():
            found = self._matching.weights(match) if match.step.name in known else None
            if found is not None and found.reference.size:
                yield Pair(
                    match.step.name, match.step.weight, "weight", found.reference, found.quantized,
                    found.axis if found.reference.ndim > 1 else None,
                )  # fmt: skip

    def run(self, batch: Batch) -> Iterator[Pair]:
        for result in self._runner.run(self._fitted(batch)):
            op = self._op_at[result.tensor]
            yield Pair(op, result.tensor, result.role, result.reference, result.quantized, self._axis(result))
        self._explain_misfits()

    def _axis(self, result: Result) -> int | None:
        ndim = result.reference.ndim
        if ndim < 2:
            return None
        return self._axes[result.tensor] if result.role != "input" else 1 if ndim > 3 else ndim - 1

    def _explain_misfits(self) -> None:
        """Ops whose output turned out to be another tensor in the quantized model are not compared after all."""
        for tensor, reason in self._runner.misfits.items():
            for op in self._ops:
                if op.compared_at and op.compared_at == self._op_at.get(tensor):
                    is_itself = op.name == op.compared_at
                    op.note = reason if is_itself else f"part of {op.compared_at}, which is not compared: {reason}"
                    op.compared_at = ""

    def _describe_inputs(self) -> list[Input]:
        """The reference's inputs; lengths that only the quantized model fixes hold for both."""
        theirs = {i.name: describe_input(i, self._quantized.model) for i in self._quantized.model.inputs}
        found = []
        for info in self._reference.model.inputs:
            mine = describe_input(info, self._reference.model)
            twin = theirs[self._matching.points[mine.name]]
            shape = mine.shape
            if len(twin.shape) == len(shape):
                shape = tuple(m if n is None else n for n, m in zip(shape, twin.shape, strict=True))
            found.append(mine._replace(shape=shape))
        return found

    def _find_readers(self) -> dict[str, str]:
        """Inputs of the model that are quantized with a fixed scale, and the first op that reads each."""
        found = {}
        for name in (i.name for i in self._inputs if i.name in self._reference.types):
            quantization = self._quantized.values[self._points[name]].quantization
            readers = [step.name for step in self._reference.consumers[name]]
            first = next((op.name for op in self._ops if op.name in readers), None)
            if quantization is not None and quantization.scale is not None and first is not None:
                found[name] = first
        return found

    def _choose_compared(self) -> dict[str, Match]:
        """Ops whose output can be compared: real numbers, and a point of their own."""
        return {
            match.step.name: match
            for match in self._matching.matches.values()
            if match.end.outputs[0] in self._points and match.value in self._quantized.producer
        }

    def _describe_ops(self) -> list[Op]:
        folded_into = {s.name: match.step.name for match in self._matching.matches.values() for s in match.folded}
        producers: dict[str, str] = {}
        unit: dict[str, str] = {}
        ops: list[Op] = []
        for step in self._reference.steps:
            inputs = list(dict.fromkeys(producers[v] for v in step.values if v in producers))
            if not any(out in self._reference.types for out in step.outputs):
                continue
            producers.update({out: step.name for out in step.outputs if out})
            op = Op(step.name, step.node.op_type, len(ops), block=_block(step), inputs=inputs, tensor=step.outputs[0])
            op.module = module_of(step.node)
            op.unit = unit[op.name] = self._unit(step, inputs, unit, step.name in folded_into)
            if step.name in folded_into:
                op.compared_at = folded_into[step.name]
                op.note = f"part of {op.compared_at} in the quantized model; compared there"
            elif step.name in self._compared:
                self._describe_quantization(op, self._compared[step.name])
            else:
                op.note = self._matching.missing.get(step.index, "its output is not a value of its own when quantized")
            ops.append(op)
        return linked(ops)

    def _describe_quantization(self, op: Op, match: Match) -> None:
        op.compared_at, op.tensor = op.name, match.end.outputs[0]
        op.weight = match.twin.weight_quantization
        op.activation = self._quantized.values[match.value].quantization
        if op.activation is None and match.twin.dynamic:
            op.activation = Quantization("uint8", None, None, 0, 255)
        if match.step.weight:
            op.params = int(np.prod(self._weight_shape(match.step)))

    def _weight_shape(self, step: Step) -> tuple[int, ...]:
        tensor = self._reference.model.initializers.get(step.weight)
        return tuple(tensor.dims) if tensor is not None else self._reference.model.constant(step.weight).shape

    def _unit(self, step: Step, inputs: Sequence[str], unit: dict[str, str], is_folded: bool) -> str:
        """Ops between which nothing is quantized change precision together: Conv, BatchNormalization, Relu."""
        if len(step.values) != 1 or len(inputs) != 1 or inputs[0] not in unit:
            return step.name
        source = step.values[0]
        twin = self._quantized.values.get(self._points.get(source, ""))
        alone = len(self._reference.consumers[source]) == 1
        joins = step.type in _ACTIVATIONS and not step.weight and twin is not None and not twin.scale
        return unit[inputs[0]] if alone and (is_folded or joins) else step.name

    def _note_subgraphs(self) -> None:
        nested = [step.name for step in self._reference.steps if subgraphs(step.node)]
        if nested:
            self.notes.append(f"not looked into, because they hold graphs of their own: {', '.join(nested)}")

    def _note_batch_norms(self) -> None:
        types = {op.name: op.type for op in self._ops}
        alone = [op for op in self._ops if op.type == "BatchNormalization" and op.activation is not None]
        foldable = [op for op in alone if any(types[name] in ("Conv", "ConvTranspose", "Gemm") for name in op.inputs)]
        if foldable:
            self.notes.append(
                f"{len(foldable)} batch norms are quantized by themselves; fold them into the layer before them first "
                "(onnxruntime.quantization.shape_inference.quant_pre_process), or let inc-tb tune do it"
            )

    def _note_unnamed(self) -> None:
        """An op is then called by its output here, which no tool's exclude list understands."""
        unnamed = [step.name for step in self._reference.steps if not step.node.name]
        if unnamed:
            self.notes.append(
                f"{len(unnamed)} ops have no name in the reference's file (first {unnamed[0]}); give all nodes a name "
                "before you quantize, or a tool cannot keep them in fp32 by name"
            )

    def _fitted(self, batch: Batch) -> dict[str, Array]:
        free = [i.name for i in self._inputs if not self._reference.has_rank(i.name)]
        return fitted(batch, self._inputs, free=free)


def read_inputs(source: Any) -> list[Input]:
    model = Model(source)
    return [describe_input(info, model) for info in model.inputs]


def describe_input(info: onnx.ValueInfoProto, model: Model) -> Input:
    tensor = info.type.tensor_type
    if not tensor.elem_type:
        raise ModelError(
            f"{model.name}: the input {info.name} is not a tensor (a sequence, map or optional); expected tensors. "
            "Export the model with plain tensors as inputs."
        )
    shape = tuple(d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else None for d in tensor.shape.dim)
    return Input(info.name, np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type)), shape)


def _block(step: Step) -> str:
    """The part of the model that the op belongs to: its module where the exporter says so, else its path."""
    return module_of(step.node) or step.name.rpartition("/")[0]


def module_of(node: onnx.NodeProto) -> str:
    """As torch's exporter notes it: the names of the modules around the op, the outermost first, and its own."""
    scopes = next((p.value for p in node.metadata_props if p.key == "pkg.torch.onnx.name_scopes"), "")
    names = [part.strip(" '\"[]") for part in scopes.split(",")]
    return next((name for name in reversed(names[:-1]) if name), "")


def _channel_axes(graph: Graph) -> dict[str, int]:
    """Where the channels of each value are; element-wise ops keep the place of their input."""
    axes: dict[str, int] = {}
    for step in graph.steps:
        if step.type in _CHANNELS_FIRST:
            axis: int | None = 1
        elif step.type in _CHANNELS_LAST:
            axis = -1
        elif step.type == "Transpose":
            axis = _moved_axis(step, axes)
        elif step.type in ("Reshape", "Flatten", "Squeeze", "Unsqueeze"):
            axis = 1 if step.type == "Flatten" else -1
        else:
            axis = next((axes[v] for v in step.values if v in axes), None)
        for out in step.outputs:
            axes[out] = -1 if axis is None else axis
    return axes


def _moved_axis(step: Step, axes: dict[str, int]) -> int | None:
    order = list(attribute(step.node, "perm", []))
    before = next((axes[v] for v in step.values if v in axes), -1)
    return order.index(before % len(order)) if order else None
