"""Two PyTorch models as ops and pairs of arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from inc_tb.adapters.common import linked, with_unmatched
from inc_tb.adapters.torch.kinds import CHANNELS_FIRST, CHANNELS_LAST, FOLDABLE
from inc_tb.adapters.torch.lockstep import Paused, Stop
from inc_tb.adapters.torch.match import Match, Matching
from inc_tb.adapters.torch.qat import without_fake_quantization
from inc_tb.adapters.torch.state import undisturbed, unwrapped
from inc_tb.adapters.torch.trace import Call, Runner, Step, Trace, Visit, open_runner, required_names
from inc_tb.adapters.torch.values import (
    found_at_run_time,
    is_fake_quantizer,
    like,
    plain,
    real_tensors,
    to_numpy,
    with_tensors,
)
from inc_tb.adapters.torch.weights import weight_of
from inc_tb.capture import Batch, Input, Pair, describe
from inc_tb.errors import IncTbError, MismatchError, ModelError
from inc_tb.records import Op, Quantization

_SAMPLES = 8
_WHAT = "the reference", "the quantized model"
_Made = TypeVar("_Made")


class TorchAdapter:
    framework = "torch"

    def __init__(self, reference: Any, quantized: Any, *, memory_budget: int = 1 << 30) -> None:
        """`memory_budget` is not needed: one intermediate value is held at a time."""
        self.notes: list[str] = []
        theirs = opened(quantized)
        self.models = without_fake_quantization(theirs) if reference is None else opened(reference), theirs
        self._inputs = read_inputs(self.models[0])
        self._ops: list[Op] | None = None

    def twins(self) -> dict[str, list[str]]:
        """Op of the quantized model -> ops of the reference that it stands for."""
        found: dict[str, list[str]] = {}
        for match in self.matching.matches.values():
            found.setdefault(match.twin.name, []).extend(step.name for step in (match.step, *match.folded))
        steps = self.traces[1].steps
        return with_unmatched(found, {step.name: [steps[source].name for source in step.sources] for step in steps})

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
            self._axes = _channel_axes(self.traces[0])
            self._known = {step.name for step in self.traces[0].steps}
            self._unseen: set[str] = set()
            self._ops = self._describe_ops()
            self._readers = self._find_readers()

    def _traced(self, batch: Batch) -> tuple[Trace, Trace]:
        """On a few samples where that works; a model may be made for a fixed number of them."""
        rows = {len(array) for array in batch.values() if np.ndim(array)}
        if len(rows) == 1 and max(rows) > _SAMPLES:
            few = {name: array[:_SAMPLES] if np.ndim(array) else array for name, array in batch.items()}
            with contextlib.suppress(MismatchError):  # raised again, if the whole batch fails too
                return self._traced_with(few)
        return self._traced_with(batch)

    def _traced_with(self, batch: Batch) -> tuple[Trace, Trace]:
        mine, theirs = self.runners
        return (
            said(_WHAT[0], mine.model, batch, lambda: mine.trace(feeds(mine.model, batch))),
            said(_WHAT[1], theirs.model, batch, lambda: theirs.trace(feeds(theirs.model, batch))),
        )

    def ops(self) -> Sequence[Op]:
        if self._ops is None:
            raise ModelError("the models were not traced yet; expected trace(batch) before ops().")
        return self._ops

    def weights(self) -> Iterator[Pair]:
        with undisturbed(*self.models), torch.no_grad():
            for match in self.matching.matches.values():
                found = self.matching.weights(match)
                if found is not None and found.reference.numel():
                    yield Pair(
                        match.step.name, f"{match.step.name}.weight", "weight", to_numpy(found.reference),
                        to_numpy(found.quantized), _weight_axis(match.step, found.quantization),
                    )  # fmt: skip

    def run(self, batch: Batch) -> Iterator[Pair]:
        self.trace(batch)
        self._check(batch)
        yield from self._input_pairs(batch)
        for match, mine, theirs, alone in self.side_by_side(batch):
            name, axis = match.step.name, self._axes[match.end.index] if mine.ndim > 1 else None
            reference = to_numpy(mine)
            yield Pair(name, match.end.name, "output", reference, to_numpy(theirs), axis)
            yield Pair(name, match.end.name, "isolated", reference, to_numpy(alone), axis)
            del mine, theirs, alone, reference

    def side_by_side(
        self, batch: Batch, *, with_grad: bool = False, results: list[Any] | None = None
    ) -> Iterator[tuple[Match, Tensor, Tensor, Tensor]]:
        """What each matched call makes: in the reference, in the quantized model, and there of the reference's values.

        Arrays of other shapes in the quantized model are left out, with a note. What the reference returns is appended
        to `results`.
        """
        ends = {match.end.name: match.end for match in self.matching.matches.values()}
        twins = {match.twin.name: match for match in self.matching.matches.values()}
        steps = {name: match.twin for name, match in twins.items()}
        reference, quantized = self.runners
        with undisturbed(*self.models):

            def paused(runner: Runner, which: int, at: Mapping[str, Step]) -> Paused:
                def run(stop: Stop) -> Any:
                    visit = _stopping(stop, at, self._note_unseen if runner is reference else None)
                    if with_grad and runner is reference:
                        visit = _stopping_with_grad(stop, at)
                    model = runner.model
                    return said(_WHAT[which], model, batch, lambda: runner.run(feeds(model, batch), visit))

                return Paused(run, with_grad and runner is reference)

            runs = [paused(reference, 0, ends), paused(quantized, 1, steps), paused(quantized, 1, steps)]
            try:
                yield from self._paired(twins, *runs)
                if results is not None:
                    results.append(runs[0].result)
            finally:
                for run in runs:
                    run.close()

    def _paired(
        self, twins: Mapping[str, Match], reference: Paused, quantized: Paused, isolated: Paused
    ) -> Iterator[tuple[Match, Tensor, Tensor, Tensor]]:
        held: dict[str, list[Tensor]] = {}
        told: list[Tensor] | None = None
        while True:
            real, alone = quantized.advance(), isolated.advance(told)
            if real is None or alone is None or real[0] != alone[0]:
                break
            match = twins[real[0]]
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
            yield match, mine, theirs, by_itself
            del real, alone, made_here, mine, theirs, by_itself  # not held while the next values are made
        while reference.advance() is not None:
            pass

    def _note_unseen(self, call: Call) -> None:
        """What only later samples use has no row: the table's ops are those of the first few."""
        if call.name not in self._unseen and call.name not in self._known and real_tensors(call.value):
            self._unseen.add(call.name)
            if call.module is not None:
                self.notes.append(f"{call.name} is not used by the first samples, so it is left out of the table")

    def _misfit(self, match: Match, mine: tuple[int, ...], theirs: tuple[int, ...]) -> None:
        reason = f"its output has shape {mine}, the quantized model's {theirs}"
        for op in self._ops or ():
            if op.compared_at and op.compared_at == match.step.name:
                is_itself = op.name == op.compared_at
                op.note = reason if is_itself else f"part of {op.compared_at}, which is not compared: {reason}"
                op.compared_at = ""

    def _input_pairs(self, batch: Batch) -> Iterator[Pair]:
        with undisturbed(*self.models), torch.no_grad():
            for name, op in self._readers.items():
                mine = torch.from_numpy(np.array(batch[name], np.float32))
                axis = None if mine.ndim < 2 else 1 if mine.ndim > 3 else mine.ndim - 1
                yield Pair(op, name, "input", to_numpy(mine), to_numpy(self.traces[1].rounding[name](mine)), axis)

    def _find_readers(self) -> dict[str, str]:
        """Inputs of the model that are quantized with a fixed scale, and the first op that reads each."""
        found = {}
        reading = {step.name: step.reads for step in self.traces[0].steps}
        names = [step.reads for step in self.traces[1].steps]
        for name in self.traces[1].rounding:
            first = next((op.name for op in self.ops() if name in reading[op.name]), None)
            if first is not None and any(name in reads for reads in names):
                found[name] = first
        return found

    def _describe_ops(self) -> list[Op]:
        reference = self.traces[0]
        names = [step.name for step in reference.steps]
        unit: dict[str, str] = {}
        ops: list[Op] = []
        for step in reference.steps:
            inputs = [names[source] for source in step.sources]
            op = Op(step.name, step.kind, len(ops), block=_block(step), module=step.path, inputs=inputs)
            op.unit = unit[op.name] = self._unit(step, unit)
            match = self.matching.matches.get(step.index)
            if step.index in self.matching.folded_into:
                op.compared_at = names[self.matching.folded_into[step.index]]
                op.note = f"part of {op.compared_at} in the quantized model; compared there"
            elif match is not None:
                op.compared_at = op.name
                self._describe_quantization(op, match)
            else:
                op.note = "the quantized model has no counterpart of it"
            ops.append(op)
        return linked(ops)

    def _describe_quantization(self, op: Op, match: Match) -> None:
        op.activation = match.twin.quantization
        if op.activation is None and match.twin.is_dynamic:
            op.activation = found_at_run_time(match.twin.read_dtype)
        found = weight_of(match.twin)
        op.weight = found.quantization if found is not None else None
        mine = weight_of(match.step)
        op.params = mine.stored.numel() if mine is not None else 0

    def _unit(self, step: Step, unit: Mapping[str, str]) -> str:
        """Calls between which nothing is quantized change precision together: Conv2d, BatchNorm2d, ReLU."""
        if len(step.sources) != 1:
            return step.name
        source = self.traces[0].steps[step.sources[0]]
        alone = sum(source.index in other.sources for other in self.traces[0].steps) == 1
        if step.index in self.matching.folded_into:
            return unit[source.name] if alone else step.name
        match = self.matching.matches.get(self.matching.root(source.index))
        is_free = match is not None and match.twin.quantization is None
        joins = step.kind in FOLDABLE and weight_of(step) is None
        return unit[source.name] if alone and joins and is_free else step.name

    def _check(self, batch: Batch) -> None:
        expected = {i.name: i for i in self._inputs}
        if set(batch) != set(expected):
            raise MismatchError(
                f"the data has the arrays {sorted(batch)}, the model was traced with {sorted(expected)}. "
                "Name the arrays as the arguments of the model's forward, the same in every batch."
            )
        for name, array in batch.items():
            shape = expected[name].shape
            if np.ndim(array) != len(shape):
                given = "x".join(map(str, np.shape(array))) or "a single number"
                raise MismatchError(
                    f"the array {name} has shape {given}, the first batch had {len(shape)} axes. Reshape the data; the "
                    "first axis counts the samples."
                )


