"""Both models through the same batch at once, call by call, and the quantized one again with the reference's values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from inc_tb.frameworks.ops import Batch
from inc_tb.frameworks.torch.arguments import feeds, said
from inc_tb.frameworks.torch.grids import is_fake_quantizer
from inc_tb.frameworks.torch.lockstep import Paused, Stop
from inc_tb.frameworks.torch.match import Match, Matching
from inc_tb.frameworks.torch.runners import Runner
from inc_tb.frameworks.torch.state import undisturbed
from inc_tb.frameworks.torch.steps import Call, Step, Visit
from inc_tb.frameworks.torch.values import like, plain, real_tensors, with_tensors

WHAT = "the reference", "the quantized model"


class Compared(NamedTuple):
    """What a matched call makes."""

    match: Match
    reference: Tensor
    quantized: Tensor
    isolated: Tensor
    """In the quantized model, of the reference's values."""


class SideBySide:
    """Iterated once; arrays of other shapes in the quantized model are left out, and `misfit` is told."""

    def __init__(
        self,
        runners: tuple[Runner, Runner],
        matching: Matching,
        batch: Batch,
        *,
        misfit: Callable[[Match, tuple[int, ...], tuple[int, ...]], None],
        unseen: Callable[[Call], None] | None = None,
        with_grad: bool = False,
    ) -> None:
        """`unseen` is told of calls of the reference that are not matched; `with_grad` its values can be derived by."""
        self._runners = runners
        self._batch = batch
        self._misfit, self._unseen = misfit, unseen
        self._with_grad = with_grad
        self._ends = {match.end.name: match.end for match in matching.matches.values()}
        self._matches = {match.twin.name: match for match in matching.matches.values()}
        self._twins = {name: match.twin for name, match in self._matches.items()}
        self.result: Any = None
        """What the reference returns, in the end."""

    def __iter__(self) -> Iterator[Compared]:
        with undisturbed(*(runner.model for runner in self._runners)):
            runs = [self._reference(), self._quantized(), self._quantized()]
            try:
                yield from self._paired(*runs)
                self.result = runs[0].result
            finally:
                for run in runs:
                    run.close()

    def _reference(self) -> Paused:
        if self._with_grad:
            return self._paused(0, lambda stop: _stopping_with_grad(stop, self._ends), with_grad=True)
        return self._paused(0, lambda stop: _stopping(stop, self._ends, self._unseen))

    def _quantized(self) -> Paused:
        return self._paused(1, lambda stop: _stopping(stop, self._twins))

    def _paused(self, which: int, visit: Callable[[Stop], Visit], with_grad: bool = False) -> Paused:
        runner, batch = self._runners[which], self._batch
        model = runner.model

        def run(stop: Stop) -> Any:
            return said(WHAT[which], model, batch, lambda: runner.run(feeds(model, batch), visit(stop)))

        return Paused(run, with_grad)

    def _paired(self, reference: Paused, quantized: Paused, isolated: Paused) -> Iterator[Compared]:
        held: dict[str, list[Tensor]] = {}
        told: list[Tensor] | None = None
        while True:
            real, alone = quantized.advance(), isolated.advance(told)
            if real is None or alone is None or real[0] != alone[0]:
                break
            match = self._matches[real[0]]
            while match.end.name not in held and (made := reference.advance()) is not None:
                held[made[0]] = made[1]
            made_here, told = held.pop(match.end.name, None), None
            if made_here is None:
                continue
            mine = made_here[0]
            if mine.numel() != real[1][0].numel():
                self._misfit(match, tuple(mine.shape), tuple(real[1][0].shape))
                continue
            told = [*_as_fed(match.twin, made_here, alone[1])]
            theirs, by_itself = (_as_consumed(match.twin, v[0]).reshape(mine.shape) for v in (real[1], alone[1]))
            yield Compared(match, mine, theirs, by_itself)
            del real, alone, made_here, mine, theirs, by_itself  # not held while the next values are made
        while reference.advance() is not None:
            pass


def _stopping(stop: Stop, steps: Mapping[str, Step], unseen: Callable[[Call], None] | None = None) -> Visit:
    """Stops at these calls; `unseen` is told about all others."""

    def visit(call: Call) -> Any:
        step, tensors = steps.get(call.name), real_tensors(call.value)
        if step is None and unseen is not None:
            unseen(call)
        if step is None or not tensors:
            return call.value
        told = stop((call.name, [_own(tensor, step) for tensor in tensors]))
        return call.value if told is None else with_tensors(call.value, told)

    return visit


def _stopping_with_grad(stop: Stop, steps: Mapping[str, Step]) -> Visit:
    """The model goes on with a copy, so that gradients reach what was handed over, whatever happens to the copy."""

    def visit(call: Call) -> Any:
        tensors = real_tensors(call.value)
        if call.name not in steps or not tensors:
            return call.value
        own = tensors[0] if tensors[0].requires_grad else tensors[0].detach().requires_grad_()
        stop((call.name, [own, *tensors[1:]]))
        return with_tensors(call.value, [own.clone(), *tensors[1:]])

    return visit


def _own(tensor: Tensor, step: Step) -> Tensor:
    """What a later call would change in place is copied."""
    return tensor.clone() if step.is_mutated else tensor


def _as_fed(step: Step, mine: Sequence[Tensor], theirs: Sequence[Tensor]) -> Iterator[Tensor]:
    """The reference's values in the shapes and types that the quantized model goes on with."""
    for i, wanted in enumerate(theirs):
        if i < len(mine) and mine[i].numel() == wanted.numel():
            value = like(mine[i].reshape(wanted.shape), wanted)
            yield _own(_as_given(step, value) if i == 0 else value, step)
        else:
            yield wanted


def _as_given(step: Step, value: Tensor) -> Tensor:
    """A module in training rounds what it writes itself."""
    fake: Any = getattr(step.module, "activation_post_process", None)
    with torch.no_grad():
        return fake(value) if is_fake_quantizer(fake) else value


def _as_consumed(step: Step, value: Tensor) -> Tensor:
    with torch.no_grad():
        return plain(step.rounding(plain(value)) if step.rounding is not None else value)
