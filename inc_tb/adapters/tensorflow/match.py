"""Which values of the reference are which of the quantized model.

Walks the reference in order and follows the computation in the quantized graph: the same kind of operation on the
values already matched, the weights deciding between several, then the names. What a converter works into an operation
(a bias, a batch norm, an activation) moves the point of comparison behind it; how far, the weights and the bias tell.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import permutations

import numpy as np

from inc_tb.adapters.tensorflow.affine import Affine, WeightPairs, Weights
from inc_tb.adapters.tensorflow.graph import Graph, Step
from inc_tb.adapters.tensorflow.kinds import ACTIVATIONS, AFFINE, CLIPS, LOOPS, RESHAPES, WEIGHTED
from inc_tb.arrays import alike
from inc_tb.capture import Array
from inc_tb.errors import MismatchError

_INTERCHANGEABLE = {"Add", "Mul", "Maximum", "Minimum"}
_WITH_CONSTANT = _INTERCHANGEABLE | {"Sub", "Div"}
_HELPERS = {"Requantize", "Reshape", "Pad", "Transpose"}
"""What converters put between two ops."""
_FEW_INPUTS = 4
_OTHER_LAYOUT = "the quantized model computes it in another layout (fused there with what follows)"
_SAME_WEIGHTS = 0.5
_EQUAL_WEIGHTS = 0.9
"""How alike the weights of an op and of its twin are at least, where the weights alone decide."""


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
    affine: list[Step] = field(default_factory=list)
    """Those of the folded steps that are in the twin's weights and bias."""


