"""What a quantized model has folded into an op: activations, paddings, transposes, affine ops behind it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from inc_tb.frameworks.match import Match
from inc_tb.frameworks.tensorflow.graph import Step
from inc_tb.frameworks.tensorflow.kinds import ACTIVATIONS, AFFINE
from inc_tb.frameworks.tensorflow.likeness import Likeness

HELPERS = {"Requantize", "Reshape", "Pad", "Transpose"}
"""What converters put between two ops."""
_OTHER_LAYOUT = "the quantized model computes it in another layout (fused there with what follows)"


class Folding(Likeness):
    """Matches that grow by the steps of the reference that their twins have taken in."""

    def _restore_order(self, match: Match[Step]) -> None:
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

    def _take_padding(self, match: Match[Step]) -> None:
        """Converters make zeros around the input the convolution's own business."""
        pad = self.reference.producer.get(match.step.reads[0]) if match.step.reads else None
        if pad is not None and pad.type == "Pad" and pad.index in self.missing and pad.outputs[0] not in self.points:
            is_alone = self._only_reader(pad.outputs[0]) is match.step
            if is_alone and match.twin.reads and self.points.get(pad.reads[0]) == match.twin.reads[0]:
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

    def _behind_transpose(self, match: Match[Step]) -> str:
        """Converters write an Einsum as a product and what brings its axes in order."""
        if any(s.type == "Transpose" for s in self.reference.consumers[match.step.outputs[0]]):
            return match.root
        passed: list[Step] = []
        value = match.root
        while len(readers := self.quantized.consumers.get(value, [])) == 1 and readers[0].type in HELPERS - {"Pad"}:
            passed.append(readers[0])
            value = readers[0].outputs[0]
        while passed and passed[-1].type != "Transpose":
            passed.pop()
        self._used.update(step.index for step in passed)
        return passed[-1].outputs[0] if passed else match.root

    def _take_activation(self, match: Match[Step]) -> None:
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

    def _fold(self, step: Step) -> bool:
        """Where the operation is part of the one before it in the quantized model, compare behind it instead."""
        for value in step.reads:
            match = self._ends.get(value)
            if match is None or len(self.reference.consumers[value]) != 1 or value in self.reference.outputs:
                continue
            is_there = any(
                c.index not in self._used and c.type == step.type for c in self.quantized.consumers.get(match.root, ())
            )
            if not is_there and self._can_hold(match, step, value):
                self._extend(match, step)
                return True
        return False

    def _can_hold(self, match: Match[Step], step: Step, value: str) -> bool:
        if len(step.reads) == 1 and step.type in ACTIVATIONS:
            return self._is_its_activation(match, step)
        others = [self.points.get(v) for v in step.reads if v != value]
        if step.type == "Add" and len(others) == 1:
            return others[0] is not None and others[0] in match.twin.reads
        is_affine = step.type in AFFINE and len(step.reads) == 1 and bool(step.constants)
        return is_affine and self._is_named_after(match.twin, step)

    def _hand_on(self, step: Step) -> bool:
        """What the quantized model does without."""
        if len(step.reads) != 1 or step.reads[0] not in self.points:
            return False
        if self._keeps_order(step):
            reason = "it only changes the shape, which the quantized model does without"
        elif self._is_neutral(step):
            reason = "it changes nothing, and the quantized model does without"
        else:
            return False
        self.points[step.outputs[0]] = self.points[step.reads[0]]
        self.missing[step.index] = reason
        return True

    def _before_helpers(self, root: str, wanted: Iterable[str | None]) -> str:
        while root not in wanted and (step := self.quantized.producer.get(root)) is not None:
            if step.type not in HELPERS or step.index in self._used or not step.reads:
                break
            root = step.reads[0]
        return root

    def _take_in(self, match: Match[Step]) -> None:
        """The ops that only work for this one and have no counterpart are part of it."""
        waiting = [match.step]
        while waiting:
            for root in waiting.pop().reads:
                step = self.reference.producer.get(root)
                if step is None or step.index not in self.missing or root in self.points:
                    continue
                readers = (s.index for out in step.outputs for s in self.reference.consumers[out])
                if all(i == match.step.index or self.folded_into.get(i) is match for i in readers):
                    del self.missing[step.index]
                    self.folded_into[step.index] = match
                    waiting.append(step)

    def _shared(self, step: Step) -> Step | None:
        """Converters compute once what the reference computes twice, with the same weights from the same values."""
        wanted = [self.points.get(root) for root in step.reads]
        if not wanted or None in wanted:
            return None
        for match in self._sharing(wanted):
            other = match.step
            is_same = other.type == step.type and [self.points.get(v) for v in other.reads] == wanted
            if is_same and other.settings == step.settings and len(other.constants) == len(step.constants):
                pairs = zip(step.constants, other.constants, strict=True)
                if all(np.array_equal(self.reference.constant(a), self.reference.constant(b)) for a, b in pairs):
                    return match.twin
        return None

    def _sharing(self, wanted: Sequence[str | None]) -> list[Match[Step]]:
        """Matches of ops that read the same value."""
        readers = {s.index for root, q in self.points.items() if q == wanted[0] for s in self.reference.consumers[root]}
        return [self.matches[i] for i in sorted(readers) if i in self.matches]
