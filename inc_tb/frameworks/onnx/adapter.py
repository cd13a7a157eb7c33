"""Two ONNX models as ops and pairs of arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from inc_tb.errors import ModelError
from inc_tb.frameworks.channels import input_axis
from inc_tb.frameworks.feeds import fitted
from inc_tb.frameworks.graph_adapter import GraphAdapter
from inc_tb.frameworks.onnx.graph import Graph
from inc_tb.frameworks.onnx.match import Matching
from inc_tb.frameworks.onnx.model import Model, attribute, subgraphs
from inc_tb.frameworks.onnx.passes import Result, Runner
from inc_tb.frameworks.onnx.steps import Step
from inc_tb.frameworks.ops import Array, Batch, Input, Pair, Quantization
from inc_tb.frameworks.protocols import MOST_SAMPLES

_CHANNELS_FIRST = {
    "Conv", "ConvTranspose", "BatchNormalization", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool",
    "InstanceNormalization", "LRN", "Resize", "Upsample", "DepthToSpace", "Flatten",
}  # fmt: skip
_CHANNELS_LAST = {
    "MatMul", "Gemm", "LayerNormalization", "Attention", "Softmax", "Gather", "Reshape", "Squeeze", "Unsqueeze",
}  # fmt: skip
_ACTIVATIONS = {"Relu", "Clip", "BatchNormalization", "LeakyRelu", "Add", "Mul"}


class OnnxAdapter(GraphAdapter[Step]):
    framework = "onnx"
    dynamic = Quantization("uint8", None, None, 0, 255)

    def __init__(self, reference: Any, quantized: Any, *, memory_budget: int = 1 << 30) -> None:
        self._budget = memory_budget
        self._reference = Graph(Model(reference))
        self._quantized = Graph(Model(quantized))
        super().__init__(Matching(self._reference, self._quantized))
        self._inputs = self._describe_inputs()
        self._op_at = {**self._compared, **self._readers}
        points = self._points | {name: self.matching.points[name] for name in self._reference.input_roots}
        self._runner = Runner(
            self._reference, self._quantized, points, list(self._compared), list(self._readers), memory_budget
        )
        self._misfits = self._runner.misfits
        self.notes: list[str] = self._runner.notes
        self._note_subgraphs()
        self._note_unnamed()
        self._note_batch_norms()

    def inputs(self) -> Sequence[Input]:
        return self._inputs

    def batch_size(self) -> int:
        one = {i.name: np.empty([1 if n is None else n for n in i.shape], i.dtype) for i in self._inputs}
        return max(1, min(MOST_SAMPLES, self._budget // max(1, self._runner.bytes_needed(one))))

    def run(self, batch: Batch) -> Iterator[Pair]:
        for result in self._runner.run(self._fitted(batch)):
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
        if step.type == "Transpose":
            order = list(attribute(step.node, "perm", []))
            return order.index(before % len(order)) if order else -1
        return before

    def _block(self, step: Step) -> str:
        """Its module where the exporter says so, else its path."""
        return module_of(step.node) or step.name.rpartition("/")[0]

    def _module(self, step: Step) -> str:
        return module_of(step.node)

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


def module_of(node: onnx.NodeProto) -> str:
    """As torch's exporter notes it: the names of the modules around the op, the outermost first, and its own."""
    scopes = next((p.value for p in node.metadata_props if p.key == "pkg.torch.onnx.name_scopes"), "")
    names = [part.strip(" '\"[]") for part in scopes.split(",")]
    return next((name for name in reversed(names[:-1]) if name), "")
