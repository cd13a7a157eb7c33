"""Which tensors of a reference are which of its quantized model: what is found, and what is said about it.

Matchers walk the reference in order and follow the computation in the quantized graph. How they tell one step from
another is the business of each framework; what they keep is the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from inc_tb.errors import MismatchError
from inc_tb.frameworks.arrays import alike
from inc_tb.frameworks.crowd import CROWD, Crowd
from inc_tb.frameworks.graph import AnyStep, Graph
from inc_tb.frameworks.kernels import twins
from inc_tb.frameworks.ops import Array, Pair

SAME_WEIGHTS = 0.5
EQUAL_WEIGHTS = 0.9
"""How alike the weights of an op and of its twin are at least, where the weights alone decide."""
_CLOSE = 1e-3
AnyGraph = TypeVar("AnyGraph", bound=Graph[Any, Any])


@dataclass
class Match(Generic[AnyStep]):
    step: AnyStep
    """Of the reference."""
    twin: AnyStep
    """Of the quantized model."""
    end: AnyStep
    """The reference step behind which both are compared: `step`, or what the twin has folded in."""
    root: str
    """Of the quantized tensor at that point."""
    folded: list[AnyStep] = field(default_factory=list)
    affine: list[AnyStep] = field(default_factory=list)
    """Those of the folded steps that were found to be in the twin's weights and bias."""
    is_joined: bool = False
    """The step and what is folded into it are one function, which the quantized model writes in other steps."""
    bearers: list[AnyStep] = field(default_factory=list)
    """Which of them have the weights of the twin, where they are joined: side by side if there are several."""
    inside: list[AnyStep] = field(default_factory=list)
    """Steps of the quantized model that belong to the twin."""

    @property
    def weighted(self) -> list[AnyStep]:
        """The steps of the reference whose weights are those of the twin."""
        return self.bearers if self.is_joined else [self.step]

    @property
    def reads(self) -> list[str]:
        """Roots in the reference that come from outside."""
        steps = sorted([self.step, *self.folded], key=lambda step: step.index)
        made = {out for step in steps for out in step.outputs}
        return list(dict.fromkeys(root for step in steps for root in step.reads if root not in made))


class Weights(NamedTuple):
    """The main weights of both, in the layout of the reference and with what is folded into them."""

    reference: Array
    quantized: Array
    axis: int
    """Along which the outputs lie."""


