"""Which call of the quantized model does what a call of the reference does."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor, nn

from inc_tb.frameworks.ops import Quantization
from inc_tb.frameworks.torch.kinds import FOLDABLE
from inc_tb.frameworks.torch.steps import Step, Trace
from inc_tb.frameworks.torch.weights import norm_factor, weight_of

_NORMS = {"BatchNorm1d", "BatchNorm2d", "BatchNorm3d"}


@dataclass
class Match:
    step: Step
    twin: Step
    folded: list[Step] = field(default_factory=list)
    """Steps of the reference behind it that the twin does, too."""

    @property
    def end(self) -> Step:
        return self.folded[-1] if self.folded else self.step


class Weights(NamedTuple):
    """The main weights in both models, as real numbers."""

    reference: Tensor
    """With batch norms folded in where the twin has them so."""
    quantized: Tensor
    quantization: Quantization | None


class Matching:
    """Modules meet by their path; functions by where they are called, or by what they read."""

    def __init__(self, reference: Trace, quantized: Trace, model: nn.Module) -> None:
        self.reference, self.quantized = reference, quantized
        self._modules = dict(model.named_modules(remove_duplicate=False))
        self.matches: dict[int, Match] = {}
        self.folded_into: dict[int, int] = {}
        self._consumers: dict[int, list[int]] = defaultdict(list)
        for step in reference.steps:
            for source in step.sources:
                self._consumers[source].append(step.index)
        self._taken: set[int] = set()
        self._match_names()
        for step in reference.steps:
            if step.index not in self.matches and not self._match_by_sources(step):
                self._fold(step)

    def _match_names(self) -> None:
        theirs = self.quantized.by_name()
        counts = [Counter(_place(step) for step in trace.steps) for trace in (self.reference, self.quantized)]
        for step in self.reference.steps:
            twin = theirs.get(step.name)
            # Where some of its calls are gone, the second here may be the first there.
            is_counted = counts[0][_place(step)] == counts[1][_place(step)]
            if twin is not None and is_counted and _are_alike(step, twin):
                self._add(step, twin)

    def _match_by_sources(self, step: Step) -> bool:
        """A function of a graph that forgot its module: the first of its kind that reads the same."""
        wanted = self._roots(step)
        for twin in self.quantized.steps:
            if twin.index in self._taken or not self._may_be(step, twin):
                continue
            if self._twin_roots(twin) == wanted and set(twin.reads) == set(step.reads):
                self._add(step, twin)
                return True
        return False

    def _may_be(self, step: Step, twin: Step) -> bool:
        """A module may be there under several paths, which a quantizer makes several modules of."""
        if step.module is not None or twin.module is not None:
            return step.path == twin.path or self._modules.get(twin.path) is step.module
        return _are_alike(step, twin)

    def _add(self, step: Step, twin: Step) -> None:
        self.matches[step.index] = Match(step, twin)
        self._taken.add(twin.index)

    def _roots(self, step: Step) -> set[int]:
        return {self.root(source) for source in step.sources}

    def root(self, index: int) -> int:
        """The step that this one was made part of, or itself."""
        while index in self.folded_into:
            index = self.folded_into[index]
        return index

    def _twin_roots(self, twin: Step) -> set[int]:
        own = {match.twin.index: index for index, match in self.matches.items()}
        return {own.get(source, -1) for source in twin.sources}

    def _fold(self, step: Step) -> None:
        """What is gone in the quantized model behind a call that is there was made part of it."""
        if len(step.sources) != 1 or step.kind not in FOLDABLE:
            return
        source = self.root(step.sources[0])
        match = self.matches.get(source)
        if match is None or self._consumers[step.sources[0]] != [step.index] or match.end.index != step.sources[0]:
            return
        is_norm = step.kind in _NORMS or step.kind == "batch_norm"
        if not is_norm and not match.twin.with_relu and not _is_gone(step, self.quantized):
            return
        match.folded.append(step)
        self.folded_into[step.index] = source

    def weights(self, match: Match) -> Weights | None:
        mine, theirs = weight_of(match.step), weight_of(match.twin)
        if mine is None or theirs is None:
            return None
        own, weight = mine.values(), theirs.values()
        norm = next((f for f in match.folded if f.kind in _NORMS and f.path in self._modules), None)
        if norm is not None:
            own = own * norm_factor(self._modules[norm.path], own.ndim, norm.eps)
        if own.shape != weight.shape:
            own = own.t() if own.ndim == 2 and own.t().shape == weight.shape else own
        return Weights(own, weight, theirs.quantization) if own.shape == weight.shape else None


def _place(step: Step) -> tuple[str, str]:
    """What is counted in names: the calls of one module, or of one function in a module."""
    return step.path, step.kind if step.is_function else ""


def _are_alike(step: Step, twin: Step) -> bool:
    """Modules with the same path are, whatever replaced them; functions only if they are the same."""
    if step.name == twin.name and not (step.is_function and twin.is_function):
        return True
    return step.kind == twin.kind or step.kind.lower() == twin.kind.lower()


def _is_gone(step: Step, quantized: Trace) -> bool:
    return all(twin.name != step.name for twin in quantized.steps)
