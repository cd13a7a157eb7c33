"""The op table as plain rows, which trackers show, and back.

Both trackers keep a table as a JSON object of `columns` and `data`. What has no number is null there, and the reason
stands in one more column; what the columns mean is a second table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from inc_tb.errors import DataError, reading
from inc_tb.records import Column, OpTable, storable_text, to_json

OPS, COLUMNS = "ops", "op_columns"
"""What the two tables are called."""
_REASONS = "null_reasons"
_LOW, _HIGH = "normal_low", "normal_high"
_PLAIN = ("name", "type", "label", "unit", "better", "help")


class Table(NamedTuple):
    columns: list[str]
    rows: list[list[Any]]

    def to_json(self) -> bytes:
        """As MLflow and pandas (orient="split") have it."""
        return msgspec.json.encode({"columns": self.columns, "data": self.rows})


def tables_of(ops: OpTable) -> dict[str, Table]:
    return {OPS: _ops(ops), COLUMNS: _about(ops.columns)}


def _ops(ops: OpTable) -> Table:
    found = []
    for i, row in enumerate(ops.rows()):
        reasons = {name: ops.why_null(name, i) for name, value in row.items() if value is None}
        cells = [storable_text(value) if isinstance(value, str) else value for value in row.values()]
        found.append([*cells, to_json(reasons).decode() if reasons else ""])
    return Table([*ops, _REASONS], found)


def _about(columns: Sequence[Column]) -> Table:
    rows = [[*(getattr(c, name) for name in _PLAIN), *(c.normal or (None, None))] for c in columns]
    return Table([*_PLAIN, _LOW, _HIGH], rows)


Stored = str | PathLike[str] | Mapping[str, Any]


def read_ops(ops: Stored, columns: Stored) -> OpTable:
    """The op table from what a tracker stored as `ops` and `op_columns`: the JSON files, or what is in them."""
    given = ops if isinstance(ops, str | PathLike) else "the tables"
    with reading(DataError, given, "is no op table", "Expected ops and op_columns of one run, as log_to stored them."):
        about = [_column(dict(zip(_names(columns), row, strict=True))) for row in _content(columns)["data"]]
        names, rows = _names(ops), _content(ops)["data"]
        cells = [dict(zip(names, row, strict=True)) for row in rows]
        for row in cells:
            reasons = msgspec.json.decode(row.pop(_REASONS) or "{}", type=dict[str, str])
            row.update({name: reasons[name] for name, value in row.items() if value is None})
        return OpTable.from_rows(about, cells)


def _names(table: Stored) -> list[str]:
    return list(_content(table)["columns"])


def _content(table: Stored) -> Mapping[str, Any]:
    if isinstance(table, Mapping):
        return table
    return msgspec.json.decode(Path(table).read_bytes(), type=dict[str, Any])


def _column(row: dict[str, Any]) -> Column:
    low, high = row.pop(_LOW), row.pop(_HIGH)
    normal = None if low is None and high is None else (low, high)
    return msgspec.convert({**row, "normal": normal}, Column)
