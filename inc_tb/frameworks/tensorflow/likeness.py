"""How alike a step of the reference and one of the quantized model are, and what lies between them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from inc_tb.frameworks.match import Match, Matched
from inc_tb.frameworks.ops import Array
from inc_tb.frameworks.tensorflow.affine import WeightPairs
from inc_tb.frameworks.tensorflow.graph import Graph, Step
from inc_tb.frameworks.tensorflow.kinds import ACTIVATIONS, AFFINE, CLIPS, RESHAPES

INTERCHANGEABLE = {"Add", "Mul", "Maximum", "Minimum"}
_WITH_CONSTANT = INTERCHANGEABLE | {"Sub", "Div"}


class Likeness(Matched[Graph, Step]):
    """What can be said of steps without knowing what was matched before."""

    def __init__(self, reference: Graph, quantized: Graph) -> None:
        super().__init__(reference, quantized)
        self._pairs = WeightPairs(reference, quantized, self._chain)

    def _is_named_after(self, twin: Step, step: Step) -> bool:
        return step.name in twin.also or (bool(step.also & twin.also) and step.kind == twin.kind)

    def _same_constant(self, step: Step, twin: Step) -> bool:
        """What is added to the only value, or multiplied with it: a converter may leave one such op out of several."""
        if step.type not in _WITH_CONSTANT or len(step.reads) != 1 or len(twin.reads) != 1:
            return True
        if len(step.constants) != 1 or len(twin.constants) != 1:
            return len(step.constants) == len(twin.constants)
        mine, theirs = self.reference.constant(step.constants[0]), self.quantized.constant(twin.constants[0])
        if mine.dtype.kind != "f" or theirs.dtype.kind != "f":
            return True
        if step.type != twin.type:
            theirs = -theirs if step.type in ("Add", "Sub") else 1 / np.where(theirs == 0, np.inf, theirs)
        return nearly_equal(mine.ravel(), theirs.ravel())

    def _may_share_weights(self, step: Step, twin: Step) -> bool:
        mine, theirs = self.reference.weight_shape(step), self.quantized.weight_shape(twin)
        return int(np.prod(mine)) == int(np.prod(theirs))

    def _told_alike(self, step: Step, twin: Step) -> int:
        """How much of what an op is told is the same: its window, the ends of a slice, a factor."""
        windows = step.settings.get("window"), twin.settings.get("window")
        theirs = [self.quantized.constant(name).ravel() for name in twin.constants if name != twin.weight]
        found = int(None not in windows and windows[0] == windows[1])
        for name in step.constants:
            mine = self.reference.constant(name).ravel() if name != step.weight else None
            if mine is not None and mine.dtype.kind in "fiu":
                found += any(nearly_equal(mine, t) for t in theirs)
        return found

    def _only_reader(self, root: str) -> Step | None:
        readers = self.reference.consumers[root]
        return readers[0] if len(readers) == 1 and root not in self.reference.outputs else None

    def _keeps_order(self, step: Step) -> bool:
        """It changes nothing but the shape."""
        if len(step.reads) != 1:
            return False
        if step.type in RESHAPES:
            return True
        shape = self.reference.shape_of(step.reads[0])
        if step.type != "Transpose" or shape is None or len(step.constants) != 1:
            return False
        order = self.reference.constant(step.constants[0]).ravel()
        moved = [int(at) for at in order if shape[int(at)] != 1]
        return moved == sorted(moved)

    def _is_movement(self, step: Step) -> bool:
        is_transpose = step.type == "Transpose" and len(step.reads) == 1 and len(step.constants) == 1
        return is_transpose or self._keeps_order(step)

    def _is_in_order(self, steps: Iterable[Step]) -> bool:
        order: list[int] = []
        for step in steps:
            if step.type == "Transpose" and not self._keeps_order(step):
                moves = [int(at) for at in self.reference.constant(step.constants[0]).ravel()]
                order = [order[at] for at in moves] if order else moves
        return order == sorted(order)

    def _same_shape(self, mine: str, theirs: str) -> bool:
        """As far as it is known; axes of length one do not count."""
        shapes = self.reference.shape_of(mine), self.quantized.shape_of(theirs)
        if shapes[0] is None or shapes[1] is None:
            return False
        a, b = ([n for n in shape if n != 1] for shape in shapes if shape is not None)
        longer, shorter = (a, b) if len(a) > len(b) else (b, a)
        if len(longer) == len(shorter) + 1 and longer[0] is None:  # one model takes a single sample
            longer = longer[1:]
        return len(longer) == len(shorter) and all(
            n is None or m is None or n == m for n, m in zip(longer, shorter, strict=True)
        )

    def _is_neutral(self, step: Step) -> bool:
        """Times one, plus nothing."""
        if step.type not in AFFINE or len(step.constants) != 1:
            return False
        if step.type in ("Sub", "Div") and step.settings.get("constant_first", False):
            return False
        constant = self.reference.constant(step.constants[0])
        return constant.dtype.kind == "f" and bool((constant == (1 if step.type in ("Mul", "Div") else 0)).all())

    def _is_its_activation(self, match: Match[Step], step: Step) -> bool:
        if len(step.reads) != 1 or step.type not in ACTIVATIONS:
            return False
        fused = match.twin.activation
        if match.step.activation:  # it is part of the op in both models
            return False
        before = [s.type for s in match.folded if s.type in ACTIVATIONS]
        if before:  # the second of two ends
            is_end = step.type in ("Minimum", "Maximum") and step.type not in before
            return is_end and before[0] in ("Relu", "Minimum", "Maximum") and fused in ("Relu6", "ReluN1To1")
        cuts = step.type in CLIPS and fused in CLIPS and not (step.type == "Minimum" and fused == "Relu")
        return cuts or step.type == fused

    def _may_be_same(self, mine: str, theirs: str) -> bool:
        is_known = self.reference.shape_of(mine) is not None and self.quantized.shape_of(theirs) is not None
        return not is_known or self._same_shape(mine, theirs)

    def _is_still_there(self, step: Step, following: Sequence[Step]) -> bool:
        """As a bias of zeros, which leaves no trace in the bias that it might be part of."""
        candidates = [c for c in following if len(c.reads) == 1 and bool(c.constants) and same_type(step, c)]
        return step.type in _WITH_CONSTANT and any(self._same_constant(step, c) for c in candidates)

    def _chain(self, step: Step) -> list[Step]:
        """The affine steps that follow one by one and are all that reads the result before them."""
        found: list[Step] = []
        end = step.outputs[0]
        while (following := self._only_reader(end)) is not None and len(following.reads) == 1:
            if not self._is_movement(following) and (following.type not in AFFINE or not following.constants):
                break
            found.append(following)
            end = following.outputs[0]
        while found and found[-1].type not in AFFINE:
            found.pop()
        return found


def plain_name(name: str) -> str:
    """Without what exporters put around the name of an input."""
    return re.sub(r"^(serving_default_|args_)|(:\d+)$", "", name)


def same_type(step: Step, twin: Step) -> bool:
    """A constant may be divided by in one model and multiplied by its inverse in the other."""
    if step.type == twin.type:
        return True
    is_inverse = {step.type, twin.type} in ({"Mul", "Div"}, {"Add", "Sub"})
    return is_inverse and len(step.reads) == 1 and bool(step.constants) and bool(twin.constants)


def nearly_equal(a: Array, b: Array) -> bool:
    """Whole numbers must be the same, others may be rounded."""
    if b.dtype.kind not in "fiu" or (a.shape != b.shape and 1 not in (a.size, b.size)):
        return False
    if a.dtype.kind != "f":
        return np.array_equal(a, b)
    return bool(np.abs(a - b).max(initial=0.0) <= 0.02 * np.abs(a).max(initial=0.0))