def opened(model: Any) -> nn.Module:
    found = unwrapped(model)
    if isinstance(found, torch.jit.ScriptModule):
        raise ModelError(
            f"{describe(model)} is TorchScript, which hides its ops; expected the nn.Module it was made of."
        )
    if not isinstance(found, nn.Module):
        raise ModelError(f"{describe(model)} was given; expected a torch.nn.Module or an ExportedProgram.")
    for name, value in [*found.named_parameters(), *found.named_buffers()]:
        if is_lazy(value):
            raise ModelError(f"{describe(model)} has no weights yet ({name} is lazy); run it once on some data first.")
        if value.is_meta:
            raise ModelError(f"{describe(model)} has no values ({name} is on the meta device); load its weights first.")
    return found


def read_inputs(model: Any) -> list[Input]:
    """By name; what they hold is known only from data."""
    return [Input(name, np.dtype(object), (), is_known=False) for name in required_names(opened(model))]


def feeds(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """The arrays as a model takes them: real numbers in the type and on the device of its parameters."""
    own = next((p for p in model.parameters() if p.dtype.is_floating_point), None)
    found = {}
    for name, array in batch.items():
        tensor = torch.from_numpy(np.array(array))
        is_float = tensor.dtype.is_floating_point
        if own is not None:
            tensor = tensor.to(own.device, own.dtype if is_float else None)
        elif is_float:  # all weights are packed away
            tensor = tensor.to(torch.get_default_dtype())
        found[name] = tensor
    return found


def said(what: str, model: nn.Module, batch: Batch, work: Callable[[], _Made]) -> _Made:
    """What the user's own code raises, as one line that says in which model and on which data."""
    try:
        return work()
    except IncTbError:
        raise
    except Exception as error:
        raise _failed(what, model, batch, error) from error


def _failed(what: str, model: nn.Module, batch: Batch, error: Exception) -> MismatchError:
    shapes = {name: f"{array.dtype} {'x'.join(map(str, array.shape))}" for name, array in batch.items()}
    first = str(error).strip().splitlines() or [""]
    return MismatchError(
        f"{what} ({describe(model)}) fails on the data {shapes}: {type(error).__name__}: {first[0].rstrip('.')}. "
        "Check that the arrays are named, shaped and typed as its forward takes them."
    )


def _stopping(stop: Stop, steps: Mapping[str, Step], unseen: Callable[[Call], None] | None) -> Visit:
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


def _weight_axis(step: Step, quantization: Quantization | None) -> int:
    if "Embedding" in step.kind or step.kind == "Conv1D":  # GPT-2's, whose weights are inputs x outputs
        return 1  # a channel for each of its words would be too many to look at
    return quantization.axis if quantization is not None and quantization.axis is not None else 0


def _block(step: Step) -> str:
    return step.path.rpartition(".")[0] if step.module is not None or "/" not in step.name else step.path


def _channel_axes(trace: Trace) -> dict[int, int]:
    """Where the channels of each result are; what is not known keeps the place of its source."""
    axes: dict[int, int] = {}
    for step in trace.steps:
        kinds = {step.kind, *(base.__name__ for base in type(step.module).__mro__)}
        if kinds & CHANNELS_FIRST:
            axis = 1
        elif kinds & CHANNELS_LAST:
            axis = -1
        else:
            alike = [s for s in step.sources if len(trace.steps[s].shape) == len(step.shape) > 1]
            axis = next((_kept_axis(step.shape, trace.steps[s].shape, axes[s]) for s in alike), -1)
        axes[step.index] = axis
    return axes


def _kept_axis(shape: tuple[int, ...], before: tuple[int, ...], axis: int) -> int:
    """Where the channels are after values were perhaps rearranged: where there are as many of them."""
    channels = before[axis]
    return next((a for a in (axis, -1, 1) if shape[a] == channels), -1)
