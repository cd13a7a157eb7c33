"""Two ONNX models as ops and pairs of arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from inc_tb.errors import ModelError
from inc_tb.frameworks.channels import input_axis, reshaped_axis
from inc_tb.frameworks.feeds import fitted, whole_inputs
from inc_tb.frameworks.graph_adapter import GraphAdapter
from inc_tb.frameworks.heap import Heap
from inc_tb.frameworks.match import Match
from inc_tb.frameworks.onnx.graph import Graph
from inc_tb.frameworks.onnx.match import Matching
from inc_tb.frameworks.onnx.model import Model, attribute, subgraphs
from inc_tb.frameworks.onnx.passes import Result, Runner
from inc_tb.frameworks.onnx.plan import Planner
from inc_tb.frameworks.onnx.steps import REQUANTIZE, Step
from inc_tb.frameworks.ops import Array, Batch, Input, Pair, Quantization
from inc_tb.records import plural

_CHANNELS_FIRST = {
    "Conv", "ConvTranspose", "BatchNormalization", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool",
    "InstanceNormalization", "LRN", "Resize", "Upsample", "DepthToSpace", "Flatten",
}  # fmt: skip
_CHANNELS_LAST = {
    "MatMul", "Gemm", "LayerNormalization", "Attention", "Softmax", "Gather",
}  # fmt: skip
_RESHAPING = {"Reshape", "Squeeze", "Unsqueeze"}
_ACTIVATIONS = {"Relu", "Clip", "BatchNormalization", "LeakyRelu", "Add", "Mul"}


class OnnxAdapter(GraphAdapter[Step]):
    framework = "onnx"
    dynamic = Quantization("uint8", None, None, 0, 255)

    def __init__(self, reference: Any, quantized: Any, *, memory_budget: int = 1 << 30) -> None:
        self._reference = Graph(Model(reference))
        self._quantized = Graph(Model(quantized))
        super().__init__(self._match())
        self._inputs = self._describe_inputs()
        self._op_at = {**self._compared, **self._readers}
        points = self._points | {name: self.matching.points[name] for name in self._reference.input_roots}
        self.notes: list[str] = []
        whole = whole_inputs(self._inputs)
        planner = Planner(self._reference, self._quantized, whole, memory_budget, self.notes.append)
        self._runner = Runner(
            self._reference, self._quantized, points, list(self._compared), list(self._readers), planner,
            Heap(memory_budget), self.notes,
        )  # fmt: skip
        self._misfits = self._runner.misfits
        self._note_subgraphs()
        self._note_unnamed()
        self._note_batch_norms()

    def _match(self) -> Matching:
        """The type of what is behind ops that ONNX does not know is that of its counterpart."""
        found = Matching(self._reference, self._quantized)
        for tensor, root in found.points.items():
            if tensor in self._reference.types:
                self._quantized.types.setdefault(root, self._reference.types[tensor])
        return found

    def inputs(self) -> Sequence[Input]:
        return self._inputs

    def run(self, batch: Batch) -> Iterator[Pair]:
        for result in self._runner.run(self._fitted(batch), self.samples_at_once):
            op = self._op_at[result.tensor]
            yield Pair(op, result.tensor, result.role, result.reference, result.quantized, self._axis(result))

    def _axis(self, result: Result) -> int | None:
        if result.role == "input":
            return input_axis(result.reference.ndim, channels_last=False)
        return self._axes[result.tensor] if result.reference.ndim > 1 else None

    def _describe_inputs(self) -> list[Input]:
        """The reference's inputs; lengths that only the quantized model fixes hold for both."""
        theirs = {i.name: describe_input(i, self._quantized.model) for i in self._quantized.model.inputs}
        found = []
        for info in self._reference.model.inputs:
            mine = describe_input(info, self._reference.model)
            twin = theirs[self.matching.input_names[mine.name]]
            shape = mine.shape
            if len(twin.shape) == len(shape):
                shape = tuple(m if n is None else n for n, m in zip(shape, twin.shape, strict=True))
            found.append(mine._replace(shape=shape))
        return found

    def _is_blind(self, match: Match[Step]) -> bool:
        own = {step.index for step in (match.twin, *match.inside)}
        real = [root for root in match.reads if self._is_real(root)]
        foreign = (step for step in self._behind(match) if step.index not in own and not _serves(step))
        is_lost = bool(real) and not any(root in self._points for root in real)
        return is_lost or any(map(self._rounds, foreign))

    def _is_rounded(self, match: Match[Step]) -> bool:
        steps = self._behind(match)
        read = (self._quantized.tensors[root] for step in steps for root in step.reads)
        halves = {TensorProto.FLOAT16, TensorProto.BFLOAT16}
        is_shorter = self._quantized.types.get(match.root) in halves
        return is_shorter or any(map(self._rounds, steps)) or any(t.quantization is not None for t in read)

    def _rounds(self, step: Step) -> bool:
        made = (self._quantized.tensors[out].quantization for out in step.outputs if out)
        is_whole = step.is_integer or step.is_dynamic or step.weight_quantization is not None
        return is_whole or any(found is not None for found in made)

    @cached_property
    def _cuts(self) -> frozenset[str]:
        """Roots in the quantized model that are compared."""
        return frozenset(self._points.values())

    def _behind(self, match: Match[Step]) -> list[Step]:
        """The steps of the quantized model that make a result of tensors that are compared."""
        found: dict[int, Step] = {}
        waiting = [match.root]
        while waiting:
            step = self._quantized.producer.get(waiting.pop())
            if step is not None and step.index not in found:
                found[step.index] = step
                waiting += [root for root in step.reads if root not in self._cuts]
        return list(found.values())

    def _is_real(self, root: str) -> bool:
        return root in self._reference.types

    def _joins(self, step: Step) -> bool:
        return step.type in _ACTIVATIONS and not step.weight

    def _channel_axis(self, step: Step, before: int) -> int:
        """Element-wise ops keep the place of their input."""
        if step.type in _CHANNELS_FIRST:
            return 1
        if step.type in _CHANNELS_LAST:
            return -1
        if step.type in _RESHAPING:
            shapes = self._reference.shapes
            return reshaped_axis(shapes.get(step.node.input[0], []), shapes.get(step.outputs[0], []), before) or -1
        if step.type == "Transpose":
            order = list(attribute(step.node, "perm", []))
            return order.index(before % len(order)) if order else -1
        return before

    def _block(self, step: Step) -> str:
        """Its module where the exporter says so, else its path."""
        return step.module or step.name.rpartition("/")[0]

    def _module(self, step: Step) -> str:
        return step.module

    def _params(self, step: Step) -> int:
        return self._reference.model.size(step.weight)

    def _note_subgraphs(self) -> None:
        nested = [step.name for step in self._reference.steps if subgraphs(step.node)]
        if nested:
            self.notes.append(f"not looked into, because they hold graphs of their own: {', '.join(nested)}")

    def _note_batch_norms(self) -> None:
        types = {op.name: op.type for op in self._ops}
        alone = [op for op in self._ops if op.type == "BatchNormalization" and op.activation is not None]
        foldable = [op for op in alone if any(types[name] in ("Conv", "ConvTranspose", "Gemm") for name in op.inputs)]
        if foldable:
            one = "batch norm is quantized by itself; fold it into the layer before it first"
            many = "batch norms are quantized by themselves; fold them into the layer before them first"
            self.notes.append(
                f"{plural(len(foldable), one, many)} "
                "(onnxruntime.quantization.shape_inference.quant_pre_process), or let inc-tb tune do it"
            )

    def _note_unnamed(self) -> None:
        """An op is then called by its output here, which no tool's exclude list understands."""
        unnamed = [step.name for step in self._reference.steps if not step.node.name]
        if unnamed:
            ops = plural(len(unnamed), "op has", "ops have")
            self.notes.append(
                f"{ops} no name in the reference's file (first {unnamed[0]}); give all nodes a name before you "
                "quantize, or a tool cannot keep them in fp32 by name"
            )

    def _fitted(self, batch: Batch) -> dict[str, Array]:
        return fitted(batch, self._inputs, free=self._reference.free_inputs)


def _serves(step: Step) -> bool:
    """Whether it belongs to the op behind it or before it: a change of range, a bias, a factor."""
    return step.type == REQUANTIZE or (step.type in ("Add", "Mul") and len(step.reads) == 1)


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
