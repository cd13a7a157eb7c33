"""Whether two op tables are the same, cell by cell."""

from __future__ import annotations

import numpy as np

from inc_tb.records import OpTable


def assert_same(found: OpTable, table: OpTable) -> None:
    assert found.columns == table.columns
    assert found.count == table.count
    for name in table:
        np.testing.assert_array_equal(found[name], table[name])
        reasons = [table.why_null(name, row) for row in range(table.count)]
        assert [found.why_null(name, row) for row in range(table.count)] == reasons
