"""Two PyTorch models as ops and pairs of arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from inc_tb.errors import MismatchError, ModelError
from inc_tb.frameworks.apart import are_apart
from inc_tb.frameworks.channels import input_axis
from inc_tb.frameworks.describe import misfit, without
from inc_tb.frameworks.edges import first_readers
from inc_tb.frameworks.feeds import count_rows, split
from inc_tb.frameworks.kernels import twins
from inc_tb.frameworks.memory import Parts
from inc_tb.frameworks.ops import Batch, Input, Op, Pair
from inc_tb.frameworks.protocols import Adapter
from inc_tb.frameworks.registry import describe
from inc_tb.frameworks.torch.arguments import call, check, feeds, required_names, said
from inc_tb.frameworks.torch.axes import axes_of, weight_axis
from inc_tb.frameworks.torch.descriptions import describe_ops
from inc_tb.frameworks.torch.fx_calls import fx_calls, is_made_by_fx, statements
from inc_tb.frameworks.torch.match import Match, Matching
from inc_tb.frameworks.torch.opening import opened
from inc_tb.frameworks.torch.qat import without_fake_quantization
from inc_tb.frameworks.torch.runners import open_runner
from inc_tb.frameworks.torch.side_by_side import WHAT, SideBySide
from inc_tb.frameworks.torch.state import undisturbed
from inc_tb.frameworks.torch.steps import Call, Trace
from inc_tb.frameworks.torch.values import outputs_of, real_tensors, to_numpy

_SAMPLES = 8
_BYTES = 8
"""Of a number: once as torch's, once as what is compared."""


