"""Which values of the reference model are which of the quantized model.

Walks the reference in order and follows the computation in the quantized graph: same kind of
operation on the values already matched, the weights deciding between several, names only where
both leave a choice. What one tool folds into another operation (activation, batch norm, bias) moves
the point of comparison behind it, so that the two arrays are truly the same point.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field, replace

import numpy as np
from onnx import helper

from inc_tb.adapters.onnx.graph import MATMUL, REQUANTIZE, Graph, Step, flipped_axis
from inc_tb.adapters.onnx.model import attribute, subgraphs
from inc_tb.arrays import alike, distance
from inc_tb.capture import Array
from inc_tb.errors import MismatchError

_ACTIVATIONS = {"Relu", "Clip", "LeakyRelu", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid"}
_NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1, "Pow": 1}
_INTERCHANGEABLE = {"Add", "Mul", "Max", "Min", "Sum", "Mean"}
_WITH_BIAS = {*MATMUL, "Conv", "ConvTranspose"}
SELECTIONS = {
    "Slice": ("starts", "ends", "axes", "steps"), "Gather": ("indices",), "Transpose": (), "Squeeze": ("axes",),
    "Unsqueeze": ("axes",), "Concat": (),
}  # fmt: skip
"""Operations whose constants decide which part of a tensor comes out, or in which order: names of their inputs."""
_SAME_WEIGHTS = 0.5
_SMALL = 64
_EQUAL_WEIGHTS = 0.9
"""How alike the weights of an op and of its twin are at least, where the weights alone decide."""
_QUANTIZED_NAMES = ("", "_quantized", "_QuantizeLinear_Output", "_DequantizeLinear_Output", "_QuantizeInput_quantized")


@dataclass
class Match:
    step: Step
    """Of the reference."""
    twin: Step
    """Of the quantized model."""
    end: Step
    """The reference step behind which both are compared: `step`, or what the twin has folded in."""
    value: str
    """Root of the quantized value at that point."""
    folded: list[Step] = field(default_factory=list)


@dataclass
class Weights:
    reference: Array
    quantized: Array
    axis: int


class Matching:
    """`matches` by the index of the reference's step; `missing` has the others with the reason."""

    def __init__(self, reference: Graph, quantized: Graph) -> None:
        self.reference = reference
        self.quantized = quantized
        self.points: dict[str, str] = {}
        """Root in the reference -> root in the quantized model, wherever both hold the same quantity."""
        self.matches: dict[int, Match] = {}
        self.missing: dict[int, str] = {}
        self._ends: dict[str, Match] = {}
        self._used: set[int] = set()
        self._taken: set[str] = set()
        self._seen: dict[Hashable, list[Step]] = defaultdict(list)
        self._match_inputs()
        for step in reference.steps:
            self._match(step)
        self._check_same_network()

    def weights(self, match: Match) -> Weights | None:
        """The main weights of both, in the layout of the reference; None where there is nothing to compare."""
        step, twin = match.step, match.twin
        raw_without_scale = twin.node.op_type in ("MatMulInteger", "ConvInteger") and twin.weight_quantization is None
        if not step.weight or not twin.weight or raw_without_scale:
            return None
        reference, other = self.reference.weight(step), self.quantized.weight(twin)
        if reference.dtype.kind != "f" or other.dtype.kind != "f":
            return None
        quantization = twin.weight_quantization
        axis = _channel_axis(step, reference.ndim)
        for folded in match.folded:
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

    def _match_inputs(self) -> None:
        mine = [i.name for i in self.reference.model.inputs]
        theirs = [i.name for i in self.quantized.model.inputs]
        if set(mine) == set(theirs):
            self.points.update({name: name for name in mine})
        elif len(mine) == len(theirs):
            self.points.update(zip(mine, theirs, strict=True))
        else:
            raise MismatchError(
                f"{self.quantized.model.name} has the inputs {theirs}, {self.reference.model.name} has {mine}; "
                "expected a quantized version of the same network. Check that the two files belong together."
            )

    def _match(self, step: Step) -> None:
        if not step.outputs:
            return
        twin = self._by_weights(step, self._follow(step))
        if twin is not None and self._is_done_before(step):
            self._used.add(twin.index)
            self._extend(step, twin.outputs[0])
        elif twin is not None:
            self._accept(step, twin)
        elif shared := self._share(step):
            self.missing[step.index] = shared
        elif not (self._fold(step) or self._by_name(step)):
            self.missing[step.index] = self._skip_idle(step) or self._why_missing(step)
        self._seen[_signature(step)].append(step)

    def _follow(self, step: Step) -> Step | None:
        """The operation of the same kind on the same values, if need be behind a helper."""
        wanted = [self.points.get(root) for root in step.values]
        near = [c for root in wanted if root is not None for c in self.quantized.consumers.get(root, ())]
        behind = [c for s in near if self._is_helper(s) for c in self.quantized.consumers.get(s.outputs[0], ())]
        for candidates in (near, behind):
            distinct = {c.index: c for c in candidates}.values()
            fitting = [c for c in distinct if self._fits(step, c, wanted)]
            fitting = [c for c in fitting if c.type == step.type] or fitting
            is_certain = None not in wanted and all(c.type != REQUANTIZE for c in fitting)
            found = self._best(step, fitting if is_certain else self._sure(step, fitting))
            if found is not None:
                return found
        return None

    def _is_helper(self, step: Step) -> bool:
        """A change of type, or a multiplication by constants, that no step of the reference has claimed."""
        is_scaling = step.type == "Mul" and len(step.values) == 1 and bool(step.constants)
        return step.index not in self._used and (is_scaling or step.type == REQUANTIZE)

    def _before_helper(self, root: str) -> str:
        step = self.quantized.producer.get(root)
        return step.values[0] if step is not None and self._is_helper(step) else root

    def _fits(self, step: Step, candidate: Step, wanted: list[str | None]) -> bool:
        """None in `wanted` is a value of the reference that has no counterpart, so nothing is known about it."""
        if candidate.index in self._used or not _same_type(step, candidate):
            return False
        if len(candidate.values) != len(step.values) or bool(step.weight) != bool(candidate.weight):
            return False
        if step.type in _WITH_BIAS and self.reference.weight_size(step) != self.quantized.weight_size(candidate):
            return False
        if not self._same_selection(step, candidate) or not self._same_whole_numbers(step, candidate):
            return False
        theirs = [v if v in wanted else self._before_helper(v) for v in candidate.values]
        if step.type in _INTERCHANGEABLE:
            return not Counter(w for w in wanted if w is not None) - Counter(theirs)
        return all(w in (None, t) for w, t in zip(wanted, theirs, strict=True))

    def _same_whole_numbers(self, step: Step, candidate: Step) -> bool:
        """Quantizing never touches whole numbers: n * 1 is not n * 2, even where only one of the two is left."""
        mine, theirs = self._whole_numbers(self.reference, step), self._whole_numbers(self.quantized, candidate)
        return len(mine) != len(theirs) or mine == theirs

    def _whole_numbers(self, graph: Graph, step: Step) -> list[object]:
        return [graph.model.constant(c).tolist() for c in step.constants if graph.model.elem_type(c) == "int64"]

    def _sure(self, step: Step, candidates: list[Step]) -> list[Step]:
        """Of candidates of which only some inputs or the purpose is known, those that something else speaks for."""
        if step.weight:
            return [c for c in candidates if self._weight_likeness(step, c) > _EQUAL_WEIGHTS]
        named = [c for c in candidates if c.outputs[0] in self._named(step)]
        around = (s for root in step.values if root in self.points for s in self.reference.consumers[root])
        rivals = [s for s in around if s.index not in self.matches and s is not step and _same_type(step, s)]
        return named or (candidates if len(candidates) == 1 and not rivals else [])

    def _best(self, step: Step, candidates: list[Step]) -> Step | None:
        if len(candidates) > 1:
            scores = {c.index: self._likeness(step, c) for c in candidates}
            top = max(scores.values())
            candidates = [c for c in candidates if scores[c.index] > top - 1e-3]
        if len(candidates) > 1:
            named = [c for c in candidates if c.name.startswith(step.name) or step.name.startswith(c.name)]
            read_by = Counter(s.type for s in self.reference.consumers[step.outputs[0]])
            candidates = sorted(
                named or candidates,
                key=lambda c: (-self._read_alike(c, read_by), abs(len(c.name) - len(step.name))),
            )
        return candidates[0] if candidates else None

    def _read_alike(self, candidate: Step, read_by: Counter[str]) -> int:
        """How many of the operations that read the result are of the same kinds."""
        theirs = Counter(s.type for s in self.quantized.consumers.get(candidate.outputs[0], ()))
        return (theirs & read_by).total()

    def _likeness(self, step: Step, candidate: Step) -> float:
        if step.weight:
            return self._weight_likeness(step, candidate)
        return float(self._settings(self.reference, step) == self._settings(self.quantized, candidate))

    def _weight_likeness(self, step: Step, candidate: Step) -> float:
        found = self.weights(Match(step, candidate, step, ""))
        return alike(found.reference, found.quantized) if found is not None else -1.0

    def _same_selection(self, step: Step, candidate: Step) -> bool:
        """Whether two steps take the same part of their input, as far as constants tell."""
        if step.type not in SELECTIONS or self.quantized.values[candidate.outputs[0]].channels_last:
            return True
        mine, theirs = self._integers(self.reference, step), self._integers(self.quantized, candidate)
        return all(_may_be_equal(mine[key], theirs[key]) for key in mine.keys() & theirs.keys())

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

    def _by_weights(self, step: Step, found: Step | None) -> Step | None:
        """The twin with these weights where the way in was lost, or where it led to entirely different weights."""
        if not step.weight or step.type not in (*_WITH_BIAS, "Gather"):
            return found
        is_shared = len(self.reference.model.consumers[step.weight]) > 1
        if found is None and is_shared and any(root in self.points for root in step.values):
            # The way in is known, so a twin must lie on it: the same weights elsewhere are a different place.
            return None
        if found is not None and self._weight_likeness(step, found) > _SAME_WEIGHTS:
            return found
        rest = [s for s in self.quantized.steps if s.index not in self._used and _same_type(step, s) and s.weight]
        scored = sorted(((self._weight_likeness(step, s), s.index, s) for s in rest), reverse=True)
        return scored[0][2] if scored and scored[0][0] > _EQUAL_WEIGHTS else found

    def _accept(self, step: Step, twin: Step) -> None:
        self._used.add(twin.index)
        point, end = twin.outputs[0], twin
        if step.has_bias and not twin.has_bias and step.type in _WITH_BIAS:
            end = self._bias_behind(twin) or twin
            point = end.outputs[0]
            self._used.add(end.index)
        self._record(Match(step, twin, step, point))
        for mine, theirs in zip(step.outputs[1:], end.outputs[1:], strict=False):
            if mine and theirs:
                self.points[mine] = theirs
                self._taken.add(theirs)

    def _record(self, match: Match) -> None:
        self.matches[match.step.index] = match
        self.points[match.step.outputs[0]] = match.value
        self._taken.add(match.value)
        self._ends[match.step.outputs[0]] = match

    def _bias_behind(self, twin: Step) -> Step | None:
        consumers = self.quantized.consumers.get(twin.outputs[0], [])
        if len(consumers) == 1 and consumers[0].type == "Add" and len(consumers[0].values) == 1:
            return consumers[0]
        return None

    def _fold(self, step: Step) -> bool:
        """Where the operation is part of the one before it in the quantized model, compare behind it instead."""
        is_arithmetic = step.type in (*_NEUTRAL, "BatchNormalization") and bool(step.constants)
        if len(step.values) != 1 or not (step.type in _ACTIVATIONS or is_arithmetic):
            return False
        source = step.values[0]
        match = self._ends.get(source)
        if match is None or not self._is_only_reader(step):
            return False
        is_there = any(self._could_be(step, c) for c in self.quantized.consumers[match.value])
        if not self._is_idle(step) and (is_there or not self._can_hold(match, step)):
            return False
        self._extend(step, match.value)
        return True

    def _is_only_reader(self, step: Step) -> bool:
        """Nothing else reads the value in front of the step, except for the very same operation."""
        others = [s for s in self.reference.consumers[step.values[0]] if s is not step]
        return all(_signature(s) == _signature(step) and self._same_constants(s, step) for s in others)

    def _is_done_before(self, step: Step) -> bool:
        """Whether an activation has nothing left to do, because the range of its quantized input does its work."""
        match = self._ends.get(step.values[0]) if len(step.values) == 1 else None
        return match is not None and self._is_only_reader(step) and self._cuts_off(match.value, step)

    def _cuts_off(self, value: str, step: Step) -> bool:
        """Whether a quantized value cannot hold what a Relu or Clip would cut off."""
        quantization = self.quantized.values[value].quantization
        if step.type not in ("Relu", "Clip") or quantization is None:
            return False
        if quantization.limits is None or quantization.scale is None:
            return False
        low = 0.0 if step.type == "Relu" else self._clip_low(step)
        return bool(np.all(quantization.limits[0] >= low - quantization.scale / 2))

    def _clip_low(self, step: Step) -> float:
        """The lower bound of a Clip, an attribute before opset 11."""
        at = step.node.input[1] if len(step.node.input) > 1 else ""
        if at:
            return self.reference.model.constant(at).item() if at in self.reference.model.constants else np.inf
        return float(attribute(step.node, "min", np.inf))

    def _extend(self, step: Step, value: str) -> None:
        """Moves the point of comparison of the step before behind this one."""
        source = step.values[0]
        match = self._ends.pop(source)
        del self.points[source]
        match.end, match.value = step, value
        match.folded.append(step)
        self._ends[step.outputs[0]] = match
        self.points[step.outputs[0]] = value
        self._taken.add(value)

    def _can_hold(self, match: Match, step: Step) -> bool:
        """Whether the twin may have taken the step in; a fused operation mostly keeps the name of the last result."""
        named = self._named(step)
        if named:
            return match.value in named
        if step.type in _ACTIVATIONS:
            return self._cuts_off(match.value, step) or match.twin.node.op_type.startswith("Fused")
        if step.type == "BatchNormalization":
            return match.twin.type in _WITH_BIAS and bool(match.twin.weight)
        if step.type in ("Mul", "Div"):
            return self._is_scaled(match, step)
        return step.type in ("Add", "Sub") and self._is_shifted(match, step)

    def _is_scaled(self, match: Match, step: Step) -> bool:
        """Whether the twin's result is already multiplied: by its own factor, or because its weights are."""
        if attribute(match.twin.node, "alpha", 1.0) != 1.0:
            return True
        without, with_it = (self.weights(replace(match, folded=f)) for f in (match.folded, [*match.folded, step]))
        if without is None or with_it is None:
            return False
        return distance(with_it.reference, with_it.quantized) < distance(without.reference, without.quantized)

    def _is_shifted(self, match: Match, step: Step) -> bool:
        """Whether the twin's bias contains what the step adds."""
        if not match.twin.has_bias or not match.step.has_bias:
            return match.twin.has_bias
        mine, theirs = self.reference.bias(match.step), self.quantized.bias(match.twin)
        more = self.reference.model.constant(step.constants[0]).ravel()
        if mine is None or theirs is None or mine.size != theirs.size or more.size not in (1, mine.size):
            return False
        shifted = mine + more if step.type == "Add" else mine - more
        return distance(shifted, theirs) < distance(mine, theirs)

    def _named(self, step: Step) -> list[str]:
        """Roots in the quantized model that are named after the result of a step."""
        names = (step.outputs[0] + suffix for suffix in _QUANTIZED_NAMES)
        return [self.quantized.root[name] for name in names if name in self.quantized.root]

    def _could_be(self, step: Step, candidate: Step) -> bool:
        is_free = candidate.index not in self._used
        return is_free and _same_type(step, candidate) and len(candidate.values) == len(step.values)

    def _share(self, step: Step) -> str:
        """Optimisers compute only once what the reference computes twice."""
        seen = self._seen[_signature(step)]
        other = next((s for s in seen if s.outputs[0] in self.points and self._same_constants(s, step)), None)
        if other is None:
            return ""
        for mine, theirs in zip(step.outputs, other.outputs, strict=True):
            if theirs in self.points:
                self.points[mine] = self.points[theirs]
        return f"it computes the same as {other.name}; the quantized model does that once"

    def _same_constants(self, a: Step, b: Step) -> bool:
        model = self.reference.model
        return len(a.constants) == len(b.constants) and all(
            x == y
            or (model.size(x) == model.size(y) <= _SMALL and np.array_equal(model.constant(x), model.constant(y)))
            for x, y in zip(a.constants, b.constants, strict=True)
        )

    def _is_idle(self, step: Step) -> bool:
        """Multiplying by one and the like, which optimisers remove."""
        if step.type not in _NEUTRAL or len(step.values) != 1 or len(step.constants) != 1:
            return False
        constant = self.reference.model.constant(step.constants[0])
        is_second = step.constants[0] == step.node.input[1]
        return (
            constant.size == 1
            and bool(constant.item() == _NEUTRAL[step.type])
            and (is_second or step.type in _INTERCHANGEABLE)
        )

    def _skip_idle(self, step: Step) -> str:
        if not self._is_idle(step) or step.values[0] not in self.points:
            return ""
        self.points[step.outputs[0]] = self.points[step.values[0]]
        return f"it changes nothing ({step.type} with {_NEUTRAL[step.type]}) and is left out of the quantized model"

    def _by_name(self, step: Step) -> bool:
        """Fused beyond recognition, but the result has kept its name."""
        for root in self._named(step):
            twin = self.quantized.producer.get(root)
            if twin is not None and root not in self._taken:
                self._used.add(twin.index)
                self._record(Match(step, twin, step, root))
                return True
        return False

    def _why_missing(self, step: Step) -> str:
        if step.type in ("If", "Loop", "Scan"):
            return f"{step.type} has its own graphs, which are not looked into"
        lost = [root for root in step.values if root not in self.points]
        if lost and len(lost) == len(step.values):
            return "its inputs have no counterpart in the quantized model (fused there into another operation)"
        return f"the quantized model has no {step.type} at this place (fused or removed there)"

    def _check_same_network(self) -> None:
        bearing = [s for s in self.reference.steps if s.weight and s.type in _WITH_BIAS]
        if not bearing:
            if not self.matches:
                raise self._other_network(0, len(self.reference.steps))
            return
        same = sum(
            1 for s in bearing
            if s.index in self.matches and self._resembles(self.matches[s.index])
        )  # fmt: skip
        if same * 2 < len(bearing):
            raise self._other_network(same, len(bearing))

    def _resembles(self, match: Match) -> bool:
        found = self.weights(match)
        if found is None:
            sizes = self.reference.weight_size(match.step), self.quantized.weight_size(match.twin)
            return _same_type(match.step, match.twin) and sizes[0] == sizes[1]
        return alike(found.reference, found.quantized) > _SAME_WEIGHTS

    def _other_network(self, same: int, of: int) -> MismatchError:
        return MismatchError(
            f"{self.quantized.model.name} is not a quantized version of {self.reference.model.name}: only {same} of "
            f"{of} layers with weights have the same place and similar weights. Check that both files belong together."
        )

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


def _signature(step: Step) -> Hashable:
    """Equal for steps that do the same to the same values, but for their constants."""
    if subgraphs(step.node):
        return step.index
    attributes = sorted((a.name, str(helper.get_attribute_value(a))) for a in step.node.attribute)
    return step.type, tuple(step.values), tuple(attributes), len(step.outputs)


def _may_be_equal(a: Array, b: Array) -> bool:
    """Whether two lists of positions can mean the same: -1 may be the last one, and huge ends mean the end."""
    if a.shape != b.shape or a.dtype.kind not in "iu" or b.dtype.kind not in "iu":
        return a.size == b.size and np.array_equal(a.ravel(), b.ravel())
    far = np.iinfo(np.int32).max
    return bool(np.all((a == b) | ((a < 0) != (b < 0)) | (a >= far) | (b >= far)))


def _same_type(a: Step, b: Step) -> bool:
    is_rest_of = a.type in ("Relu", "Clip") and b.type == REQUANTIZE
    return a.type == b.type or is_rest_of or (a.type in MATMUL and b.type in MATMUL)


def _channel_axis(step: Step, ndim: int) -> int:
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
