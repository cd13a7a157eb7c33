"""The op table: columns that describe themselves, and a number or a reason in every cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from inc_tb.records.text import listed, plural, short_repr

Cell = float | str
"""A number, or the reason why there is none."""


class Column(msgspec.Struct, omit_defaults=True):
    __repr__ = short_repr

    name: str
    type: Literal["number", "text", "op", "output_channels", "weight_channels"] = "number"
    """The last three are for the evidence of suggestions: the name of an op, and channels of its output or weights."""
    label: str = ""
    unit: str = ""
    better: Literal["higher", "lower", ""] = ""
    normal: tuple[float | None, float | None] | None = None
    help: str = ""
    nulls: dict[str, list[tuple[int, int]]] = {}
    """Version 1 kept the reasons of empty cells here: reason -> ranges of rows [from, to)."""
    stored: Literal["f8", "f4"] = "f8"
    """Numbers as float64, or as float32 where that loses no more than the eighth digit."""

    def figure(self, value: float) -> str:
        """A value as a sentence has it."""
        if self.unit == "share":
            return f"{value:.1%}"
        return f"{value:z.1f} dB" if self.unit == "dB" else f"{value:.3g}{' µs' if self.unit == 'µs' else ''}"


class OpTable(Mapping[str, npt.NDArray[Any]]):
    """Column name -> array with one value an op; numbers without a value are NaN, with a reason."""

    def __init__(
        self,
        columns: Sequence[Column],
        arrays: Sequence[npt.NDArray[Any]],
        reasons: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """`reasons` has a text for each row of the columns that lack values; "" where the row's own reason holds."""
        self.columns = list(columns)
        self._arrays = {column.name: array for column, array in zip(columns, arrays, strict=True)}
        self._reasons = dict(reasons or {})

    @classmethod
    def from_rows(cls, columns: Sequence[Column], rows: Sequence[Mapping[str, Cell]]) -> OpTable:
        arrays: list[npt.NDArray[Any]] = []
        reasons: dict[str, Sequence[str]] = {}
        for column in columns:
            values = [row[column.name] for row in rows]
            if column.type == "text":
                arrays.append(np.array(values, dtype=object))
                continue
            why = [_why_no_number(v) for v in values]
            arrays.append(np.array([np.nan if w else v for v, w in zip(values, why, strict=True)], np.float64))
            if any(why):
                reasons[column.name] = why
        return cls(columns, arrays, reasons)

    def replaced(self, columns: Mapping[str, Sequence[Cell]]) -> OpTable:
        """The same table with other values in some columns: numbers, reasons why there is none, or texts."""
        chosen = [column for column in self.columns if column.name in columns]
        rows = [{c.name: columns[c.name][i] for c in chosen} for i in range(self.count)]
        new = OpTable.from_rows(chosen, rows)
        arrays = [new[c.name] if c.name in columns else self[c.name] for c in self.columns]
        kept = {name: why for name, why in self._reasons.items() if name not in columns}
        return OpTable(self.columns, arrays, {**kept, **new._reasons})

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"<OpTable of {plural(self.count, 'op')} and {plural(len(self), 'column')}: {listed(self)}>"

    @property
    def count(self) -> int:
        return len(self["name"])

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    def why_null(self, name: str, row: int) -> str:
        if self.column(name).type == "text" or not np.isnan(self[name][row]):
            return ""
        own = self._reasons[name][row] if name in self._reasons else ""
        return own or (str(self["reason"][row]) if "reason" in self else "") or "no reason was given"

    def own_reasons(self, name: str) -> Sequence[str]:
        """For each row why the column has no number there, unless the row's `reason` says the same; or nothing."""
        why = self._reasons.get(name, ())
        if "reason" not in self:
            return why
        return ["" if w == r else w for w, r in zip(why, self["reason"].tolist(), strict=bool(why))]

    def rows(self) -> Iterator[dict[str, Any]]:
        """One dict an op; a number without a value is None."""
        lists = {name: array.tolist() for name, array in self._arrays.items()}
        for i in range(self.count):
            yield {name: None if values[i] != values[i] else values[i] for name, values in lists.items()}


def _why_no_number(value: Cell) -> str:
    if isinstance(value, str):
        return value or "no reason was given"
    return "" if np.isfinite(value) else "not a finite number"
