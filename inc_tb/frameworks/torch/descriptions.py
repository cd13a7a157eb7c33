"""The ops of the reference, as its calls and what they match tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from inc_tb.frameworks.describe import NO_COUNTERPART, described
from inc_tb.frameworks.edges import units
from inc_tb.frameworks.ops import Op, Quantization
from inc_tb.frameworks.torch.grids import found_at_run_time
from inc_tb.frameworks.torch.kinds import FOLDABLE
from inc_tb.frameworks.torch.match import Match, Matching
from inc_tb.frameworks.torch.steps import Step
from inc_tb.frameworks.torch.weights import weight_of


def describe_ops(matching: Matching, statements: Mapping[str, str]) -> list[Op]:
    """`statements` has how the tool is told of those that are no modules."""
    steps = {step.name: step for step in matching.reference.steps}
    names = list(steps)
    sources = {name: [names[source] for source in step.sources] for name, step in steps.items()}
    unit = units(sources, lambda name: _joins(steps[name], matching))
    ops = [_described(step, sources[name], unit[name], matching) for name, step in steps.items()]
    ops = [replace(op, statement=statements.get(op.name, "")) for op in ops]
    wholes = {names[index]: names[whole] for index, whole in matching.folded_into.items()}
    known = {names[index] for index in matching.matches}
    return described(ops, wholes, {name: NO_COUNTERPART for name in names if name not in known})


def _described(step: Step, inputs: list[str], unit: str, matching: Matching) -> Op:
    match = matching.matches.get(step.index)
    mine, theirs = (weight_of(step), weight_of(match.twin)) if match is not None else (None, None)
    return Op(
        step.name, step.kind, step.index, block=_block(step), module=step.path, unit=unit, inputs=tuple(inputs),
        weight=theirs.quantization if theirs is not None else None,
        activation=_activation(match) if match is not None else None,
        params=mine.stored.numel() if mine is not None else 0,
    )  # fmt: skip


def _activation(match: Match) -> Quantization | None:
    if match.twin.quantization is None and match.twin.is_dynamic:
        return found_at_run_time(match.twin.read_dtype)
    return match.twin.quantization


def _joins(step: Step, matching: Matching) -> bool:
    """Whether a call is made part of the one before it, or nothing in between is rounded."""
    if step.index in matching.folded_into:
        return True
    match = matching.matches.get(matching.root(step.sources[0]))
    is_free = match is not None and match.twin.quantization is None
    return is_free and step.kind in FOLDABLE and weight_of(step) is None


def _block(step: Step) -> str:
    return step.path if step.is_function else step.path.rpartition(".")[0]
