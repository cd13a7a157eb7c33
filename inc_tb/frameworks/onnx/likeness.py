"""How alike a step of the reference and one of the quantized model are."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from onnx import helper

from inc_tb.frameworks.arrays import alike
from inc_tb.frameworks.match import Match, Matched, Weights
from inc_tb.frameworks.onnx.graph import MATMUL, Graph
from inc_tb.frameworks.onnx.model import attribute, subgraphs
from inc_tb.frameworks.onnx.steps import REQUANTIZE, Step, flipped_axis
from inc_tb.frameworks.ops import Array

NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1, "Pow": 1}
INTERCHANGEABLE = {"Add", "Mul", "Max", "Min", "Sum", "Mean"}
SELECTIONS = {
    "Slice": ("starts", "ends", "axes", "steps"), "Gather": ("indices",), "Transpose": (), "Squeeze": ("axes",),
    "Unsqueeze": ("axes",), "Concat": (),
}  # fmt: skip
"""Operations whose constants decide which part of a tensor comes out, or in which order: names of their inputs."""
_SMALL = 64
_QUANTIZED_NAMES = ("", "_quantized", "_QuantizeLinear_Output", "_DequantizeLinear_Output", "_QuantizeInput_quantized")


class Likeness(Matched[Graph, Step]):
    """What can be said of steps by their constants, weights and names."""

    def __init__(self, reference: Graph, quantized: Graph) -> None:
        super().__init__(reference, quantized)
        self._computations: dict[int, Hashable] = {}
        self._read_alone: dict[str, bool] = {}

    def weights(self, match: Match[Step]) -> Weights | None:
        steps, twin = match.weighted, match.twin
        raw_without_scale = twin.node.op_type in ("MatMulInteger", "ConvInteger") and twin.weight_quantization is None
        if not steps or not all(s.weight for s in steps) or not twin.weight or raw_without_scale:
            return None
        step, each, other = steps[0], [self.reference.weight(s) for s in steps], self.quantized.weight(twin)
        reference = np.concatenate(each, axis=-1) if len(each) > 1 else each[0]
        if reference.dtype.kind != "f" or other.dtype.kind != "f":
            return None
        quantization = twin.weight_quantization
        axis = channel_axis(step, reference.ndim)
        if match.is_joined and reference.size == other.size:
            # A scale with a dimension for each of the tensor's is the same as one by channel.
            reference, axis = reference.reshape(other.shape), other.ndim - 1
        for folded in match.folded if not match.is_joined else ():
            reference = self._fold_factor(reference, folded, twin, axis)
        flipped = other.ndim > 1 and other.swapaxes(-1, -2).shape == reference.shape
        if other.shape != reference.shape and not flipped:
            return None
        turned = other.swapaxes(-1, -2) if flipped else other
        if flipped and (other.shape != reference.shape or alike(reference, turned) > alike(reference, other)):
            other = turned
            quantization = flipped_axis(quantization) if quantization is not None else None
        if quantization is not None and quantization.axis is not None and not quantization.block:
            axis = quantization.axis % reference.ndim
        return Weights(reference, other, axis)

    def _fold_factor(self, weight: Array, folded: Step, twin: Step, axis: int) -> Array:
        """The weight times what a batch norm or a multiplication behind it does to each channel."""
        constant = self.reference.model.constant
        if folded.type == "BatchNormalization":
            scale, _, _, variance = (constant(name) for name in folded.node.input[1:5])
            factor = scale / np.sqrt(variance + attribute(folded.node, "epsilon", 1e-5))
        elif folded.type in ("Mul", "Div") and attribute(twin.node, "alpha", 1.0) == 1.0:
            factor = constant(folded.constants[0])
            factor = factor if folded.type == "Mul" else 1 / factor
        else:
            return weight
        shape = [1] * weight.ndim
        shape[axis] = -1
        return np.asarray(weight * factor.reshape(shape), np.float32)

    def _is_helper(self, step: Step) -> bool:
        """A change of type, or a multiplication by constants, that no step of the reference has claimed."""
        is_scaling = step.type == "Mul" and len(step.reads) == 1 and bool(step.constants)
        return step.index not in self._used and (is_scaling or step.type == REQUANTIZE)

    def _before_helper(self, root: str) -> str:
        step = self.quantized.producer.get(root)
        return step.reads[0] if step is not None and self._is_helper(step) else root

    def _same_whole_numbers(self, step: Step, candidate: Step) -> bool:
        """Quantizing never touches whole numbers: n * 1 is not n * 2, even where only one of the two is left."""
        mine, theirs = self._whole_numbers(self.reference, step), self._whole_numbers(self.quantized, candidate)
        return len(mine) != len(theirs) or mine == theirs

    def _whole_numbers(self, graph: Graph, step: Step) -> list[object]:
        return [graph.model.constant(c).tolist() for c in step.constants if graph.model.elem_type(c) == "int64"]

    def _likeness(self, step: Step, candidate: Step) -> float:
        if step.weight:
            return self._weight_likeness(step, candidate)
        return float(self._settings(self.reference, step) == self._settings(self.quantized, candidate))

    def _weight_likeness(self, step: Step, candidate: Step) -> float:
        found = self.weights(Match(step, candidate, step, ""))
        return alike(found.reference, found.quantized) if found is not None else -1.0

    def _same_selection(self, step: Step, candidate: Step) -> bool:
        """Whether two steps take the same part of their input, as far as constants tell."""
        if step.type not in SELECTIONS or self.quantized.tensors[candidate.outputs[0]].channels_last:
            return True
        mine, theirs = self._integers(self.reference, step), self._integers(self.quantized, candidate)
        return all(may_be_equal(mine[key], theirs[key]) for key in mine.keys() & theirs.keys())

    def _integers(self, graph: Graph, step: Step) -> dict[str, Array]:
        """The settings of a step by name, whether the opset has them as attributes or as inputs."""
        found = {a.name: np.asarray(helper.get_attribute_value(a)) for a in step.node.attribute}
        names = SELECTIONS[step.type]
        for name, tensor in zip(names, step.node.input[1:], strict=False):
            if tensor in graph.model.constants:
                found[name] = graph.model.constant(tensor)
        return {name: value for name, value in found.items() if name in names or name in ("axis", "perm")}

    def _settings(self, graph: Graph, step: Step) -> list[object]:
        """What tells two weightless steps of one kind apart: attributes, and small constants."""
        attributes = sorted((a.name, str(helper.get_attribute_value(a))) for a in step.node.attribute)
        return [attributes, self._whole_numbers(graph, step)]

    def _computation(self, step: Step) -> Hashable:
        """Equal for steps of the reference that compute the same."""
        if step.index not in self._computations:
            self._computations[step.index] = signature(step), *map(self._constant_key, step.constants)
        return self._computations[step.index]

    def _constant_key(self, name: str) -> Hashable:
        """Large constants are told by name alone."""
        model = self.reference.model
        if model.size(name) > _SMALL:
            return name
        values = model.constant(name)
        return values.shape, tuple(values.ravel().tolist())

    def _is_idle(self, step: Step) -> bool:
        """Multiplying by one and the like, which optimizers remove."""
        if step.type not in NEUTRAL or len(step.reads) != 1 or len(step.constants) != 1:
            return False
        constant = self.reference.model.constant(step.constants[0])
        is_second = step.constants[0] == step.node.input[1]
        return (
            constant.size == 1
            and bool(constant.item() == NEUTRAL[step.type])
            and (is_second or step.type in INTERCHANGEABLE)
        )

    def _named(self, step: Step) -> list[str]:
        """Roots in the quantized model that are named after the result of a step."""
        names = (step.outputs[0] + suffix for suffix in _QUANTIZED_NAMES)
        return [self.quantized.root[name] for name in names if name in self.quantized.root]

    def _clip_low(self, step: Step) -> float:
        """The lower bound of a Clip, an attribute before opset 11."""
        at = step.node.input[1] if len(step.node.input) > 1 else ""
        if at:
            return self.reference.model.constant(at).item() if at in self.reference.model.constants else np.inf
        return float(attribute(step.node, "min", np.inf))

    def _cuts_off(self, value: str, step: Step) -> bool:
        """Whether a quantized value cannot hold what a Relu or Clip would cut off."""
        quantization = self.quantized.tensors[value].quantization
        if step.type not in ("Relu", "Clip") or quantization is None:
            return False
        if quantization.limits is None or quantization.scale is None:
            return False
        low = 0.0 if step.type == "Relu" else self._clip_low(step)
        return bool(np.all(quantization.limits[0] >= low - quantization.scale / 2))

    def _is_only_reader(self, step: Step) -> bool:
        """Nothing else reads the value in front of the step, except for the very same operation."""
        root = step.reads[0]
        if root not in self._read_alone:
            readers = self.reference.consumers[root]
            self._read_alone[root] = all(self._computation(s) == self._computation(readers[0]) for s in readers[1:])
        return self._read_alone[root]

    def _may_resemble(self, match: Match[Step]) -> bool:
        sizes = self.reference.weight_size(match.step), self.quantized.weight_size(match.twin)
        return same_type(match.step, match.twin) and sizes[0] == sizes[1]


def signature(step: Step) -> Hashable:
    """Equal for steps that do the same to the same values, but for their constants."""
    if subgraphs(step.node):
        return step.index
    attributes = sorted((a.name, str(helper.get_attribute_value(a))) for a in step.node.attribute)
    return step.type, tuple(step.reads), tuple(attributes), len(step.outputs)


def may_be_equal(a: Array, b: Array) -> bool:
    """Whether two lists of positions can mean the same: -1 may be the last one, and huge ends mean the end."""
    if a.shape != b.shape or a.dtype.kind not in "iu" or b.dtype.kind not in "iu":
        return a.size == b.size and np.array_equal(a.ravel(), b.ravel())
    far = np.iinfo(np.int32).max
    return bool(np.all((a == b) | ((a < 0) != (b < 0)) | (a >= far) | (b >= far)))


def same_type(a: Step, b: Step) -> bool:
    is_rest_of = a.type in ("Relu", "Clip") and b.type == REQUANTIZE
    return a.type == b.type or is_rest_of or (a.type in MATMUL and b.type in MATMUL)


def channel_axis(step: Step, ndim: int) -> int:
    """The axis of a weight along which the outputs lie."""
    if step.type == "Conv":
        return 0
    if step.type in ("ConvTranspose", "LSTM", "GRU", "RNN"):
        return 1
    if step.type == "Gemm":
        return 0 if attribute(step.node, "transB", 0) else 1
    if step.type == "MatMul" and step.weight_position == 0 and ndim > 1:
        return ndim - 2
    return ndim - 1
