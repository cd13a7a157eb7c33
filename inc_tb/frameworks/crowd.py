"""Many steps that read one tensor, each with one twin: looked up, not compared in pairs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Generic

from inc_tb.frameworks.graph import AnyStep

CROWD = 64
"""Readers of one tensor that are still compared one by one."""
_NEXT = 16
"""Of a crowd those that come next, of each type: tools keep the order of what they do not tell apart by names."""


class Crowd(Generic[AnyStep]):
    def __init__(self, steps: Sequence[AnyStep]) -> None:
        self._by_name = {name: step for step in steps for name in (step.name, *step.outputs)}
        self._by_type: dict[str, list[AnyStep]] = defaultdict(list)
        for step in reversed(steps):
            self._by_type[step.type].append(step)

    def named(self, names: Iterable[str]) -> list[AnyStep]:
        """Those that are called so, or whose results are."""
        return [self._by_name[name] for name in names if name in self._by_name]

    def next_free(self, used: Collection[int]) -> list[AnyStep]:
        found: list[AnyStep] = []
        for steps in self._by_type.values():
            while steps and steps[-1].index in used:
                steps.pop()
            found += islice((step for step in reversed(steps) if step.index not in used), _NEXT)
        return found
