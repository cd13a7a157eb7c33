"""Where each op of a reference is compared, or why it is not: the same words for all frameworks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from inc_tb.frameworks.ops import Op

NO_COUNTERPART = "the quantized model has no counterpart of it"


def described(ops: Sequence[Op], wholes: Mapping[str, str], missing: Mapping[str, str]) -> list[Op]:
    """Ops, each told by itself, with what follows from the others: where it is compared, its unit, and who reads it.

    `wholes` has the ops that are part of another one in the quantized model, with that one; `missing` those without a
    counterpart, with the reason. All others are compared themselves.
    """
    unit = {op.name: op.unit for op in ops}
    found = []
    for op in ops:
        if op.name in wholes:
            found.append(as_part_of(op, wholes[op.name], unit[wholes[op.name]]))
        elif op.name in missing:
            found.append(replace(op, note=missing[op.name]))
        else:
            found.append(replace(op, compared_at=op.name))
    return linked(found)


def as_part_of(op: Op, whole: str, unit: str) -> Op:
    """It changes precision with what it is part of."""
    return replace(op, compared_at=whole, unit=unit, note=f"part of {whole} in the quantized model; compared there")


def linked(ops: Iterable[Op]) -> list[Op]:
    """Each op with those that read it."""
    ops = list(ops)
    readers: dict[str, list[str]] = defaultdict(list)
    for op in ops:
        for name in op.inputs:
            readers[name].append(op.name)
    return [replace(op, consumers=tuple(readers[op.name])) for op in ops]


def misfit(mine: Sequence[int], theirs: Sequence[int]) -> str:
    """Why an op is not compared whose result turns out to be another tensor when the models run."""
    return f"its output is {tuple(mine)} in the reference and {tuple(theirs)} in the quantized model"


def without(ops: Sequence[Op], reasons: Mapping[str, str]) -> list[Op]:
    """The ops where those in `reasons` are not compared after all, nor what is part of them."""
    return [_not_compared(op, reasons[op.compared_at]) if op.compared_at in reasons else op for op in ops]


def _not_compared(op: Op, reason: str) -> Op:
    is_itself = op.name == op.compared_at
    note = reason if is_itself else f"part of {op.compared_at}, which is not compared: {reason}"
    return replace(op, compared_at="", note=note)
