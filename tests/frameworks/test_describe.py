"""Where ops are compared, or why they are not, in the words that all frameworks use."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from inc_tb.frameworks.describe import NO_COUNTERPART, described, misfit, without
from inc_tb.frameworks.ops import Op

PART = "part of conv in the quantized model; compared there"


def chain() -> list[Op]:
    """pad -> conv -> relu -> shape, of which the quantized model has made pad and relu part of conv."""
    names = ["pad", "conv", "relu", "shape"]
    ops = [
        Op(name, name.title(), at, unit=name, inputs=tuple(names[:at][-1:])) for at, name in enumerate(names)
    ]  # fmt: skip
    return described(ops, {"pad": "conv", "relu": "conv"}, {"shape": NO_COUNTERPART})


def test_ops_are_compared_by_themselves_or_where_they_are_part_of() -> None:
    assert [(op.compared_at, op.unit, op.note) for op in chain()] == [
        ("conv", "conv", PART), ("conv", "conv", ""), ("conv", "conv", PART), ("", "shape", NO_COUNTERPART),
    ]  # fmt: skip


def test_ops_know_who_reads_them() -> None:
    assert [list(op.consumers) for op in chain()] == [["conv"], ["relu"], ["shape"], []]


def test_parts_of_an_op_that_does_not_fit_are_not_compared_either() -> None:
    reason = misfit((2, 3), [6])
    assert reason == "its output is (2, 3) in the reference and (6,) in the quantized model"
    found = without(chain(), {"conv": reason})
    assert [op.compared_at for op in found] == [""] * 4
    part = f"part of conv, which is not compared: {reason}"
    assert [op.note for op in found] == [part, reason, part, NO_COUNTERPART]


def test_ops_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        chain()[0].note = "changed"  # type: ignore[misc]
