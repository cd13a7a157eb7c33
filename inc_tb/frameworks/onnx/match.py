"""Which values of the reference model are which of the quantized model.

Walks the reference in order and follows the computation in the quantized graph: same kind of
operation on the values already matched, the weights deciding between several, names only where
both leave a choice. What one tool folds into another operation (activation, batch norm, bias) moves
the point of comparison behind it, so that the two arrays are truly the same point.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterator

from inc_tb.frameworks.match import EQUAL_WEIGHTS, SAME_WEIGHTS, Match, most_alike, reads_the_same
from inc_tb.frameworks.onnx.folding import WITH_BIAS
from inc_tb.frameworks.onnx.fused import Fusing
from inc_tb.frameworks.onnx.graph import Graph
from inc_tb.frameworks.onnx.likeness import INTERCHANGEABLE, same_type
from inc_tb.frameworks.onnx.steps import REQUANTIZE, Step


class Matching(Fusing):
    def __init__(self, reference: Graph, quantized: Graph) -> None:
        super().__init__(reference, quantized)
        self._seen: dict[Hashable, deque[Step]] = defaultdict(deque)
        self._with_weights: dict[int, list[Step]] = defaultdict(list)
        """Steps of the quantized model by the size of their weights."""
        for step in quantized.steps:
            if step.weight:
                self._with_weights[quantized.weight_size(step)].append(step)
        self._match_inputs()
        for step in reference.steps:
            self._match(step)
        self._check_same_network([s for s in reference.steps if s.weight and s.type in WITH_BIAS])

    def _match_inputs(self) -> None:
        mine, theirs = list(self.reference.input_roots), list(self.quantized.input_roots)
        if len(mine) != len(theirs):
            raise self._other_inputs(mine, theirs)
        is_named = set(mine) == set(theirs)
        self._pair_inputs(dict(zip(mine, mine if is_named else theirs, strict=True)))

    def _match(self, step: Step) -> None:
        if not step.outputs or step.index in self.folded_into or step.index in self.matches or self._join(step):
            return
        twin = self._by_weights(step, self._follow(step))
        before = self._done_before(step) if twin is not None else None
        if twin is not None and before is not None:
            self._used.add(twin.index)
            self._extend(before, step, twin.outputs[0])
        elif twin is not None:
            self._accept(step, twin)
        elif shared := self._share(step):
            self.missing[step.index] = shared
        elif not (self._fold(step) or self._by_name(step)):
            self.missing[step.index] = self._skip_idle(step) or self._why_missing(step)
        if step.outputs[0] in self.points:
            self._seen[self._computation(step)].append(step)

    def _follow(self, step: Step) -> Step | None:
        """The operation of the same kind on the same values, if need be behind a helper."""
        wanted = [self.points.get(root) for root in step.reads]
        for candidates in self._candidates(step, wanted):
            fitting = [c for c in candidates if self._fits(step, c, wanted)]
            fitting = [c for c in fitting if c.type == step.type] or fitting
            is_certain = None not in wanted and all(c.type != REQUANTIZE for c in fitting)
            found = self._best(step, fitting if is_certain else self._sure(step, fitting))
            if found is not None:
                return found
        return None

    def _candidates(self, step: Step, wanted: list[str | None]) -> Iterator[list[Step]]:
        names = [step.name, *self._named(step)]
        called_so = self._named_in_crowds(wanted, names)
        yield [c for c in called_so if not step.weight or self._weight_likeness(step, c) > EQUAL_WEIGHTS]
        near = self._readers(wanted, names)
        yield near
        yield self._readers(s.outputs[0] for s in near if self._is_helper(s))

    def _fits(self, step: Step, candidate: Step, wanted: list[str | None]) -> bool:
        if candidate.index in self._used or not same_type(step, candidate):
            return False
        if len(candidate.reads) != len(step.reads) or bool(step.weight) != bool(candidate.weight):
            return False
        if step.type in WITH_BIAS and self.reference.weight_size(step) != self.quantized.weight_size(candidate):
            return False
        if not self._same_selection(step, candidate) or not self._same_whole_numbers(step, candidate):
            return False
        known = set(wanted)
        theirs = [v if v in known else self._before_helper(v) for v in candidate.reads]
        return reads_the_same(wanted, theirs, in_any_order=step.type in INTERCHANGEABLE)

    def _sure(self, step: Step, candidates: list[Step]) -> list[Step]:
        """Of candidates of which only some inputs or the purpose is known, those that something else speaks for."""
        if step.weight:
            return [c for c in candidates if self._weight_likeness(step, c) > EQUAL_WEIGHTS]
        named = [c for c in candidates if c.outputs[0] in self._named(step)]
        if named or len(candidates) != 1:
            return named
        around = (s for root in step.reads if root in self.points for s in self.reference.consumers[root])
        has_rivals = any(s.index not in self.matches and s is not step and same_type(step, s) for s in around)
        return [] if has_rivals else candidates

    def _best(self, step: Step, candidates: list[Step]) -> Step | None:
        candidates = most_alike(candidates, lambda c: self._likeness(step, c))
        if len(candidates) > 1:
            named = [c for c in candidates if c.name.startswith(step.name) or step.name.startswith(c.name)]
            candidates = sorted(
                named or candidates, key=lambda c: (-self._read_alike(step, c), abs(len(c.name) - len(step.name)))
            )
        return candidates[0] if candidates else None

    def _by_weights(self, step: Step, found: Step | None) -> Step | None:
        """The twin with these weights where the way in was lost, or where it led to entirely different weights."""
        if not step.weight or step.type not in (*WITH_BIAS, "Gather"):
            return found
        is_shared = len(self.reference.model.consumers[step.weight]) > 1
        if found is None and is_shared and any(root in self.points for root in step.reads):
            # The way in is known, so a twin must lie on it: the same weights elsewhere are a different place.
            return None
        if found is not None and self._weight_likeness(step, found) > SAME_WEIGHTS:
            return found
        same_size = self._with_weights[self.reference.weight_size(step)]
        rest = [s for s in same_size if s.index not in self._used and same_type(step, s)]
        scored = sorted(((self._weight_likeness(step, s), s.index, s) for s in rest), reverse=True)
        return scored[0][2] if scored and scored[0][0] > EQUAL_WEIGHTS else found

    def _accept(self, step: Step, twin: Step) -> None:
        self._used.add(twin.index)
        point, end = twin.outputs[0], twin
        if step.has_bias and not twin.has_bias and step.type in WITH_BIAS:
            end = self._bias_behind(twin) or twin
            point = end.outputs[0]
            self._used.add(end.index)
        self._record(Match(step, twin, step, point))
        for mine, theirs in zip(step.outputs[1:], end.outputs[1:], strict=False):
            if mine and theirs:
                self.points[mine] = theirs
                self._taken.add(theirs)

    def _share(self, step: Step) -> str:
        """Optimizers compute only once what the reference computes twice."""
        seen = self._seen[self._computation(step)]
        while seen and seen[0].outputs[0] not in self.points:  # moved on, behind what was folded into it
            seen.popleft()
        if not seen:
            return ""
        other = seen[0]
        for mine, theirs in zip(step.outputs, other.outputs, strict=True):
            if theirs in self.points:
                self.points[mine] = self.points[theirs]
        return f"it computes the same as {other.name}; the quantized model does that once"

    def _why_missing(self, step: Step) -> str:
        if step.type in ("If", "Loop", "Scan"):
            return f"{step.type} has its own graphs, which are not looked into"
        return super()._why_missing(step)
