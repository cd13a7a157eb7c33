"""Norms and activations in a graph, whether they are one op or written out in many."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from inc_tb.frameworks.onnx.calculator import COMPUTABLE, REDUCTIONS, Calculator
from inc_tb.frameworks.onnx.functions import TELLING, recognize
from inc_tb.frameworks.onnx.graph import Graph
from inc_tb.frameworks.onnx.model import attribute
from inc_tb.frameworks.onnx.steps import Step, nth_input

_MOST_STEPS = 24
_MOST_KNOWN = 10_000
_ENDS = {"Mul", "Div", "Add", "Sub", "Clip", "Min"}
KINDS: Mapping[str, str] = {
    "LayerNormalization": "norm", "SkipLayerNormalization": "norm", "InstanceNormalization": "norm",
    "SimplifiedLayerNormalization": "rms norm", "SkipSimplifiedLayerNormalization": "rms norm",
    "RMSNormalization": "rms norm", "GroupNormalization": "group norm", "GroupNorm": "group norm",
    "SkipGroupNorm": "group norm", "Gelu": "gelu", "FastGelu": "gelu", "BiasGelu": "gelu", "HardSwish": "hard-swish",
    "Mish": "mish", "Softmax": "softmax",
}  # fmt: skip
"""What single ops compute, in the words of functions.py."""
_SLOPES = {"QuickGelu": 1.702, "Swish": 1.0}
_NORMS = {"norm", "rms norm", "group norm"}
_TAKES_A_SUM = {"norm", "rms norm"}


@dataclass
class Composite:
    """Steps that compute one function of what they read; the last of them gives the result."""

    kind: str
    entries: list[str]
    """Roots that it reads from outside."""
    core: list[Step]
    before: list[Step] = field(default_factory=list)
    """Additions of what it reads, which some tools join to it."""
    scaling: Step | None = None
    shifting: Step | None = None
    """What multiplies or adds constants behind the core."""
    has_bias: bool = False

    def may_take(self, other: Composite) -> bool:
        """Whether this is one op that also does the additions before the other."""
        constant = sum(1 for step in other.before if len(step.reads) == 1)
        return not other.before or (self.is_single and constant == self.added_first)

    @property
    def added_first(self) -> int:
        """How many constants a single op adds to what it reads."""
        node = self.core[0].node
        at = {"BiasGelu": 1, "FastGelu": 1, "SkipLayerNormalization": 4, "SkipSimplifiedLayerNormalization": 3}
        return int(bool(nth_input(node, at[node.op_type]))) if node.op_type in at else 0

    @property
    def is_single(self) -> bool:
        return len(self.core) == 1 and not self.before and self.scaling is None and self.shifting is None

    def steps(self, *, with_bias: bool) -> list[Step]:
        behind = [self.scaling, self.shifting if with_bias else None]
        return [*self.before, *self.core, *(step for step in behind if step is not None)]

    def bearers(self) -> list[Step]:
        """The step with the scale, or with the bias that an activation adds first."""
        if self.is_single:
            bearing = self.core
        elif self.kind in _NORMS:
            bearing = [*filter(None, [self.scaling]), *(step for step in self.core if step.type in ("Mul", *KINDS))]
        else:
            bearing = self.before
        return [step for step in bearing if step.weight][:1]


def find_composites(graph: Graph) -> list[Composite]:
    """All of them, those with additions before them as well."""
    found = [*_Finder(graph).written_out(), *_single(graph)]
    return [*found, *(longer for composite in found for longer in _with_sums(graph, composite))]


def single_kind(step: Step) -> str:
    if step.type in _SLOPES:
        return f"swish {attribute(step.node, 'alpha', _SLOPES[step.type]):.4g}"
    if step.type == "HardSigmoid":
        slope = attribute(step.node, "alpha", 0.2)
        return "hard-sigmoid" if abs(slope - 1 / 6) < 1e-2 else f"hard-sigmoid {slope:.4g}"
    return KINDS.get(step.type, "")


def _single(graph: Graph) -> Iterator[Composite]:
    for step in graph.steps:
        kind = single_kind(step)
        if kind and step.outputs and step.reads:
            positions = {"SkipLayerNormalization": 3}
            at = positions.get(step.type, 2)
            has_bias = kind in ("norm", "group norm") and len(step.node.input) > at and bool(step.node.input[at])
            yield Composite(kind, step.reads, [step], has_bias=has_bias)


def _with_sums(graph: Graph, composite: Composite) -> Iterator[Composite]:
    """The same with the addition before it, and with the bias that is added before that."""
    if len(composite.entries) != 1:
        return
    producer = graph.producer.get(composite.entries[0])
    if producer is None or producer.type != "Add":
        return
    if composite.kind == "gelu" and len(producer.reads) == 1 and producer.weight:
        yield replace(composite, entries=producer.reads, before=[producer])
    if composite.kind not in _TAKES_A_SUM or len(set(producer.reads)) != 2:
        return
    yield replace(composite, entries=producer.reads, before=[producer])
    for at, root in enumerate(producer.reads):
        inner = graph.producer.get(root)
        is_bias = inner is not None and inner.type == "Add" and len(inner.reads) == 1 and bool(inner.weight)
        if inner is not None and is_bias and len(graph.consumers[root]) == 1:
            others = [inner.reads[0] if i == at else other for i, other in enumerate(producer.reads)]
            yield replace(composite, entries=others, before=[inner, producer])


class _Finder:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._calculator = Calculator(graph)
        self._taken: set[int] = set()
        self._known: dict[Hashable, str] = {}
        """What pieces compute, by how they are made: layers repeat."""

    def written_out(self) -> Iterator[Composite]:
        for step in self._graph.steps:
            if step.index in self._taken:
                continue
            found = self._group_norm(step) if step.type == "InstanceNormalization" else None
            if found is None and step.type in _ENDS:
                found = self._recognized(step)
            if found is not None:
                self._extend(found)
                self._taken.update(s.index for s in found.steps(with_bias=True))
                yield found

    def _recognized(self, end: Step) -> Composite | None:
        """The largest part that ends here and is one function of one tensor."""
        best: Composite | None = None
        steps: dict[int, Step] = {}
        waiting = {end.outputs[0]}
        seen = 0
        while len(steps) < _MOST_STEPS:
            step = self._latest(waiting)
            if step is None:
                break
            steps[step.index] = step
            waiting -= set(step.outputs)
            waiting |= set(step.reads)
            if len(waiting) == 1:
                inside = [steps[index] for index in sorted(steps)]
                is_news = best is None or any(s.type in REDUCTIONS for s in inside[: len(inside) - seen])
                kind = self._kind(next(iter(waiting)), inside) if is_news else ""
                if kind:
                    has_bias = kind == "norm" and any(s.type in ("Add", "Sub") and s.weight for s in inside)
                    best, seen = Composite(kind, list(waiting), inside, has_bias=has_bias), len(inside)
        return best

    def _latest(self, roots: set[str]) -> Step | None:
        """The last of the steps that make these, if all of them can be computed."""
        made = [self._graph.producer[root] for root in roots if root in self._graph.producer]
        if not made:
            return None
        last = max(made, key=lambda step: step.index)
        is_free = last.index not in self._taken and last.type in COMPUTABLE and len(last.outputs) == 1
        return last if is_free and last.reads else None

    def _kind(self, entry: str, steps: list[Step]) -> str:
        cuts = any(self._calculator.cuts(step.outputs[0]) for step in steps[:-1])
        is_telling = cuts or any(step.type in TELLING for step in steps)
        if len(steps) < 2 or not is_telling or not self._is_closed(steps):
            return ""
        made = self._calculator.made_of(entry, steps)
        if made not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[made] = self._tried(entry, steps, cuts=cuts)
        return self._known[made]

    def _tried(self, entry: str, steps: list[Step], *, cuts: bool) -> str:
        x = self._calculator.example(entry, steps)
        y = self._calculator.compute(steps, {entry: x}) if x is not None else None
        kind = recognize(x, y) if x is not None and y is not None else ""
        if x is None or kind or not cuts or any(step.type in REDUCTIONS for step in steps):
            return kind
        y = self._calculator.compute(steps, {entry: x}, cut=True)
        known = np.isfinite(y) if y is not None and y.shape == x.shape else None
        return recognize(x[known], y[known]) if y is not None and known is not None and known.any() else ""

    def _is_closed(self, steps: list[Step]) -> bool:
        """Nobody outside reads what is made inside, but for the result."""
        inside = {step.index for step in steps}
        readers = (s for step in steps[:-1] for s in self._graph.consumers[step.outputs[0]])
        is_result = any(step.outputs[0] in self._graph.outputs for step in steps[:-1])
        return not is_result and all(reader.index in inside for reader in readers)

    def _group_norm(self, norm: Step) -> Composite | None:
        """Reshaped so that a group is a channel, and back."""
        before = self._graph.producer.get(norm.reads[0]) if norm.reads else None
        after = self._graph.consumers[norm.outputs[0]]
        if before is None or before.type != "Reshape" or len(after) != 1 or after[0].type != "Reshape":
            return None
        entry = before.reads[0]
        shapes = [self._graph.producer[root] for root in after[0].reads[1:] if root in self._graph.producer]
        if any(step.type != "Shape" or step.reads != [entry] for step in shapes):
            return None
        inside = sorted([*shapes, before, norm, after[0]], key=lambda step: step.index)
        return Composite("group norm", [entry], inside)

    def _extend(self, found: Composite) -> None:
        """By what multiplies or adds constants behind a norm."""
        if found.kind not in _NORMS:
            return
        step = self._only_reader(found.core[-1])
        if step is not None and step.type == "Mul":
            found.scaling = step
            step = self._only_reader(step)
        if step is not None and step.type in ("Add", "Sub") and found.kind != "rms norm":
            found.shifting, found.has_bias = step, True

    def _only_reader(self, step: Step) -> Step | None:
        """That computes with it and a constant."""
        readers = self._graph.consumers[step.outputs[0]]
        if len(readers) != 1 or step.outputs[0] in self._graph.outputs or readers[0].index in self._taken:
            return None
        return readers[0] if len(readers[0].reads) == 1 and len(readers[0].constants) == 1 else None