class Matched(ABC, Generic[AnyGraph, AnyStep]):
    """`matches` by the index of the reference's step; `missing` has the others with the reason."""

    def __init__(self, reference: AnyGraph, quantized: AnyGraph) -> None:
        self.reference = reference
        self.quantized = quantized
        self.input_names: dict[str, str] = {}
        """Input of the reference -> input of the quantized model."""
        self.points: dict[str, str] = {}
        """Root in the reference -> root in the quantized model, wherever both hold the same quantity."""
        self.matches: dict[int, Match[AnyStep]] = {}
        self.missing: dict[int, str] = {}
        self.folded_into: dict[int, Match[AnyStep]] = {}
        self._ends: dict[str, Match[AnyStep]] = {}
        self._used: set[int] = set()
        self._crowds: dict[str, Crowd[AnyStep]] = {}

    @abstractmethod
    def weights(self, match: Match[AnyStep]) -> Weights | None:
        """None where there is nothing to compare."""

    def weight_pairs(self) -> Iterator[Pair]:
        for match in self.matches.values():
            found = self.weights(match)
            if found is not None and found.reference.size:
                axis = found.axis if found.reference.ndim > 1 else None
                name, tensor = match.step.name, match.weighted[0].weight
                yield Pair(name, tensor, "weight", found.reference, found.quantized, axis)

    def twins(self) -> dict[str, list[str]]:
        """Op of the quantized model -> ops of the reference that it stands for."""
        parts = ((match, self.reference.steps[index]) for index, match in sorted(self.folded_into.items()))
        found = [*((match, match.step) for match in self.matches.values()), *parts]
        sources = {step.name: self.quantized.sources(step) for step in self.quantized.steps}
        return twins(((match.twin.name, [step.name]) for match, step in found), sources)

    # while matching

    def _pair_inputs(self, names: dict[str, str]) -> None:
        self.input_names = names
        for mine, theirs in names.items():
            self.points[self.reference.input_roots[mine]] = self.quantized.input_roots[theirs]

    def _record(self, match: Match[AnyStep]) -> None:
        self.matches[match.step.index] = match
        self._set_point(match)

    def _extend(self, match: Match[AnyStep], step: AnyStep, root: str = "") -> None:
        """Moves the point of comparison behind this step; in the quantized model only where there is a `root`."""
        before = match.end.outputs[0]
        del self.points[before], self._ends[before]
        match.end, match.root = step, root or match.root
        match.folded.append(step)
        self.folded_into[step.index] = match
        self._set_point(match)

    def _record_joined(self, match: Match[AnyStep]) -> None:
        """One that stands for several steps from the start."""
        self._record(match)
        for step in match.folded:
            self.folded_into[step.index] = match
            self.missing.pop(step.index, None)

    def _set_point(self, match: Match[AnyStep]) -> None:
        self.points[match.end.outputs[0]] = match.root
        self._ends[match.end.outputs[0]] = match

    def _readers(self, roots: Iterable[str | None], names: Iterable[str] = ()) -> list[AnyStep]:
        """Steps of the quantized model that read any of these; of a crowd those with such names, and the next ones."""
        found: dict[int, AnyStep] = {}
        for root in roots:
            readers = self.quantized.consumers.get(root, ()) if root is not None else ()
            if root is not None and len(readers) > CROWD:
                crowd = self._crowd(root)
                readers = [*crowd.named(names), *crowd.next_free(self._used)]
            found.update({step.index: step for step in readers})
        return list(found.values())

    def _named_in_crowds(self, roots: Iterable[str | None], names: Sequence[str]) -> list[AnyStep]:
        crowded = (root for root in roots if root is not None and len(self.quantized.consumers.get(root, ())) > CROWD)
        return [step for root in crowded for step in self._crowd(root).named(names)]

    def _crowd(self, root: str) -> Crowd[AnyStep]:
        if root not in self._crowds:
            self._crowds[root] = Crowd(self.quantized.consumers[root])
        return self._crowds[root]

    def _read_alike(self, step: AnyStep, twin: AnyStep) -> int:
        """How many of the operations that read the results are of the same kinds."""
        mine = Counter(s.type for s in self.reference.consumers[step.outputs[0]])
        theirs = Counter(s.type for out in twin.outputs for s in self.quantized.consumers.get(out, ()))
        return (theirs & mine).total()

    # what is said

    def _other_inputs(self, mine: Sequence[str], theirs: Sequence[str]) -> MismatchError:
        return MismatchError(
            f"{self.quantized.name} has the inputs {list(theirs)}, {self.reference.name} has {list(mine)}; expected a "
            "quantized version of the same network. Check that the two models belong together."
        )

    def _why_missing(self, step: AnyStep) -> str:
        if step.reads and not any(root in self.points for root in step.reads):
            return "its inputs have no counterpart in the quantized model (fused there into another operation)"
        return f"the quantized model has no {step.kind} at this place (fused or removed there)"

    def _check_same_network(self, bearing: Sequence[AnyStep]) -> None:
        """`bearing` are the steps with weights that are told from others."""
        wholes = {s.index: match for match in self.matches.values() for s in match.bearers}
        # Nothing is known of weights that are in an op which has them in another form.
        bearing = [s for s in bearing if s.index in wholes or not self._is_joined_part(s)]
        found = (wholes.get(s.index) or self.matches.get(s.index) for s in bearing)
        same = sum(1 for match in found if match is not None and self._resembles(match))
        if same * 2 < len(bearing) or not self.matches:
            raise MismatchError(
                f"{self.quantized.name} is not a quantized version of {self.reference.name}: only {same} of "
                f"{len(bearing) or len(self.reference.steps)} layers with weights have the same place and similar "
                "weights. Check that both models belong together."
            )

    def _is_joined_part(self, step: AnyStep) -> bool:
        whole = self.folded_into.get(step.index)
        return whole is not None and whole.is_joined

    def _resembles(self, match: Match[AnyStep]) -> bool:
        found = self.weights(match)
        if found is None:
            return self._may_resemble(match)
        return alike(found.reference, found.quantized) > SAME_WEIGHTS

    def _may_resemble(self, match: Match[AnyStep]) -> bool:
        """Where weights cannot be compared."""
        return True


def most_alike(candidates: list[AnyStep], likeness: Callable[[AnyStep], float]) -> list[AnyStep]:
    """Those that nothing tells from the best."""
    if len(candidates) < 2:
        return candidates
    scores = [likeness(candidate) for candidate in candidates]
    return [c for c, score in zip(candidates, scores, strict=True) if score > max(scores) - _CLOSE]


def reads_the_same(wanted: Sequence[str | None], theirs: Sequence[str], *, in_any_order: bool) -> bool:
    """None in `wanted` is a tensor of the reference that has no counterpart, so nothing is known about it."""
    if in_any_order:
        return not Counter(w for w in wanted if w is not None) - Counter(theirs)
    return all(w in (None, t) for w, t in zip(wanted, theirs, strict=True))