class Matching:
    """`matches` by the index of the reference's step; `missing` has the others with the reason."""

    def __init__(self, reference: Graph, quantized: Graph) -> None:
        self.reference = reference
        self.quantized = quantized
        self._pairs = WeightPairs(reference, quantized, self._chain)
        self._place = {name: step.index for step in reference.steps for name in (step.name, *step.also)}
        self._named = self._find_named()
        self.input_names: dict[str, str] = {}
        """Input of the reference -> input of the quantized model."""
        self.points: dict[str, str] = {}
        """Root in the reference -> root in the quantized model, wherever both hold the same quantity."""
        self.matches: dict[int, Match] = {}
        self.missing: dict[int, str] = {}
        self.folded_into: dict[int, Match] = {}
        self._ends: dict[str, Match] = {}
        self._used: set[int] = set()
        self._doubts = 0
        self._walk_best()
        self._check_same_network()

    def _walk_best(self) -> None:
        """With the inputs as they are named; where nothing tells which is which, so that most ops are found."""
        pairings = self._match_inputs()
        counts = [self._walk(names) for names in pairings]
        best = counts.index(max(counts))
        if best != len(counts) - 1:
            self._walk(pairings[best])

    def _walk(self, input_names: dict[str, str]) -> int:
        """How many ops have been found, without those that read something else than in the reference."""
        self.input_names = input_names
        self._doubts = 0
        for state in (self.points, self.matches, self.missing, self.folded_into, self._ends, self._used):
            state.clear()
        for name, other in input_names.items():
            self.points[self.reference.input_roots[name]] = self.quantized.input_roots[other]
        for step in self.reference.steps:
            if step.index not in self.folded_into:
                self._match(step)
        self._match_results()
        self._explain_inner_parts()
        return len(self.matches) + len(self.folded_into) - self._doubts

    def weights(self, match: Match) -> Weights | None:
        """The main weights of both, in the layout of the reference; None where there is nothing to compare."""
        found = self._pairs.both(match.step, match.twin)
        if found is None:
            return None
        affine = Affine(found.reference, np.zeros(1, np.float32))
        for step in match.affine:
            worked_in = self._pairs.worked_in(affine, step)
            affine = worked_in if worked_in is not None else affine
        return Weights(affine.weight, found.quantized)

    def _match_inputs(self) -> list[dict[str, str]]:
        mine, theirs = ([i.name for i in graph.inputs] for graph in (self.reference, self.quantized))
        plain = {plain_name(name): name for name in theirs}
        if set(mine) == set(theirs):
            return [{name: name for name in mine}]
        if all(plain_name(name) in plain for name in mine) and len(plain) == len(theirs) == len(mine):
            return [{name: plain[plain_name(name)] for name in mine}]
        found = [dict(zip(mine, order, strict=True)) for order in self._input_orders(theirs)]
        if len(mine) != len(theirs) or not found:
            raise MismatchError(
                f"{self.quantized.name} has the inputs {theirs}, {self.reference.name} has {mine}; expected a "
                "quantized version of the same network. Check that the two models belong together."
            )
        return found

    def _input_orders(self, theirs: Sequence[str]) -> list[Sequence[str]]:
        """Those of the same shapes: the order that they have, and where they are few, all others."""
        if len(theirs) != len(self.reference.inputs):
            return []
        roots = [self.reference.input_roots[i.name] for i in self.reference.inputs]
        orders = permutations(theirs) if len(theirs) <= _FEW_INPUTS else [tuple(theirs)]
        return [
            order for order in orders
            if all(self._may_be_same(r, self.quantized.input_roots[n]) for r, n in zip(roots, order, strict=True))
        ]  # fmt: skip

    def _may_be_same(self, mine: str, theirs: str) -> bool:
        is_known = self.reference.shape_of(mine) is not None and self.quantized.shape_of(theirs) is not None
        return not is_known or self._same_shape(mine, theirs)

    def _find_named(self) -> dict[str, list[Step]]:
        """By the name of an op of the reference, the quantized steps that are called after it."""
        known = {step.name for step in self.reference.steps}
        # A TFLite file as the reference calls its ops by several names, too.
        for step in self.reference.steps:
            known |= step.also
        found: dict[str, list[Step]] = {}
        for step in self.quantized.steps:
            for name in step.also & known:
                found.setdefault(name, []).append(step)
        return found

    def _is_named_after(self, twin: Step, step: Step) -> bool:
        return step.name in twin.also or (bool(step.also & twin.also) and step.kind == twin.kind)

    # one step

    def _match(self, step: Step) -> None:
        twin = self._by_weights(step, self._follow(step)) or self._shared(step)
        if twin is not None:
            self._accept(step, twin)
        elif not (self._fold(step) or self._by_parts(step) or self._hand_on(step) or self._by_name(step)):
            self.missing[step.index] = self._why_missing(step)

    def _follow(self, step: Step) -> Step | None:
        """The operation of the same kind on the same values, if need be behind a helper."""
        wanted = [self.points.get(root) for root in step.values]
        near = [c for root in wanted if root is not None for c in self.quantized.consumers.get(root, ())]
        for _ in range(3):
            found = self._best(step, [c for c in _distinct(near) if self._fits(step, c, wanted)], None not in wanted)
            if found is not None:
                return found
            helpers = [s for s in near if s.type in _HELPERS and s.index not in self._used]
            near = [c for s in helpers for out in s.outputs for c in self.quantized.consumers.get(out, ())]
        return None

    def _fits(self, step: Step, twin: Step, wanted: Sequence[str | None]) -> bool:
        """None in `wanted` is a value of the reference that has no counterpart, so nothing is known about it."""
        if twin.index in self._used or not _same_type(step, twin) or bool(step.weight) != bool(twin.weight):
            return False
        if step.weight and not self._may_share_weights(step, twin):
            return False
        theirs = [self._before_helpers(v, wanted) for v in twin.values]
        if step.weight:  # a fused kernel may read more
            return not wanted or wanted[0] is None or wanted[0] in theirs
        if step.type in LOOPS:  # they read what their body needs, constants or not
            return any(w is not None and w in theirs for w in wanted)
        if len(theirs) != len(wanted) or not self._same_constant(step, twin):
            return False
        if step.type in _INTERCHANGEABLE:
            return not Counter(w for w in wanted if w is not None) - Counter(theirs)
        return all(w in (None, t) for w, t in zip(wanted, theirs, strict=True))

    def _same_constant(self, step: Step, twin: Step) -> bool:
        """What is added to the only value, or multiplied with it: a converter may leave one such op out of several."""
        if step.type not in _WITH_CONSTANT or len(step.values) != 1 or len(twin.values) != 1:
            return True
        if len(step.constants) != 1 or len(twin.constants) != 1:
            return len(step.constants) == len(twin.constants)
        mine, theirs = self.reference.constant(step.constants[0]), self.quantized.constant(twin.constants[0])
        if mine.dtype.kind != "f" or theirs.dtype.kind != "f":
            return True
        if step.type != twin.type:
            theirs = -theirs if step.type in ("Add", "Sub") else 1 / np.where(theirs == 0, np.inf, theirs)
        return _nearly_equal(mine.ravel(), theirs.ravel())

    def _before_helpers(self, root: str, wanted: Iterable[str | None]) -> str:
        while root not in wanted and (step := self.quantized.producer.get(root)) is not None:
            if step.type not in _HELPERS or step.index in self._used or not step.values:
                break
            root = step.values[0]
        return root

    def _may_share_weights(self, step: Step, twin: Step) -> bool:
        mine, theirs = self.reference.weight_shape(step), self.quantized.weight_shape(twin)
        return int(np.prod(mine)) == int(np.prod(theirs))

    def _best(self, step: Step, candidates: list[Step], is_certain: bool) -> Step | None:
        if step.weight and len(candidates) > 1:
            scores = {c.index: self._pairs.likeness(step, c) for c in candidates}
            top = max(scores.values())
            candidates = [c for c in candidates if scores[c.index] > top - 1e-3]
        named = [c for c in candidates if self._is_named_after(c, step)]
        if not is_certain and not named and not (step.weight and candidates):
            return None
        rest = named or candidates
        if len(rest) > 1:
            read_by = Counter(s.type for s in self.reference.consumers[step.outputs[0]])
            rest = sorted(
                rest, key=lambda c: (-self._told_alike(step, c), -self._read_alike(c, read_by), c.index)
            )  # fmt: skip
        return rest[0] if rest else None

    def _told_alike(self, step: Step, twin: Step) -> int:
        """How much of what an op is told is the same: its window, the ends of a slice, a factor."""
        windows = step.settings.get("window"), twin.settings.get("window")
        theirs = [self.quantized.constant(name).ravel() for name in twin.constants if name != twin.weight]
        found = int(None not in windows and windows[0] == windows[1])
        for name in step.constants:
            mine = self.reference.constant(name).ravel() if name != step.weight else None
            if mine is not None and mine.dtype.kind in "fiu":
                found += any(_nearly_equal(mine, t) for t in theirs)
        return found

    def _read_alike(self, twin: Step, read_by: Counter[str]) -> int:
        theirs = Counter(s.type for out in twin.outputs for s in self.quantized.consumers.get(out, ()))
        return (theirs & read_by).total()

    def _by_weights(self, step: Step, found: Step | None) -> Step | None:
        """The twin with these weights where the way in was lost, or where it led to entirely different weights."""
        if not step.weight or (found is not None and self._pairs.likeness(step, found) > _SAME_WEIGHTS):
            return found
        rest = [
            s for s in self.quantized.steps
            if s.index not in self._used and s.type == step.type and s.weight and self._may_share_weights(step, s)
        ]  # fmt: skip
        scored = sorted(
            ((self._pairs.likeness(step, s), self._is_named_after(s, step), -s.index, s) for s in rest), reverse=True
        )  # of equal ones the first, as the reference is walked in order
        if scored and scored[0][0] > _EQUAL_WEIGHTS:
            return scored[0][3]
        return next((s for _, is_named, _, s in scored if is_named), found)

    def _accept(self, step: Step, twin: Step) -> None:
        self._used.add(twin.index)
        self._pairs.settle(step, twin)
        if step.weight and step.type in WEIGHTED and step.values and twin.values:
            wanted = self.points.get(step.values[0])
            if wanted is None:
                self._anchor(step.values[0], twin.values[0])
            elif wanted not in [self._before_helpers(v, (wanted,)) for v in twin.values]:
                self._doubts += 1
        others = self._other_outputs(step, twin)
        match = Match(step, twin, step, others.pop(step.outputs[0], twin.outputs[0]))
        if step.kind == "Einsum":
            match.value = self._behind_transpose(match)
        self._record(match)
        self.points.update(others)
        if step.weight and step.type in WEIGHTED:
            for following in self._worked_into(step, twin):
                self._extend(match, following)
                match.affine.append(following)
        norm = self._only_reader(match.end.outputs[0])
        if twin.settings.get("has_norm") and norm is not None and norm.type == "BatchNorm":
            self._extend(match, norm)  # the kernel has it beside its weights
        self._take_activation(match)
        self._restore_order(match)
        self._take_padding(match)

    def _restore_order(self, match: Match) -> None:
        """Converters drop a transpose and the one that takes it back; in between, the values are in another order."""
        while match.folded and not self._is_in_order(match.folded):
            following = self._only_reader(match.end.outputs[0])
            if following is None or following.type != "Transpose" or len(following.constants) != 1:
                for step in match.folded:
                    del self.folded_into[step.index]
                    self.missing[step.index] = _OTHER_LAYOUT
                del self.matches[match.step.index], self.points[match.end.outputs[0]]
                self._ends.pop(match.end.outputs[0])
                self.missing[match.step.index] = _OTHER_LAYOUT
                return
            self._extend(match, following)

    def _is_in_order(self, steps: Iterable[Step]) -> bool:
        order: list[int] = []
        for step in steps:
            if step.type == "Transpose" and not self._keeps_order(step):
                moves = [int(at) for at in self.reference.constant(step.constants[0]).ravel()]
                order = [order[at] for at in moves] if order else moves
        return order == sorted(order)

    def _take_padding(self, match: Match) -> None:
        """Converters make zeros around the input the convolution's own business."""
        pad = self.reference.producer.get(match.step.values[0]) if match.step.values else None
        if pad is not None and pad.type == "Pad" and pad.index in self.missing and pad.outputs[0] not in self.points:
            is_alone = self._only_reader(pad.outputs[0]) is match.step
            if is_alone and match.twin.values and self.points.get(pad.values[0]) == match.twin.values[0]:
                del self.missing[pad.index]
                self.folded_into[pad.index] = match

    def _other_outputs(self, step: Step, twin: Step) -> dict[str, str]:
        """Of an op with several results, which is which: in their order, those of other shapes left out."""
        found: dict[str, str] = {}
        if len(step.outputs) == len(twin.outputs):
            found = dict(zip(step.outputs, twin.outputs, strict=True))
        else:
            rest = list(twin.outputs)
            for mine in step.outputs:
                fitting = next((t for t in rest if self._same_shape(mine, t)), None)
                if fitting is not None:
                    found[mine] = fitting
                    rest = rest[rest.index(fitting) + 1 :]
        return found

    def _behind_transpose(self, match: Match) -> str:
        """Converters write an Einsum as a product and what brings its axes in order."""
        if any(s.type == "Transpose" for s in self.reference.consumers[match.step.outputs[0]]):
            return match.value
        passed: list[Step] = []
        value = match.value
        while len(readers := self.quantized.consumers.get(value, [])) == 1 and readers[0].type in _HELPERS - {"Pad"}:
            passed.append(readers[0])
            value = readers[0].outputs[0]
        while passed and passed[-1].type != "Transpose":
            passed.pop()
        self._used.update(step.index for step in passed)
        return passed[-1].outputs[0] if passed else match.value

    def _take_activation(self, match: Match) -> None:
        """The twin says which activation is part of it; only changes of shape may be in between."""
        passed: list[Step] = []
        end = match.end.outputs[0]
        while match.twin.activation and (following := self._only_reader(end)) is not None:
            passed.append(following)
            end = following.outputs[0]
            if self._is_its_activation(match, following):
                for step in passed:
                    self._extend(match, step)
                passed = []
            elif not self._is_movement(following):
                return

    def _is_its_activation(self, match: Match, step: Step) -> bool:
        if len(step.values) != 1 or step.type not in ACTIVATIONS:
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

    def _only_reader(self, root: str) -> Step | None:
        readers = self.reference.consumers[root]
        return readers[0] if len(readers) == 1 and root not in self.reference.outputs else None

    def _keeps_order(self, step: Step) -> bool:
        """It changes nothing but the shape."""
        if len(step.values) != 1:
            return False
        if step.type in RESHAPES:
            return True
        shape = self.reference.shape_of(step.values[0])
        if step.type != "Transpose" or shape is None or len(step.constants) != 1:
            return False
        order = self.reference.constant(step.constants[0]).ravel()
        moved = [int(at) for at in order if shape[int(at)] != 1]
        return moved == sorted(moved)

    def _is_movement(self, step: Step) -> bool:
        is_transpose = step.type == "Transpose" and len(step.values) == 1 and len(step.constants) == 1
        return is_transpose or self._keeps_order(step)

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

    def _record(self, match: Match) -> None:
        self.matches[match.step.index] = match
        self.points[match.end.outputs[0]] = match.value
        self._ends[match.end.outputs[0]] = match

    def _extend(self, match: Match, step: Step) -> None:
        """Moves the point of comparison behind this step."""
        before = match.end.outputs[0]
        del self.points[before], self._ends[before]
        match.end = step
        match.folded.append(step)
        self.folded_into[step.index] = match
        self.points[step.outputs[0]] = match.value
        self._ends[step.outputs[0]] = match

    # what is worked into weights

    def _worked_into(self, step: Step, twin: Step) -> list[Step]:
        """How many of the steps behind are in the twin's weights and bias: as many as fit them best."""
        found = self._pairs.both(step, twin)
        if found is None:
            return []
        bias = self.quantized.bias(twin)
        if bias is None and not twin.bias:
            bias = np.zeros(1, np.float32)
        chain = self._chain(step)
        errors = [affine.distance(found.quantized, bias) for affine in self._pairs.affines(step, found.reference)]
        least = min(errors)
        last = max(i for i, error in enumerate(errors) if error <= least * (1 + 1e-6) + 1e-12)
        following = self.quantized.consumers.get(twin.outputs[0], [])
        while last and (chain[last - 1].type not in AFFINE or self._is_still_there(chain[last - 1], following)):
            last -= 1
        return chain[:last]

    def _is_still_there(self, step: Step, following: Sequence[Step]) -> bool:
        """As a bias of zeros, which leaves no trace in the bias that it might be part of."""
        candidates = [c for c in following if len(c.values) == 1 and bool(c.constants) and _same_type(step, c)]
        return step.type in _WITH_CONSTANT and any(self._same_constant(step, c) for c in candidates)

    def _chain(self, step: Step) -> list[Step]:
        """The affine steps that follow one by one and are all that reads the result before them."""
        found: list[Step] = []
        end = step.outputs[0]
        while (following := self._only_reader(end)) is not None and len(following.values) == 1:
            if not self._is_movement(following) and (following.type not in AFFINE or not following.constants):
                break
            found.append(following)
            end = following.outputs[0]
        while found and found[-1].type not in AFFINE:
            found.pop()
        return found

    # what has no twin of its own

    def _fold(self, step: Step) -> bool:
        """Where the operation is part of the one before it in the quantized model, compare behind it instead."""
        for value in step.values:
            match = self._ends.get(value)
            if match is None or len(self.reference.consumers[value]) != 1 or value in self.reference.outputs:
                continue
            is_there = any(
                c.index not in self._used and c.type == step.type for c in self.quantized.consumers.get(match.value, ())
            )
            if not is_there and self._can_hold(match, step, value):
                self._extend(match, step)
                return True
        return False

    def _can_hold(self, match: Match, step: Step, value: str) -> bool:
        if len(step.values) == 1 and step.type in ACTIVATIONS:
            return self._is_its_activation(match, step)
        others = [self.points.get(v) for v in step.values if v != value]
        if step.type == "Add" and len(others) == 1:
            return others[0] is not None and others[0] in match.twin.values
        is_affine = step.type in AFFINE and len(step.values) == 1 and bool(step.constants)
        return is_affine and self._is_named_after(match.twin, step)

    def _by_parts(self, step: Step) -> bool:
        """A batch norm that is not worked into weights is a factor and a sum in TFLite."""
        value = self.points.get(step.values[0]) if step.type == "BatchNorm" and step.values else None
        for first in self.quantized.consumers.get(value, ()) if value is not None else ():
            behind = self.quantized.consumers.get(first.outputs[0], [])
            is_factor = first.index not in self._used and first.type == "Mul" and bool(first.constants)
            if is_factor and len(behind) == 1 and behind[0].type in ("Add", "Sub") and behind[0].constants:
                self._used.add(first.index)
                self._accept(step, behind[0])
                return True
        return False

    def _hand_on(self, step: Step) -> bool:
        """What the quantized model does without."""
        if len(step.values) != 1 or step.values[0] not in self.points:
            return False
        if self._keeps_order(step):
            reason = "it only changes the shape, which the quantized model does without"
        elif self._is_neutral(step):
            reason = "it changes nothing, and the quantized model does without"
        else:
            return False
        self.points[step.outputs[0]] = self.points[step.values[0]]
        self.missing[step.index] = reason
        return True

    def _is_neutral(self, step: Step) -> bool:
        """Times one, plus nothing."""
        if step.type not in AFFINE or len(step.constants) != 1:
            return False
        if step.type in ("Sub", "Div") and step.settings.get("constant_first", False):
            return False
        constant = self.reference.constant(step.constants[0])
        return constant.dtype.kind == "f" and bool((constant == (1 if step.type in ("Mul", "Div") else 0)).all())

    def _shared(self, step: Step) -> Step | None:
        """Converters compute once what the reference computes twice, with the same weights from the same values."""
        wanted = [self.points.get(root) for root in step.values]
        if not wanted or None in wanted:
            return None
        for match in self._sharing(wanted):
            other = match.step
            is_same = other.type == step.type and [self.points.get(v) for v in other.values] == wanted
            if is_same and other.settings == step.settings and len(other.constants) == len(step.constants):
                pairs = zip(step.constants, other.constants, strict=True)
                if all(np.array_equal(self.reference.constant(a), self.reference.constant(b)) for a, b in pairs):
                    return match.twin
        return None

    def _sharing(self, wanted: Sequence[str | None]) -> list[Match]:
        """Matches of ops that read the same value."""
        readers = {s.index for root, q in self.points.items() if q == wanted[0] for s in self.reference.consumers[root]}
        return [self.matches[i] for i in sorted(readers) if i in self.matches]

    def _by_name(self, step: Step) -> bool:
        """Fused or taken apart beyond recognition, but the results have kept their name.

        Of all ops of the reference in it, it is the last one's; of several in the quantized model, it is the one that
        others read.
        """
        group = [s for s in self._named.get(step.name, ()) if s.index not in self._used]
        inner = {s.index for s in group}
        ends = [
            s for s in group
            if not any(reader.index in inner for out in s.outputs for reader in self.quantized.consumers.get(out, ()))
        ]  # fmt: skip
        for twin in reversed(ends):
            if all(s.type in _HELPERS for s in group) or not self._is_last_in(step, twin):
                continue
            self._used |= inner
            self._accept(step, twin)
            return True
        return False

    def _is_last_in(self, step: Step, twin: Step) -> bool:
        return all(self._place.get(name, step.index) <= step.index for name in twin.also)

    # from behind

    def _match_results(self) -> None:
        """What the models return is the same, whatever the ops that make it are called."""
        mine, theirs = self.reference, self.quantized
        if len(mine.outputs) != len(theirs.outputs):
            return
        by_name = dict(zip(theirs.result_names, theirs.outputs, strict=False))
        is_named = set(by_name) == set(mine.result_names) and len(by_name) == len(mine.outputs)
        for at, root in enumerate(mine.outputs):
            if root not in self.points:
                self._anchor(root, by_name[mine.result_names[at]] if is_named else theirs.outputs[at])

    def _anchor(self, root: str, value: str) -> None:
        """Both are the same, as what reads them tells; so the ops before them are, which went unrecognized."""
        step, twin = self.reference.producer.get(root), self.quantized.producer.get(value)
        if step is None or step.index not in self.missing or not self._same_shape(root, value):
            return
        if twin is not None and twin.type == step.type and all(v in self.points for v in step.values):
            return  # it reads something else, or it would have been found
        self.points[root] = value
        if self._keeps_order(step):
            if step.values[0] not in self.points:
                self._anchor(step.values[0], value)
        elif twin is not None and twin.index not in self._used and step.outputs[0] == root:
            self._used.add(twin.index)
            del self.missing[step.index]
            match = Match(step, twin, step, value)
            self._record(match)
            self._take_in(match)

    def _take_in(self, match: Match) -> None:
        """The ops that only work for this one and have no counterpart are part of it."""
        waiting = [match.step]
        while waiting:
            for root in waiting.pop().values:
                step = self.reference.producer.get(root)
                if step is None or step.index not in self.missing or root in self.points:
                    continue
                readers = (s.index for out in step.outputs for s in self.reference.consumers[out])
                if all(i == match.step.index or self.folded_into.get(i) is match for i in readers):
                    del self.missing[step.index]
                    self.folded_into[step.index] = match
                    waiting.append(step)

    def _explain_inner_parts(self) -> None:
        """Of an operation that was found by its name, the other ops in it."""
        by_name = {step.name: step for step in self.reference.steps}
        for match in list(self.matches.values()):
            for name in match.twin.also:
                part = by_name.get(name)
                is_lost = part is not None and part.index in self.missing and part.outputs[0] not in self.points
                if part is not None and is_lost and part.index < match.step.index:
                    del self.missing[part.index]
                    self.folded_into[part.index] = match

    def _why_missing(self, step: Step) -> str:
        lost = [root for root in step.values if root not in self.points]
        if lost and len(lost) == len(step.values):
            return "its inputs have no counterpart in the quantized model (fused there into another operation)"
        return f"the quantized model has no {step.kind} at this place (fused or removed there)"

    def _check_same_network(self) -> None:
        bearing = [s for s in self.reference.steps if s.weight and s.type in WEIGHTED]
        same = sum(1 for s in bearing if s.index in self.matches and self._resembles(self.matches[s.index]))
        if same * 2 < len(bearing) or not self.matches:
            raise MismatchError(
                f"{self.quantized.name} is not a quantized version of {self.reference.name}: only {same} of "
                f"{len(bearing)} layers with weights have the same place and similar weights. Check that both models "
                "belong together."
            )

    def _resembles(self, match: Match) -> bool:
        found = self.weights(match)
        return found is None or alike(found.reference, found.quantized) > _SAME_WEIGHTS


def plain_name(name: str) -> str:
    """Without what exporters put around the name of an input."""
    return re.sub(r"^(serving_default_|args_)|(:\d+)$", "", name)


def _same_type(step: Step, twin: Step) -> bool:
    """A constant may be divided by in one model and multiplied by its inverse in the other."""
    if step.type == twin.type:
        return True
    is_inverse = {step.type, twin.type} in ({"Mul", "Div"}, {"Add", "Sub"})
    return is_inverse and len(step.values) == 1 and bool(step.constants) and bool(twin.constants)


def _distinct(steps: Iterable[Step]) -> Iterable[Step]:
    return {step.index: step for step in steps}.values()


def _nearly_equal(a: Array, b: Array) -> bool:
    """Whole numbers must be the same, others may be rounded."""
    if b.dtype.kind not in "fiu" or (a.shape != b.shape and 1 not in (a.size, b.size)):
        return False
    if a.dtype.kind != "f":
        return np.array_equal(a, b)
    return bool(np.abs(a - b).max(initial=0.0) <= 0.02 * np.abs(a).max(initial=0.0))
