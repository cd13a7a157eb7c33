"""Which ops the reader is told could not be compared."""

from __future__ import annotations

import numpy as np

from inc_tb.frameworks.describe import NO_COUNTERPART, described
from inc_tb.frameworks.ops import Op
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.measure.op_table import Measurement, Verdict, op_table
from inc_tb.measure.stats import PairStats
from inc_tb.records import decode_table, encode_table


def test_ops_without_numbers_are_told_unless_they_are_part_of_a_row_that_has_them() -> None:
    ops = described(
        [Op(name, "Conv", at, unit=name) for at, name in enumerate(("conv", "relu", "gone", "other", "part"))],
        {"relu": "conv", "part": "other"},
        {"gone": NO_COUNTERPART},
    )
    stats = PairStats(None, None)
    stats.update(np.float32([1, 2, 3]), np.float32([1, 2, 4]))
    rows = [Measurement(op, output=stats if op.name == "conv" else None) for op in ops]
    table = op_table(rows, {op.name: Verdict("", op.note) for op in ops})
    lost = {
        "gone": NO_COUNTERPART,
        "other": "not measured",
        "part": "part of other in the quantized model; compared there",
    }
    assert Diagnosis(table).missing == lost
    assert Diagnosis(decode_table(encode_table(table, {}))[0]).missing == lost, "read back"
