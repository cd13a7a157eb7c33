"""Which values of the reference model are which of the quantized model.

Walks the reference in order and follows the computation in the quantized graph: same kind of
operation on the values already matched, the weights deciding between several, names only where
both leave a choice. What one tool folds into another operation (activation, batch norm, bias) moves
the point of comparison behind it, so that the two arrays are truly the same point.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from onnx import helper

from inc_tb.adapters.onnx.graph import MATMUL, Graph, Step
from inc_tb.adapters.onnx.model import attribute
from inc_tb.capture import Array
from inc_tb.errors import MismatchError
from inc_tb.records import Quantization

FOLDABLE = {"Relu", "Clip", "BatchNormalization", "LeakyRelu", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid"}
_INTERCHANGEABLE = {"Add", "Mul", "Max", "Min", "Sum", "Mean"}
_SAME_WEIGHTS = 0.5
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
    quantization: Quantization | None


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
            if folded.type == "BatchNormalization":
                reference = self._fold_batch_norm(reference, folded, axis)
        flipped = other.ndim == 2 and other.shape[::-1] == reference.shape
        if other.shape != reference.shape and not flipped:
            return None
        if flipped and (other.shape != reference.shape or alike(reference, other.T) > alike(reference, other)):
            other = other.T
            if quantization is not None and quantization.axis is not None:
                quantization = Quantization(
                    quantization.dtype, quantization.scale, quantization.zero_point, quantization.low,
                    quantization.high, 1 - quantization.axis % 2, quantization.block,
                )  # fmt: skip
        if quantization is not None and quantization.axis is not None and not quantization.block:
            axis = quantization.axis % reference.ndim
        return Weights(reference, other, axis, quantization)

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
        twin = self._follow(step) or self._by_weights(step)
        if twin is not None:
            self._accept(step, twin)
        elif not self._fold(step) and not self._by_name(step):
            self.missing[step.index] = self._why_missing(step)

    def _follow(self, step: Step) -> Step | None:
        """The operation of the same kind on the same values."""
        wanted = [self.points.get(root) for root in step.values]
        starts = [root for root in wanted if root is not None]
        if not starts:
            return None
        near: dict[int, Step] = {}
        for root in dict.fromkeys(starts):
            for candidate in self._consumers(root):
                near.setdefault(candidate.index, candidate)
        fitting = [c for c in near.values() if self._fits(step, c, wanted)]
        return self._best(step, fitting)

    def _consumers(self, root: str) -> list[Step]:
        """What reads a value, also behind a multiplication by constants that only the quantized model has."""
        direct = list(self.quantized.consumers.get(root, ()))
        for scaling in [s for s in direct if s.type == "Mul" and len(s.values) == 1 and s.constants]:
            direct += self.quantized.consumers.get(scaling.outputs[0], ())
        return direct

    def _fits(self, step: Step, candidate: Step, wanted: list[str | None]) -> bool:
        if candidate.index in self._used or not _same_type(step, candidate):
            return False
        if len(candidate.values) != len(step.values) or bool(step.weight) != bool(candidate.weight):
            return False
        theirs = [self._before_scaling(v) for v in candidate.values]
        if step.type in _INTERCHANGEABLE:
            wanted, theirs = sorted(wanted, key=str), sorted(theirs)
            return all(w is None or w in theirs for w in wanted)
        return all(w is None or w in (t, v) for w, t, v in zip(wanted, theirs, candidate.values, strict=True))

    def _before_scaling(self, root: str) -> str:
        step = self.quantized.producer.get(root)
        is_scaling = step is not None and step.type == "Mul" and len(step.values) == 1 and step.index not in self._used
        return step.values[0] if step is not None and is_scaling else root

    def _best(self, step: Step, candidates: list[Step]) -> Step | None:
        if len(candidates) > 1:
            scores = {c.index: self._likeness(step, c) for c in candidates}
            top = max(scores.values())
            candidates = [c for c in candidates if scores[c.index] > top - 1e-3]
        if len(candidates) > 1:
            named = [c for c in candidates if c.name.startswith(step.name) or step.name.startswith(c.name)]
            candidates = sorted(named or candidates, key=lambda c: abs(len(c.name) - len(step.name)))
        return candidates[0] if candidates else None

    def _likeness(self, step: Step, candidate: Step) -> float:
        found = self.weights(Match(step, candidate, step, ""))
        if found is not None:
            return alike(found.reference, found.quantized)
        return float(self._settings(self.reference, step) == self._settings(self.quantized, candidate))

    def _settings(self, graph: Graph, step: Step) -> list[object]:
        """What tells two weightless steps of one kind apart: attributes, and constants such as a slice's bounds."""
        small = [c for c in step.constants if graph.model.elem_type(c) == "int64"]
        attributes = sorted((a.name, str(helper.get_attribute_value(a))) for a in step.node.attribute)
        return [attributes, [graph.model.constant(c).tolist() for c in small]]

    def _by_weights(self, step: Step) -> Step | None:
        """Where the way in was lost (several operations fused upstream), weights tell."""
        if not step.weight or step.type not in (*MATMUL, "Conv", "ConvTranspose", "Gather"):
            return None
        rest = [s for s in self.quantized.steps if s.index not in self._used and _same_type(step, s) and s.weight]
        if any(root in self.points for root in step.values):
            # The way in is known, so a twin must lie on it: another one would be a different place.
            return None
        scored = sorted(((self._likeness(step, s), s.index, s) for s in rest), reverse=True)
        return scored[0][2] if scored and scored[0][0] > 0.9 else None

    def _accept(self, step: Step, twin: Step) -> None:
        self._used.add(twin.index)
        point, end = twin.outputs[0], twin
        if step.has_bias and not twin.has_bias and step.type in (*MATMUL, "Conv", "ConvTranspose"):
            end = self._bias_behind(twin) or twin
            point = end.outputs[0]
            self._used.add(end.index)
        self._record(Match(step, twin, step, point))
        for mine, theirs in zip(step.outputs[1:], end.outputs[1:], strict=False):
            if mine and theirs:
                self.points[mine] = theirs

    def _record(self, match: Match) -> None:
        self.matches[match.step.index] = match
        self.points[match.step.outputs[0]] = match.value
        self._ends[match.step.outputs[0]] = match

    def _bias_behind(self, twin: Step) -> Step | None:
        consumers = self.quantized.consumers.get(twin.outputs[0], [])
        if len(consumers) == 1 and consumers[0].type == "Add" and len(consumers[0].values) == 1:
            return consumers[0]
        return None

    def _fold(self, step: Step) -> bool:
        """This operation is part of the one before it in the quantized model: compare behind it instead."""
        is_bias = step.type in ("Add", "Mul") and len(step.values) == 1 and bool(step.constants)
        if not (is_bias or step.type in FOLDABLE) or len(step.values) != 1:
            return False
        source = step.values[0]
        match = self._ends.get(source)
        if match is None or len(self.reference.consumers[source]) != 1:
            return False
        if any(_same_type(step, c) and c.index not in self._used for c in self.quantized.consumers[match.value]):
            return False
        del self.points[source], self._ends[source]
        match.end = step
        self._ends[step.outputs[0]] = match
        match.folded.append(step)
        self.points[step.outputs[0]] = match.value
        return True

    def _by_name(self, step: Step) -> bool:
        """Fused beyond recognition, but the result has kept its name."""
        for suffix in _QUANTIZED_NAMES:
            root = self.quantized.root.get(step.outputs[0] + suffix)
            twin = self.quantized.producer.get(root or "")
            if root is not None and twin is not None and root not in self.points.values():
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
        bearing = [s for s in self.reference.steps if s.weight and s.type in (*MATMUL, "Conv", "ConvTranspose")]
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
        return found is None or alike(found.reference, found.quantized) > _SAME_WEIGHTS

    def _other_network(self, same: int, of: int) -> MismatchError:
        return MismatchError(
            f"{self.quantized.model.name} is not a quantized version of {self.reference.model.name}: only {same} of "
            f"{of} layers with weights have the same place and similar weights. Check that the two files belong together."
        )

    def _fold_batch_norm(self, weight: Array, norm: Step, axis: int) -> Array:
        scale, _, _, variance = (self.reference.model.constant(name) for name in norm.node.input[1:5])
        factor = scale / np.sqrt(variance + attribute(norm.node, "epsilon", 1e-5))
        shape = [1] * weight.ndim
        shape[axis] = -1
        return np.asarray(weight * factor.reshape(shape), np.float32)


def alike(a: Array, b: Array) -> float:
    """Cosine of the angle between two arrays; 1 for equal, about 0 for unrelated ones."""
    if a.shape != b.shape:
        return -1.0
    x, y = a.ravel().astype(np.float64), b.ravel().astype(np.float64)
    norms = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / norms if norms > 0 else float(np.array_equal(x, y))


def _same_type(a: Step, b: Step) -> bool:
    return a.type == b.type or (a.type in MATMUL and b.type in MATMUL)


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
