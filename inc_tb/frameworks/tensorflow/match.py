"""Which values of the reference are which of the quantized model.

Walks the reference in order and follows the computation in the quantized graph: the same kind of operation on the
values already matched, the weights deciding between several, then the names. What a converter works into an operation
(a bias, a batch norm, an activation) moves the point of comparison behind it; how far, the weights and the bias tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np

from inc_tb.frameworks.match import EQUAL_WEIGHTS, SAME_WEIGHTS, Match, Weights, most_alike, reads_the_same
from inc_tb.frameworks.tensorflow.affine import Affine
from inc_tb.frameworks.tensorflow.folding import HELPERS, Folding
from inc_tb.frameworks.tensorflow.graph import Graph, Step
from inc_tb.frameworks.tensorflow.kinds import LOOPS, WEIGHTED
from inc_tb.frameworks.tensorflow.likeness import INTERCHANGEABLE, plain_name, same_type

_FEW_INPUTS = 4


class Matching(Folding):
    def __init__(self, reference: Graph, quantized: Graph) -> None:
        super().__init__(reference, quantized)
        self._place = {name: step.index for step in reference.steps for name in (step.name, *step.also)}
        self._named = self._find_named()
        self._doubts = 0
        self._walk_best()
        self._check_same_network([s for s in reference.steps if s.weight and s.type in WEIGHTED])

    def _walk_best(self) -> None:
        """With the inputs as they are named; where nothing tells which is which, so that most ops are found."""
        pairings = self._match_inputs()
        counts = [self._walk(names) for names in pairings]
        best = counts.index(max(counts))
        if best != len(counts) - 1:
            self._walk(pairings[best])

    def _walk(self, input_names: dict[str, str]) -> int:
        """How many ops have been found, without those that read something else than in the reference."""
        self._doubts = 0
        for state in (self.points, self.matches, self.missing, self.folded_into, self._ends, self._used):
            state.clear()
        self._pair_inputs(input_names)
        for step in self.reference.steps:
            if step.index not in self.folded_into:
                self._match(step)
        self._match_results()
        self._explain_inner_parts()
        return len(self.matches) + len(self.folded_into) - self._doubts

    def weights(self, match: Match[Step]) -> Weights | None:
        found = self._pairs.both(match.step, match.twin)
        if found is None:
            return None
        affine = Affine(found.reference, np.zeros(1, np.float32))
        for step in match.affine:
            worked_in = self._pairs.worked_in(affine, step)
            affine = worked_in if worked_in is not None else affine
        return found._replace(reference=affine.weight)

    def _match_inputs(self) -> list[dict[str, str]]:
        mine, theirs = ([i.name for i in graph.inputs] for graph in (self.reference, self.quantized))
        plain = {plain_name(name): name for name in theirs}
        if set(mine) == set(theirs):
            return [{name: name for name in mine}]
        if all(plain_name(name) in plain for name in mine) and len(plain) == len(theirs) == len(mine):
            return [{name: plain[plain_name(name)] for name in mine}]
        found = [dict(zip(mine, order, strict=True)) for order in self._input_orders(theirs)]
        if len(mine) != len(theirs) or not found:
            raise self._other_inputs(mine, theirs)
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

    def _match(self, step: Step) -> None:
        twin = self._by_weights(step, self._follow(step)) or self._shared(step)
        if twin is not None:
            self._accept(step, twin)
        elif not (self._fold(step) or self._by_parts(step) or self._hand_on(step) or self._by_name(step)):
            self.missing[step.index] = self._why_missing(step)

    def _follow(self, step: Step) -> Step | None:
        """The operation of the same kind on the same values, if need be behind a helper."""
        wanted = [self.points.get(root) for root in step.reads]
        near = self._readers(wanted, [step.name, *step.outputs])
        for _ in range(3):
            found = self._best(step, [c for c in near if self._fits(step, c, wanted)], None not in wanted)
            if found is not None:
                return found
            helpers = [s for s in near if s.type in HELPERS and s.index not in self._used]
            near = self._readers(out for s in helpers for out in s.outputs)
        return None

    def _fits(self, step: Step, twin: Step, wanted: Sequence[str | None]) -> bool:
        if twin.index in self._used or not same_type(step, twin) or bool(step.weight) != bool(twin.weight):
            return False
        if step.weight and not self._may_share_weights(step, twin):
            return False
        theirs = [self._before_helpers(v, wanted) for v in twin.reads]
        if step.weight:  # a fused kernel may read more
            return not wanted or wanted[0] is None or wanted[0] in theirs
        if step.type in LOOPS:  # they read what their body needs, constants or not
            return any(w is not None and w in theirs for w in wanted)
        if len(theirs) != len(wanted) or not self._same_constant(step, twin):
            return False
        return reads_the_same(wanted, theirs, in_any_order=step.type in INTERCHANGEABLE)

    def _best(self, step: Step, candidates: list[Step], is_certain: bool) -> Step | None:
        if step.weight:
            candidates = most_alike(candidates, lambda c: self._pairs.likeness(step, c))
        named = [c for c in candidates if self._is_named_after(c, step)]
        if not is_certain and not named and not (step.weight and candidates):
            return None
        rest = named or candidates
        if len(rest) > 1:
            rest = sorted(rest, key=lambda c: (-self._told_alike(step, c), -self._read_alike(step, c), c.index))
        return rest[0] if rest else None

    def _by_weights(self, step: Step, found: Step | None) -> Step | None:
        """The twin with these weights where the way in was lost, or where it led to entirely different weights."""
        if not step.weight or (found is not None and self._pairs.likeness(step, found) > SAME_WEIGHTS):
            return found
        rest = [
            s for s in self.quantized.steps
            if s.index not in self._used and s.type == step.type and s.weight and self._may_share_weights(step, s)
        ]  # fmt: skip
        scored = sorted(
            ((self._pairs.likeness(step, s), self._is_named_after(s, step), -s.index, s) for s in rest), reverse=True
        )  # of equal ones the first, as the reference is walked in order
        if scored and scored[0][0] > EQUAL_WEIGHTS:
            return scored[0][3]
        return next((s for _, is_named, _, s in scored if is_named), found)

    def _accept(self, step: Step, twin: Step) -> None:
        self._used.add(twin.index)
        self._pairs.settle(step, twin)
        if step.weight and step.type in WEIGHTED and step.reads and twin.reads:
            wanted = self.points.get(step.reads[0])
            if wanted is None:
                self._anchor(step.reads[0], twin.reads[0])
            elif wanted not in [self._before_helpers(v, (wanted,)) for v in twin.reads]:
                self._doubts += 1
        others = self._other_outputs(step, twin)
        match = Match(step, twin, step, others.pop(step.outputs[0], twin.outputs[0]))
        if step.kind == "Einsum":
            match.root = self._behind_transpose(match)
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

    def _by_parts(self, step: Step) -> bool:
        """A batch norm that is not worked into weights is a factor and a sum in TFLite."""
        value = self.points.get(step.reads[0]) if step.type == "BatchNorm" and step.reads else None
        for first in self.quantized.consumers.get(value, ()) if value is not None else ():
            behind = self.quantized.consumers.get(first.outputs[0], [])
            is_factor = first.index not in self._used and first.type == "Mul" and bool(first.constants)
            if is_factor and len(behind) == 1 and behind[0].type in ("Add", "Sub") and behind[0].constants:
                self._used.add(first.index)
                self._accept(step, behind[0])
                return True
        return False

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
            if all(s.type in HELPERS for s in group) or not self._is_last_in(step, twin):
                continue
            self._used |= inner
            self._accept(step, twin)
            return True
        return False

    def _is_last_in(self, step: Step, twin: Step) -> bool:
        return all(self._place.get(name, step.index) <= step.index for name in twin.also)

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
        if twin is not None and twin.type == step.type and all(v in self.points for v in step.reads):
            return  # it reads something else, or it would have been found
        self.points[root] = value
        if self._keeps_order(step):
            if step.reads[0] not in self.points:
                self._anchor(step.reads[0], value)
        elif twin is not None and twin.index not in self._used and step.outputs[0] == root:
            self._used.add(twin.index)
            del self.missing[step.index]
            match = Match(step, twin, step, value)
            self._record(match)
            self._take_in(match)

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