class TorchAdapter(Adapter):
    framework = "torch"

    def __init__(self, reference: Any, quantized: Any, *, memory_budget: int = 1 << 30) -> None:
        self.notes: list[str] = []
        self._budget = memory_budget
        self._samples = Parts(self.notes)
        self._is_apart: bool | None = None
        theirs = opened(quantized)
        self.models = without_fake_quantization(theirs) if reference is None else opened(reference), theirs
        self._inputs = read_inputs(self.models[0])
        self._ops: list[Op] | None = None
        self._misfits: dict[str, str] = {}

    def twins(self) -> dict[str, list[str]]:
        """Op of the quantized model -> ops of the reference that it stands for."""
        steps = self.traces[1].steps
        matches = self.matching.matches.values()
        return twins(
            ((m.twin.name, [step.name for step in (m.step, *m.folded)]) for m in matches),
            {step.name: [steps[source].name for source in step.sources] for step in steps},
        )

    def inputs(self) -> Sequence[Input]:
        return self._inputs

    def batch_size(self) -> int:
        return _SAMPLES

    def trace(self, batch: Batch) -> None:
        """Find out what the models do, on a few samples of the first batch."""
        if self._ops is not None:
            return
        reference = open_runner(self.models[0])
        quantized = open_runner(self.models[1], reference.leaves)
        self.runners = reference, quantized
        with undisturbed(*self.models), torch.no_grad():
            self.traces = self._traced(batch)
            self.matching = Matching(*self.traces, self.models[0])
            if not any(prod(m.end.shape) == prod(m.twin.shape) for m in self.matching.matches.values()):
                raise MismatchError(
                    f"{describe(self.models[1])} has no module or function in common with {describe(self.models[0])}, "
                    "or none of the same size. Give the fp32 model, and what it became by quantization."
                )
            self._inputs = [Input(name, array.dtype, (None,) * array.ndim) for name, array in batch.items()]
            self._axes = axes_of(self.traces[0])
            self._known = {step.name for step in self.traces[0].steps}
            self._unseen: set[str] = set()
            told_as = statements(fx_calls(self.models[0])) if is_made_by_fx(self.models[1]) else {}
            self._ops = describe_ops(self.matching, told_as)
            self._readers = self._find_readers()

    def _traced(self, batch: Batch) -> tuple[Trace, Trace]:
        """On a few samples where that works; a model may be made for a fixed number of them."""
        rows = {len(array) for array in batch.values() if np.ndim(array)}
        if len(rows) == 1 and max(rows) > _SAMPLES:
            few = next(split(batch, None, _SAMPLES))
            with contextlib.suppress(MismatchError):  # raised again, if the whole batch fails too
                return self._traced_with(few)
        return self._traced_with(batch)

    def _traced_with(self, batch: Batch) -> tuple[Trace, Trace]:
        self._traced_size = max((array.size for array in batch.values()), default=1)
        mine, theirs = self.runners
        return (
            said(WHAT[0], mine.model, batch, lambda: mine.trace(feeds(mine.model, batch))),
            said(WHAT[1], theirs.model, batch, lambda: theirs.trace(feeds(theirs.model, batch))),
        )

    def ops(self) -> Sequence[Op]:
        if self._ops is None:
            raise ModelError("the models were not traced yet; expected trace(batch) before ops().")
        return without(self._ops, self._misfits)

    def weights(self) -> Iterator[Pair]:
        with undisturbed(*self.models), torch.no_grad():
            for match in self.matching.matches.values():
                found = self.matching.weights(match)
                if found is not None and found.reference.numel():
                    yield Pair(
                        match.step.name, f"{match.step.name}.weight", "weight", to_numpy(found.reference),
                        to_numpy(found.quantized), weight_axis(match.step, found.quantization),
                    )  # fmt: skip

    def run(self, batch: Batch) -> Iterator[Pair]:
        self.trace(batch)
        check(batch, self._inputs)
        yield from self._samples.run(self._run_part, batch, self._fitting(batch), self._cut)

    def _cut(self, batch: Batch, most: int) -> Iterator[Batch]:
        """Whole, where a sample gives something else beside others: one of a sequence, or a model in training."""
        if count_rows(batch) > most and self._is_apart is None:
            is_training = any(model.training for model in self.models)
            self._is_apart = not is_training and are_apart(self._results, batch)
        return split(batch, None, most) if self._is_apart is not False else iter([batch])

    def _results(self, batch: Batch) -> list[Any]:
        model = self.models[0]
        with undisturbed(model), torch.no_grad():
            value = said(WHAT[0], model, batch, lambda: call(model, feeds(model, batch)))
            return [to_numpy(tensor) for tensor in outputs_of(value)]

    def _fitting(self, batch: Batch) -> int:
        """How many samples at once: one value is compared at a time, and no more is held than all values take."""
        if self.samples_at_once is not None:
            return self.samples_at_once
        size = max((array.size // count_rows(batch) for array in batch.values()), default=1)
        values = sum(prod(step.shape) for trace in self.traces for step in trace.steps)
        return int(max(1, self._budget * self._traced_size // max(1, _BYTES * values * size)))

    def _run_part(self, batch: Batch) -> Iterator[Pair]:
        yield from self._input_pairs(batch)
        for match, mine, theirs, alone in self.side_by_side(batch):
            name, axis = match.step.name, self._axes[match.end.index] if mine.ndim > 1 else None
            reference = to_numpy(mine)
            yield Pair(name, match.end.name, "output", reference, to_numpy(theirs), axis)
            yield Pair(name, match.end.name, "isolated", reference, to_numpy(alone), axis)
            del mine, theirs, alone, reference

    def side_by_side(self, batch: Batch, *, with_grad: bool = False) -> SideBySide:
        unseen = None if with_grad else self._note_unseen
        return SideBySide(
            self.runners, self.matching, batch, misfit=self._note_misfit, unseen=unseen, with_grad=with_grad
        )

    def _note_unseen(self, call: Call) -> None:
        """What only later samples use has no row: the table's ops are those of the first few."""
        if call.name not in self._unseen and call.name not in self._known and real_tensors(call.value):
            self._unseen.add(call.name)
            if call.module is not None:
                self.notes.append(f"{call.name} is not used by the first samples, so it is left out of the table")

    def _note_misfit(self, match: Match, mine: tuple[int, ...], theirs: tuple[int, ...]) -> None:
        self._misfits.setdefault(match.step.name, misfit(mine, theirs))

    def _input_pairs(self, batch: Batch) -> Iterator[Pair]:
        with undisturbed(*self.models), torch.no_grad():
            for name, op in self._readers.items():
                mine = torch.from_numpy(np.array(batch[name], np.float32))
                rounded = self.traces[1].rounding[name](mine)
                yield Pair(op, name, "input", to_numpy(mine), to_numpy(rounded), input_axis(mine.ndim))

    def _find_readers(self) -> dict[str, str]:
        """Inputs of the model that are quantized with a fixed scale, and the first op that reads each."""
        mine, theirs = self.traces
        read = {name for step in theirs.steps for name in step.reads}
        rounded = [name for name in theirs.rounding if name in read]
        return first_readers(rounded, {step.name: step.reads for step in mine.steps})


def read_inputs(model: Any) -> list[Input]:
    """By name; what they hold is known only from data."""
    return [Input(name, np.dtype(object), (), is_known=False) for name in required_names(opened(model))]
