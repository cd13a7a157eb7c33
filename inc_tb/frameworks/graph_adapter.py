"""What adapters have in common that lower both of their models to graphs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Generic

from inc_tb.frameworks.channels import channel_axes
from inc_tb.frameworks.describe import described, without
from inc_tb.frameworks.edges import first_readers, units
from inc_tb.frameworks.graph import AnyStep
from inc_tb.frameworks.match import Match, Matched
from inc_tb.frameworks.ops import Op, Pair, Quantization
from inc_tb.frameworks.protocols import Adapter

_NO_POINT = "its output is not a value of its own when quantized"


class GraphAdapter(Adapter, Generic[AnyStep]):
    """The ops of the reference, as its graph and its matches tell; how both models run is left to the framework."""

    dynamic: Quantization
    """Of what a step gives that rounds to a range which it finds when it runs."""

    def __init__(self, matching: Matched[Any, AnyStep]) -> None:
        self.matching = matching
        self._points = {root: other for root, other in matching.points.items() if self._is_real(root)}
        self._compared = self._choose_compared()
        self._ops = self._describe_ops()
        self._readers = self._find_readers()
        made = {out: step for step in matching.reference.steps for out in step.outputs}
        reads = {out: step.reads for out, step in made.items()}
        self._axes = channel_axes(reads, lambda out, before: self._channel_axis(made[out], before))
        self._misfits: dict[str, str] = {}
        """Tensors of the reference that turned out to be others in the quantized model, with the reason."""

    @abstractmethod
    def _is_real(self, root: str) -> bool:
        """Whether a tensor of the reference holds real numbers."""

    @abstractmethod
    def _joins(self, step: AnyStep) -> bool:
        """Whether a step changes precision with the one before it, where nothing is rounded in between."""

    @abstractmethod
    def _channel_axis(self, step: AnyStep, before: int) -> int:
        """Of what a step writes; `before` is that of what it reads."""

    @abstractmethod
    def _block(self, step: AnyStep) -> str: ...

    @abstractmethod
    def _module(self, step: AnyStep) -> str: ...

    @abstractmethod
    def _params(self, step: AnyStep) -> int:
        """Of its weight."""

    def _is_blind(self, match: Match[AnyStep]) -> bool:
        """Whether something that reaches an op is rounded and not compared, so that its inputs are not known."""
        return False

    def _is_rounded(self, match: Match[AnyStep]) -> bool:
        """Whether anything is rounded between what reaches an op and what it gives."""
        return True

    def ops(self) -> Sequence[Op]:
        return without(self._ops, {self._compared[r]: why for r, why in self._misfits.items() if r in self._compared})

    def weights(self) -> Iterator[Pair]:
        known = {op.name for op in self._ops}
        return (pair for pair in self.matching.weight_pairs() if pair.op in known)

    def _choose_compared(self) -> dict[str, str]:
        """Tensors that can be compared, real numbers with a point of their own, and the op whose results they are."""
        made, found = self.matching.quantized.producer, self.matching.matches.values()
        return {
            match.end.outputs[0]: match.step.name
            for match in found
            if match.end.outputs[0] in self._points and match.root in made
        }

    def _find_readers(self) -> dict[str, str]:
        """Inputs of the model that are quantized with a fixed scale, and the first op that reads each."""
        roots, tensors = self.matching.reference.input_roots, self.matching.quantized.tensors
        others = {root: tensors[self._points[root]].quantization for root in roots.values() if root in self._points}
        fixed = {root for root, found in others.items() if found is not None and found.scale is not None}
        known = {op.name for op in self._ops}
        reads = {step.name: step.reads for step in self.matching.reference.steps if step.name in known}
        first = first_readers(fixed, reads)
        return {name: first[root] for name, root in roots.items() if root in first}

    def _describe_ops(self) -> list[Op]:
        graph = self.matching.reference
        steps = {step.name: step for step in graph.steps if any(map(self._is_real, step.outputs))}
        compared = {name: root for root, name in self._compared.items()}
        parts = ((graph.steps[i].name, match.step.name) for i, match in self.matching.folded_into.items())
        wholes = {name: whole for name, whole in parts if whole in compared}
        sources = {name: [n for n in graph.sources(step) if n in steps] for name, step in steps.items()}
        unit = units(sources, lambda name: name in wholes or self._follows(steps[name]))
        ops = []
        for index, (name, step) in enumerate(steps.items()):
            match = self.matching.matches[step.index] if name in compared else None
            weighted = [s for s in match.weighted if s.weight] if match is not None else []
            ops.append(
                Op(
                    name, step.kind, index, self._block(step), self._module(step), unit[name],
                    compared.get(name, step.outputs[0]), tuple(sources[name]), (),
                    match.twin.weight_quantization if match is not None else None,
                    self._activation(match) if match is not None else None,
                    sum(map(self._params, weighted)),
                    joined=match.twin.kind if match is not None and match.is_joined else "",
                    is_blind=match is not None and self._is_blind(match),
                    is_rounded=match is None or self._is_rounded(match),
                )
            )  # fmt: skip
        reasons = self.matching.missing
        missing = {name: reasons.get(step.index, _NO_POINT) for name, step in steps.items() if name not in compared}
        return described(ops, wholes, missing)

    def _follows(self, step: AnyStep) -> bool:
        """Whether nothing is quantized between a step and the one before it: a convolution, its bias, its Relu."""
        if len(step.reads) != 1 or not self._joins(step):
            return False
        twin = self.matching.quantized.tensors.get(self._points.get(step.reads[0], ""))
        return twin is not None and twin.quantization is None

    def _activation(self, match: Match[AnyStep]) -> Quantization | None:
        found: Quantization | None = self.matching.quantized.tensors[match.root].quantization
        return self.dynamic if found is None and match.twin.is_dynamic else found
