"""The op table as plain rows: nothing of it is lost on the way there and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import inc_tb
from inc_tb.errors import DataError
from inc_tb.records import Column, OpTable
from inc_tb.trackers.tables import read_ops, tables_of
from tests.trackers.same import assert_same

GOLDEN = Path(__file__).parents[1] / "golden"
ODD = OpTable.from_rows(
    [
        Column("name", "text"), Column("a_mse", label="MSE", unit="value", better="lower", normal=(None, 1e-300)),
        Column("w_mse", normal=(0.1 + 0.2, None), help="a, \"b\" and\nc"), Column("reason", "text"),
    ],
    [
        {"name": "/conv \"1\",\u2028é", "a_mse": 0.1 + 0.2, "w_mse": "no weight, \"here\"", "reason": "of the row"},
        {"name": "", "a_mse": float("inf"), "w_mse": 5e-324, "reason": ""},
        {"name": "null", "a_mse": "of the row", "w_mse": 2.0**60 + 512, "reason": "of the row"},
    ],
)  # fmt: skip


@pytest.mark.parametrize("table", [ODD, *(inc_tb.load(GOLDEN / name).ops for name in ("v2", "later/samples"))])
def test_nothing_is_lost(table: OpTable, tmp_path: Path) -> None:
    for name, one in tables_of(table).items():
        (tmp_path / name).write_bytes(one.to_json())
    assert_same(read_ops(tmp_path / "ops", tmp_path / "op_columns"), table)
    contents = [json.loads((tmp_path / name).read_text()) for name in ("ops", "op_columns")]
    assert_same(read_ops(*contents), table)


def test_what_has_no_number_is_null_beside_its_reason() -> None:
    columns, rows = tables_of(ODD)["ops"]
    assert columns == ["name", "a_mse", "w_mse", "reason", "null_reasons"]
    assert rows[0][2] is None
    assert json.loads(rows[0][4]) == {"w_mse": 'no weight, "here"'}
    assert json.loads(rows[1][4]) == {"a_mse": "not a finite number"}


def test_what_is_no_op_table_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "cut.json").write_text('{"columns": ["na')
    for given in (tmp_path / "cut.json", tmp_path / "none.json", {"columns": ["name"]}, {"columns": [], "data": [[1]]}):
        with pytest.raises(DataError, match=r"is no op table .*Expected ops and op_columns of one run"):
            read_ops(given, tables_of(ODD)["op_columns"]._asdict())
