"""Runs both models over a batch and yields the pairs, within a memory budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

from inc_tb.adapters.onnx.graph import Graph, Step
from inc_tb.adapters.onnx.isolate import isolated_model
from inc_tb.adapters.onnx.match import Match, Matching
from inc_tb.adapters.onnx.model import Model, attribute, dequantize, quantize, subgraphs
from inc_tb.capture import Array, Batch, Input, Pair
from inc_tb.errors import MismatchError
from inc_tb.records import Op, Quantization

_MOST_SAMPLES = 32
_CHANNELS_FIRST = {"Conv", "ConvTranspose", "BatchNormalization", "MaxPool", "AveragePool", "GlobalAveragePool",
                   "GlobalMaxPool", "InstanceNormalization", "LRN", "Resize", "Upsample", "DepthToSpace"}  # fmt: skip
_CHANNELS_LAST = {"MatMul", "Gemm", "LayerNormalization", "Attention", "Softmax", "Gather"}


@dataclass
class _Pass:
    """Part of the ops, small enough that all arrays of one batch fit the budget."""

    ops: list[str]
    reference: ort.InferenceSession
    reference_outputs: list[str]
    quantized: ort.InferenceSession
    isolated: ort.InferenceSession
    isolated_feeds: dict[str, str] = field(default_factory=dict)


class OnnxAdapter:
    framework = "onnx"

    def __init__(self, reference: Any, quantized: Any, *, memory_budget: int = 1 << 30) -> None:
        self.notes: list[str] = []
        self._budget = memory_budget
        self._reference = Graph(Model(reference))
        self._quantized = Graph(Model(quantized))
        self._matching = Matching(self._reference, self._quantized)
        self._points = {r: q for r, q in self._matching.points.items() if r in self._reference.floats}
        self._source = {q: r for r, q in self._points.items()}
        self._compared = self._choose_compared()
        self._axes = _channel_axes(self._reference)
        self._ops = self._describe_ops()
        self._passes: list[_Pass] = []
        self._planned_for: tuple[Any, ...] = ()
        self._note_subgraphs()

    def inputs(self) -> Sequence[Input]:
        return [_describe_input(i) for i in self._reference.model.inputs]

    def batch_size(self) -> int:
        one = {i.name: np.empty([1 if n is None else n for n in i.shape], i.dtype) for i in self.inputs()}
        sizes = _sizes(self._reference, one)
        needed = sum(self._pass_bytes(sizes, match) for match in self._compared.values())
        return max(1, min(_MOST_SAMPLES, self._budget // max(1, needed)))

    def ops(self) -> Sequence[Op]:
        return self._ops

    def weights(self) -> Iterator[Pair]:
        for match in self._matching.matches.values():
            found = self._matching.weights(match)
            if found is not None and found.reference.size:
                yield Pair(
                    match.step.name, match.step.weight, "weight", found.reference, found.quantized,
                    found.axis if found.reference.ndim > 1 else None,
                )  # fmt: skip

    def run(self, batch: Batch) -> Iterator[Pair]:
        feeds = self._fitted(batch)
        self._plan(feeds)
        twin_feeds = {self._matching.points[name]: array for name, array in feeds.items()}
        for part in self._passes:
            outputs = _run(part.reference, part.reference_outputs, feeds, self._reference.model)
            mine: dict[str, Array] = dict(zip(part.reference_outputs, outputs, strict=True)) | feeds
            theirs = _run(part.quantized, None, twin_feeds, self._quantized.model)
            given = {name: mine[self._source[root]] for name, root in part.isolated_feeds.items()}
            alone = _run(part.isolated, None, given, self._quantized.model)
            yield from self._pairs(part, mine, theirs, alone)
        yield from self._input_pairs(feeds)

    def _pairs(
        self, part: _Pass, mine: dict[str, Array], theirs: Sequence[Array], alone: Sequence[Array]
    ) -> Iterator[Pair]:
        for op, quantized, isolated in zip(part.ops, theirs, alone, strict=True):
            tensor = self._compared[op].end.outputs[0]
            reference = mine[tensor]
            if reference.shape != quantized.shape:
                self._note_once(
                    f"{op} is not compared: its output is {reference.shape} in the reference "
                    f"and {quantized.shape} in the quantized model"
                )
                continue
            axis = self._axes.get(tensor)
            axis = axis if axis is not None and reference.ndim > 1 else None
            yield Pair(op, tensor, "output", reference, quantized, axis)
            yield Pair(op, tensor, "isolated", reference, isolated, axis)

    def _input_pairs(self, feeds: Batch) -> Iterator[Pair]:
        """Inputs of the model that are quantized before the first op reads them."""
        for name, array in feeds.items():
            value = self._quantized.values.get(self._matching.points[name])
            readers = [op for op in self._ops if name in self._reads.get(op.name, ())]
            quantization = value.quantization if value is not None else None
            if quantization is None or quantization.scale is None or not readers or array.dtype.kind != "f":
                continue
            axis = 1 if array.ndim > 3 else array.ndim - 1 if array.ndim > 1 else None
            yield Pair(readers[0].name, name, "input", array, fake_quantized(array, quantization), axis)

    def _choose_compared(self) -> dict[str, Match]:
        """Ops whose output can be compared: real numbers, and a point of their own."""
        return {
            match.step.name: match
            for match in self._matching.matches.values()
            if match.end.outputs[0] in self._points and match.value in self._quantized.producer
        }

    def _describe_ops(self) -> list[Op]:
        producers: dict[str, str] = {}
        unit: dict[str, str] = {}
        folded_into: dict[str, str] = {}
        ops: list[Op] = []
        self._reads: dict[str, list[str]] = {}
        for match in self._matching.matches.values():
            folded_into.update({step.name: match.step.name for step in match.folded})
        for step in self._reference.steps:
            is_float = any(out in self._reference.floats for out in step.outputs)
            inputs = list(dict.fromkeys(producers[v] for v in step.values if v in producers))
            producers.update({out: step.name for out in step.outputs if out})
            if not is_float:
                continue
            op = Op(step.name, step.node.op_type, len(ops), block=_block(step), inputs=inputs, tensor=step.outputs[0])
            op.unit = unit[op.name] = self._unit(step, inputs, unit)
            self._reads[op.name] = step.values
            match = self._matching.matches.get(step.index)
            if step.name in folded_into:
                op.compared_at = folded_into[step.name]
                op.note = f"part of {op.compared_at} in the quantized model; compared there"
            elif step.name in self._compared and match is not None:
                self._describe_quantization(op, match)
            else:
                op.note = self._matching.missing.get(step.index, "its output is not a value of its own when quantized")
            ops.append(op)
        by_name = {op.name: op for op in ops}
        for op in ops:
            op.inputs = [name for name in op.inputs if name in by_name]
            for name in op.inputs:
                by_name[name].consumers.append(op.name)
        return ops

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

    def _unit(self, step: Step, inputs: Sequence[str], unit: dict[str, str]) -> str:
        """Ops between which nothing is quantized change precision together: Conv, BatchNormalization, Relu."""
        if len(step.values) != 1 or len(inputs) != 1 or inputs[0] not in unit:
            return step.name
        source = step.values[0]
        twin = self._quantized.values.get(self._points.get(source, ""))
        alone = len(self._reference.consumers[source]) == 1
        activation = step.type in ("Relu", "Clip", "BatchNormalization", "LeakyRelu", "Add", "Mul") and not step.weight
        folds = step.name in self._folded_names() or (activation and twin is not None and not twin.scale)
        return unit[inputs[0]] if alone and folds else step.name

    def _folded_names(self) -> set[str]:
        return {step.name for match in self._matching.matches.values() for step in match.folded}

    def _note_subgraphs(self) -> None:
        nested = [step.name for step in self._reference.steps if subgraphs(step.node)]
        if nested:
            self.notes.append(f"not looked into, because they hold graphs of their own: {', '.join(nested)}")

    def _note_once(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def _fitted(self, batch: Batch) -> dict[str, Array]:
        """The batch with the dtypes that the model wants, or an error that says what does not fit."""
        expected = {i.name: i for i in self.inputs()}
        if set(batch) != set(expected):
            raise MismatchError(
                f"the data has the arrays {sorted(batch)}, the model has the inputs {sorted(expected)}. "
                "Name the arrays as the model's inputs."
            )
        return {name: fit(np.asarray(array), expected[name]) for name, array in batch.items()}

    def _plan(self, feeds: Batch) -> None:
        """Cuts the ops into passes, again when the shapes of the data change a lot."""
        shapes = tuple(sorted((name, array.shape) for name, array in feeds.items()))
        if self._passes and (len(self._passes) == 1 or shapes == self._planned_for):
            return
        self._planned_for = shapes
        sizes = _sizes(self._reference, feeds)
        parts: list[list[str]] = [[]]
        used = 0
        for op, match in self._compared.items():
            size = self._pass_bytes(sizes, match)
            if parts[-1] and used + size > self._budget:
                parts.append([])
                used = 0
            parts[-1].append(op)
            used += size
        self._passes = [self._open_pass(part) for part in parts if part]

    def _pass_bytes(self, sizes: dict[str, int], match: Match) -> int:
        """The reference's array, the quantized model's, and the isolated one."""
        return 3 * sizes.get(match.end.outputs[0], 0)

    def _open_pass(self, ops: list[str]) -> _Pass:
        roots = [self._compared[op].value for op in ops]
        cuts = [q for q in self._points.values() if q in self._quantized.producer]
        isolated, feeds = isolated_model(self._quantized, cuts, roots)
        own = {self._compared[op].end.outputs[0] for op in ops}
        inputs = {i.name for i in self._reference.model.inputs}
        needed = sorted((own | {self._source[root] for root in feeds.values()}) - inputs)
        reads: list[str] = []
        appended: list[onnx.NodeProto] = []
        for root in roots:
            value = self._quantized.values[root]
            read, more = (value.read, []) if value.read != root else value.as_consumed(root)
            reads.append(read)
            appended.extend(more)
        mine, theirs = self._reference.model, self._quantized.model
        return _Pass(
            ops,
            mine.session(mine.with_outputs(needed)),
            needed,
            theirs.session(theirs.with_outputs(reads, appended)),
            theirs.session(isolated),
            feeds,
        )


def fake_quantized(array: Array, q: Quantization) -> Array:
    """Quantized and dequantized again, as QuantizeLinear and DequantizeLinear do."""
    return dequantize(quantize(array, q), q)


def fit(array: Array, expected: Input) -> Array:
    wanted = "x".join("any" if n is None else str(n) for n in expected.shape)
    fits = array.ndim == len(expected.shape) and all(
        n is None or n == m for n, m in zip(expected.shape, array.shape, strict=False)
    )
    if not fits:
        given = "x".join(map(str, array.shape))
        raise MismatchError(
            f"the array {expected.name} has shape {given}, the model expects {wanted}. "
            "The first axis counts the samples."
        )
    same_kind = array.dtype.kind == expected.dtype.kind or (array.dtype.kind in "iu" and expected.dtype.kind in "iuf")
    if not same_kind:
        raise MismatchError(
            f"the array {expected.name} holds {array.dtype}, the model expects {expected.dtype}. Convert the data."
        )
    return np.ascontiguousarray(array, dtype=expected.dtype)


def _run(session: ort.InferenceSession, names: Sequence[str] | None, feeds: Batch, model: Model) -> list[Array]:
    wanted = {i.name for i in session.get_inputs()}
    try:
        return list(session.run(names, {name: array for name, array in feeds.items() if name in wanted}))
    except Exception as error:  # noqa: BLE001  onnxruntime raises many unrelated classes
        raise MismatchError(
            f"{model.name}: ONNX Runtime cannot run this batch: {str(error).splitlines()[0]}"
        ) from error


def _describe_input(info: onnx.ValueInfoProto) -> Input:
    tensor = info.type.tensor_type
    shape = tuple(d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else None for d in tensor.shape.dim)
    return Input(info.name, np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type)), shape)


def _block(step: Step) -> str:
    """The part of the model that the op belongs to: its module where the exporter says so, else its path."""
    scopes = next((p.value for p in step.node.metadata_props if p.key == "pkg.torch.onnx.name_scopes"), "")
    if scopes:
        names = [part.strip(" '\"[]") for part in scopes.split(",")]
        return next((name for name in reversed(names[:-1]) if name), "")
    return step.name.rpartition("/")[0]


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


def _sizes(graph: Graph, feeds: Batch) -> dict[str, int]:
    """Bytes of each float value for a batch of these shapes, as float32."""
    light = onnx.ModelProto()
    light.CopyFrom(graph._without_weights())
    for info in light.graph.input:
        if info.name in feeds:
            for dim, length in zip(info.type.tensor_type.shape.dim, feeds[info.name].shape, strict=False):
                dim.dim_value = length
    inferred = onnx.shape_inference.infer_shapes(light, data_prop=True)
    found: dict[str, int] = {}
    for info in [*inferred.graph.value_info, *inferred.graph.output]:
        dims = info.type.tensor_type.shape.dim
        if info.name in graph.floats and all(d.HasField("dim_value") for d in dims):
            found[info.name] = 4 * int(np.prod([d.dim_value for d in dims]))
    typical = int(np.mean(list(found.values()))) if found else 0
    return {root: found.get(root, typical) for root in graph.floats}
