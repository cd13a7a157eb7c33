"""Limits that a run must keep: on columns of the op table, counts, and results of its trial and profile."""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from inc_tb.errors import DataError, UsageError
from inc_tb.measure.metrics import NO_ERROR
from inc_tb.records import Cell, OpTable, listed
from inc_tb.store.reader import Run

_HOLDS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_WRITTEN = re.compile(r"\s*([\w.-]+)\s*(>=|<=|==|!=|>|<)\s*(.*?)\s*")
_SHORT = {"latency": "latency_ms", "size": "size_kb", "memory": "memory_mb"}
"""What an objective is asked for by -> what it is called in a trial."""
_VERDICTS = ("ok", "watch", "bad")
_OF_TRIALS = ("accuracy", "baseline", "drop", "wall_s", "int8_macs")


class Limit(NamedTuple):
    name: str
    sign: str
    bound: Cell
    """A text for columns of texts."""

    def __str__(self) -> str:
        return f"{self.name}{self.sign}{self.bound if isinstance(self.bound, str) else f'{self.bound:g}'}"

    def holds(self, value: Cell) -> bool:
        return _HOLDS[self.sign](value, self.bound)


class Failure(NamedTuple):
    """A value outside of its limit; of the run as a whole where there is no op."""

    run: str
    op: str
    column: str
    value: Cell
    limit: Limit


class Checked(NamedTuple):
    """What came of one limit."""

    run: str
    limit: Limit
    values: int
    """How many there were to check."""
    failures: list[Failure]


def parse_limit(given: str) -> Limit:
    """Such as accuracy>=0.95."""
    found = _WRITTEN.fullmatch(given)
    if found is None or not found[3]:
        raise UsageError(f"the limit {given!r} was given; expected NAME>=NUMBER, or with <=, >, <, == or !=.")
    name, sign, text = found.groups()
    try:
        bound: Cell = float(text)
    except ValueError:
        bound = text
    if (isinstance(bound, str) and sign not in ("==", "!=")) or bound != bound:
        raise UsageError(f"the limit {given!r} was given; expected a number behind {sign}.")
    return Limit(name, sign, bound)


def check(run: Run, limits: Sequence[Limit]) -> list[Checked]:
    """A limit on what the run does not hold is an error: what was not measured holds nothing."""
    return [_checked(run, limit) for limit in limits]


def _checked(run: Run, limit: Limit) -> Checked:
    values = list(_values(run, limit))
    failures = [Failure(run.name, op, limit.name, value, limit) for op, value in values if not limit.holds(value)]
    return Checked(run.name, limit, len(values), failures)


def _values(run: Run, limit: Limit) -> Iterator[tuple[str, Cell]]:
    """Op -> value; "" for the run."""
    table = run.ops if run.diagnoses else None
    name = _SHORT.get(limit.name, limit.name)
    if table is not None and name in table:
        yield from _of_column(run.name, table, limit, name)
        return
    known = _of_run(run)
    if name not in known:
        raise UsageError(_unknown(run, limit, [*(table or ()), *known]))
    value = known[name]
    if value is None:
        raise DataError(
            f"{run.name}: the limit {limit} cannot be checked, {name} was not measured. Log it, or leave it out."
        )
    if isinstance(limit.bound, str):
        raise UsageError(f"the limit {limit} was given; {name} is a number.")
    yield "", value


def _of_column(run: str, table: OpTable, limit: Limit, name: str) -> Iterator[tuple[str, Cell]]:
    is_text = table.column(name).type != "number"
    if is_text != isinstance(limit.bound, str):
        kind = "a text" if is_text else "a number"
        raise UsageError(f"the limit {limit} was given; the column {name} holds {kind} for each op.")
    if is_text:
        yield from ((str(op), str(value)) for op, value in zip(table["name"], table[name], strict=True) if value)
        return
    missing = ""
    found = 0
    for row, (op, value) in enumerate(zip(table["name"], table[name].tolist(), strict=True)):
        why = table.why_null(name, row)
        if why and why != NO_ERROR:
            missing = missing or why
            continue
        found += 1
        yield str(op), math.inf if why else value
    if not found:
        raise DataError(
            f"{run}: the limit {limit} cannot be checked, no op has a value of {name}: {missing or 'there is no op'}."
        )


def _of_run(run: Run) -> dict[str, float | None]:
    """None for what a run may have and this one has not."""
    trial = run.trial
    known: dict[str, float | None] = dict.fromkeys((*_OF_TRIALS, *_VERDICTS, "fallback", "samples", *_SHORT.values()))
    if run.diagnoses:
        verdicts = run.ops["verdict"].tolist() if "verdict" in run.ops else []
        known |= {name: float(verdicts.count(name)) for name in _VERDICTS if verdicts}
        known["samples"] = float(run.diagnosis.samples)
    if run.profile is not None and run.profile.total.int8_us is not None:
        known["latency_ms"] = run.profile.total.int8_us / 1000
    if trial is not None:
        known |= {name: getattr(trial, name) for name in _OF_TRIALS}
        known["fallback"] = float(len(trial.fallback))
        known |= trial.objectives
    return known


def _unknown(run: Run, limit: Limit, names: Sequence[str]) -> str:
    alike = [name for name in names if limit.name in name] or difflib.get_close_matches(limit.name, names, n=4)
    there = listed(alike or names, 12)
    return f"{run.name}: the limit {limit} is on {limit.name}, which no run of its kind has; expected one of {there}."
