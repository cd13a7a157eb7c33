"""What one model has as one op and the other as several: norms, activations, attention.

Norms and activations are told by what they compute, in either direction and whatever anything is called. Of what is
fused beyond that only the names of results are left.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from inc_tb.frameworks.arrays import alike
from inc_tb.frameworks.match import EQUAL_WEIGHTS, Match
from inc_tb.frameworks.onnx.composites import KINDS, Composite, find_composites
from inc_tb.frameworks.onnx.folding import Folding
from inc_tb.frameworks.onnx.graph import MATMUL, Graph
from inc_tb.frameworks.onnx.likeness import same_type
from inc_tb.frameworks.onnx.steps import Step

_MOST_PARTS = 200
_SUM_AT = 3
"""Of the outputs of a SkipLayerNormalization, the one that has the sum which it normalizes."""


class Fusing(Folding):
    """Matches of what is one op in one model and several in the other."""

    def __init__(self, reference: Graph, quantized: Graph) -> None:
        super().__init__(reference, quantized)
        self._mine: dict[int, list[Composite]] = defaultdict(list)
        """By the steps at which they are looked for, because all that they read has been seen."""
        self._theirs: dict[tuple[str, frozenset[str]], list[Composite]] = defaultdict(list)
        for composite in find_composites(reference):
            for step in [*composite.before, composite.core[0]]:
                self._mine[step.index].append(composite)
        self._embeddings = [s for s in quantized.steps if s.type == "EmbedLayerNormalization"]
        for composite in find_composites(quantized):
            self._theirs[composite.kind, frozenset(composite.entries)].append(composite)

    def _join(self, step: Step) -> bool:
        """Whether it is one of several that the other model has written differently."""
        for mine in self._mine.get(step.index, ()):
            wanted = {self.points.get(root) for root in mine.entries}
            known = frozenset(root for root in wanted if root is not None)
            if None in wanted:
                continue
            fitting = [theirs for theirs in self._theirs.get((mine.kind, known), ()) if self._differs(mine, theirs)]
            if fitting:
                self._accept_joined(mine, max(fitting, key=lambda theirs: self._composite_likeness(mine, theirs)))
                return True
        return bool(self._embeddings) and self._join_embedding(step)

    def _differs(self, mine: Composite, theirs: Composite) -> bool:
        """Whether both can be the same without being matched step by step; additions only if it takes them in."""
        pairs = mine.steps(with_bias=True), theirs.steps(with_bias=True)
        if any(s.index in self._used for s in pairs[1]) or any(s.index in self.matches for s in pairs[0]):
            return False
        if not mine.may_take(theirs) or not theirs.may_take(mine):
            return False
        ours, others = (Counter(s.type for s in steps) for steps in pairs)
        return not (ours <= others or others <= ours)  # or else one of them is without what it computes twice

    def _composite_likeness(self, mine: Composite, theirs: Composite) -> float:
        found = self.weights(self._joined(mine, theirs))
        return alike(found.reference, found.quantized) if found is not None else -1.0

    def _joined(self, mine: Composite, theirs: Composite) -> Match[Step]:
        with_bias = mine.has_bias and theirs.has_bias
        steps, others = mine.steps(with_bias=with_bias), theirs.steps(with_bias=with_bias)
        end, twin = steps[-1], [*theirs.bearers(), others[-1]][0]
        inside = [other for other in others if other is not twin]
        return Match(
            end, twin, end, others[-1].outputs[0], steps[:-1], is_joined=True, bearers=mine.bearers(), inside=inside
        )

    def _accept_joined(self, mine: Composite, theirs: Composite) -> None:
        match = self._joined(mine, theirs)
        self._used.update(step.index for step in (match.twin, *match.inside))
        self._point_at_sum(mine, theirs, match)
        self._record_joined(match)

    def _point_at_sum(self, mine: Composite, theirs: Composite, match: Match[Step]) -> None:
        """A skip layer norm also gives the sum that it normalizes, where somebody else reads it."""
        if mine.before:
            total, added = _nth(theirs.core[0].outputs, _SUM_AT), mine.before[-1]
            if total:
                match.folded = [step for step in match.folded if step is not added]
                self._record(Match(added, theirs.core[0], added, total, is_joined=True))
                self.missing.pop(added.index, None)
        elif theirs.before:
            total = _nth(mine.core[0].outputs, _SUM_AT)
            if total:
                self.points[total] = theirs.before[-1].outputs[0]
                self._taken.add(self.points[total])

    def _by_name(self, step: Step) -> bool:
        """Fused beyond recognition, but the result has kept its name."""
        for root in self._named(step):
            twin = self.quantized.producer.get(root)
            if twin is None or root in self._taken:
                continue
            self._used.add(twin.index)
            if same_type(step, twin):
                self._record(Match(step, twin, step, root))
            else:
                parts = self._parts_behind(step)
                bearers = self._bearers([*parts, step], twin)
                self._record_joined(Match(step, twin, step, root, parts, is_joined=True, bearers=bearers))
            return True
        return False

    def _parts_behind(self, step: Step) -> list[Step]:
        """The steps between what the twin reads and its result that serve nothing else."""
        return self._serving([s for root in step.reads for s in self._unmatched(root)], [step])

    def _unmatched(self, root: str) -> list[Step]:
        """The steps that make a tensor of those that are compared."""
        found: dict[int, Step] = {}
        waiting = [root]
        while waiting and len(found) < _MOST_PARTS:
            root = waiting.pop()
            source = self.reference.producer.get(root)
            is_known = source is None or source.index in self.matches or source.index in self.folded_into
            if source is not None and not is_known and root not in self.points and source.index not in found:
                found[source.index] = source
                waiting += source.reads
        return list(found.values())

    def _serving(self, candidates: list[Step], ends: list[Step]) -> list[Step]:
        """Those whose results go nowhere but to these ends."""
        found = {step.index: step for step in candidates}
        inside = {step.index for step in ends}
        for index in sorted(found, reverse=True):
            readers = (s for out in found[index].outputs for s in self.reference.consumers.get(out, ()))
            if all(reader.index in inside for reader in readers):
                inside.add(index)
        return [found[index] for index in sorted(found) if index in inside]

    def _bearers(self, steps: list[Step], twin: Step) -> list[Step]:
        """The scale of a norm, told by what is done with it and not by its size alone; the parts of an attention."""
        size = self.quantized.weight_size(twin)
        if twin.type == "Attention":
            found = [s for s in steps if s.type in MATMUL and s.weight]
            is_all = sum(map(self.reference.weight_size, found)) == size
            return self._in_order(found, twin) if is_all else []
        wanted = {"BiasGelu": "Add", "EmbedLayerNormalization": "Gather"}.get(twin.type, "Mul")
        is_known = twin.type in KINDS or wanted == "Gather"
        found = [s for s in steps if s.type == wanted and s.weight and self.reference.weight_size(s) == size]
        return found[-1:] if is_known and twin.weight else []

    def _in_order(self, steps: list[Step], twin: Step) -> list[Step]:
        """As their weights stand side by side in the twin's."""
        whole, rest, found = self.quantized.weight(twin), list(steps), []
        at = 0
        while rest:
            fitting = [
                (alike(w, whole[..., at : at + w.shape[-1]]), s) for s in rest for w in [self.reference.weight(s)]
            ]
            found.append(max(fitting, key=lambda pair: pair[0])[1])
            at += self.reference.weight(found[-1]).shape[-1]
            rest.remove(found[-1])
        return found

    def _join_embedding(self, step: Step) -> bool:
        """The tables, their sum and its norm, which some tools make one op of; it is told by its table."""
        for mine in self._mine.get(step.index, ()):
            if mine.kind != "norm" or mine.before or step is not mine.core[0]:
                continue
            for twin in self._embeddings:
                steps = mine.steps(with_bias=True)
                behind = [s for root in mine.entries if root in self.reference.producer for s in self._unmatched(root)]
                parts = self._serving(behind, steps)
                bearers = self._bearers(parts, twin)
                match = Match(
                    steps[-1], twin, steps[-1], twin.outputs[0], [*parts, *steps[:-1]], is_joined=True, bearers=bearers
                )
                found = self.weights(match)
                is_same = found is not None and alike(found.reference, found.quantized) > EQUAL_WEIGHTS
                if twin.index not in self._used and is_same:
                    self._used.add(twin.index)
                    self._record_joined(match)
                    return True
        return False


def _nth(outputs: list[str], at: int) -> str:
    return outputs[at] if at < len(outputs) else ""
