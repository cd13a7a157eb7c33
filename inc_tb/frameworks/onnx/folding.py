"""What a quantized model has folded into an op: activations, biases, factors of its weights."""

from __future__ import annotations

from dataclasses import replace

from inc_tb.frameworks.arrays import distance
from inc_tb.frameworks.match import Match
from inc_tb.frameworks.onnx.graph import MATMUL, Graph
from inc_tb.frameworks.onnx.likeness import NEUTRAL, Likeness, same_type
from inc_tb.frameworks.onnx.model import attribute
from inc_tb.frameworks.onnx.steps import Step

_ACTIVATIONS = {"Relu", "Clip", "LeakyRelu", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid"}
WITH_BIAS = {*MATMUL, "Conv", "ConvTranspose"}


class Folding(Likeness):
    """Matches that grow by the steps of the reference that their twins have taken in."""

    def __init__(self, reference: Graph, quantized: Graph) -> None:
        super().__init__(reference, quantized)
        self._taken: set[str] = set()
        """Roots in the quantized model that are, or were, a point of comparison."""

    def _set_point(self, match: Match[Step]) -> None:
        super()._set_point(match)
        self._taken.add(match.root)

    def _fold(self, step: Step) -> bool:
        """Where the operation is part of the one before it in the quantized model, compare behind it instead."""
        is_arithmetic = step.type in (*NEUTRAL, "BatchNormalization") and bool(step.constants)
        if len(step.reads) != 1 or not (step.type in _ACTIVATIONS or is_arithmetic):
            return False
        match = self._ends.get(step.reads[0])
        if match is None or not self._is_only_reader(step):
            return False
        is_there = any(self._could_be(step, c) for c in self.quantized.consumers[match.root])
        if not self._is_idle(step) and (is_there or not self._can_hold(match, step)):
            return False
        self._extend(match, step)
        return True

    def _done_before(self, step: Step) -> Match[Step] | None:
        """The match whose quantized range does the work of an activation behind it, so that nothing is left to do."""
        match = self._ends.get(step.reads[0]) if len(step.reads) == 1 else None
        is_done = match is not None and self._is_only_reader(step) and self._cuts_off(match.root, step)
        return match if is_done else None

    def _can_hold(self, match: Match[Step], step: Step) -> bool:
        """Whether the twin may have taken the step in; a fused operation mostly keeps the name of the last result."""
        named = self._named(step)
        if named:
            return match.root in named
        if step.type in _ACTIVATIONS:
            return self._cuts_off(match.root, step) or match.twin.node.op_type.startswith("Fused")
        if step.type == "BatchNormalization":
            return match.twin.type in WITH_BIAS and bool(match.twin.weight)
        if step.type in ("Mul", "Div"):
            return self._is_scaled(match, step)
        return step.type in ("Add", "Sub") and self._is_shifted(match, step)

    def _is_scaled(self, match: Match[Step], step: Step) -> bool:
        """Whether the twin's result is already multiplied: by its own factor, or because its weights are."""
        if attribute(match.twin.node, "alpha", 1.0) != 1.0:
            return True
        without, with_it = (self.weights(replace(match, folded=f)) for f in (match.folded, [*match.folded, step]))
        if without is None or with_it is None:
            return False
        return distance(with_it.reference, with_it.quantized) < distance(without.reference, without.quantized)

    def _is_shifted(self, match: Match[Step], step: Step) -> bool:
        """Whether the twin's bias contains what the step adds."""
        if not match.twin.has_bias or not match.step.has_bias:
            return match.twin.has_bias
        mine, theirs = self.reference.bias(match.step), self.quantized.bias(match.twin)
        more = self.reference.model.constant(step.constants[0]).ravel()
        if mine is None or theirs is None or mine.size != theirs.size or more.size not in (1, mine.size):
            return False
        shifted = mine + more if step.type == "Add" else mine - more
        return distance(shifted, theirs) < distance(mine, theirs)

    def _could_be(self, step: Step, candidate: Step) -> bool:
        is_free = candidate.index not in self._used
        return is_free and same_type(step, candidate) and len(candidate.reads) == len(step.reads)

    def _bias_behind(self, twin: Step) -> Step | None:
        consumers = self.quantized.consumers.get(twin.outputs[0], [])
        if len(consumers) == 1 and consumers[0].type == "Add" and len(consumers[0].reads) == 1:
            return consumers[0]
        return None

    def _skip_idle(self, step: Step) -> str:
        if not self._is_idle(step) or step.reads[0] not in self.points:
            return ""
        self.points[step.outputs[0]] = self.points[step.reads[0]]
        return f"it changes nothing ({step.type} with {NEUTRAL[step.type]}) and is left out of the quantized model"
