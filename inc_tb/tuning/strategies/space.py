"""All that can be tried: settings of the tool for the whole model, and for each op int8 or fp32."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from inc_tb.errors import ModelError
from inc_tb.records import Trial
from inc_tb.tuning.attempt import Attempt, key_of
from inc_tb.tuning.strategies.workbench import Workbench

_FRUITLESS = 1000


class Point(NamedTuple):
    """Which of the settings, and for each op whether it stays in fp32."""

    settings: int
    keeps: tuple[bool, ...]


class Space(NamedTuple):
    settings: Sequence[Mapping[str, Any]]
    ops: Sequence[str]

    def attempt(self, point: Point) -> Attempt:
        kept = tuple(op for op, is_kept in zip(self.ops, point.keeps, strict=True) if is_kept)
        return Attempt(self.settings[point.settings], kept)


def first_made(
    bench: Workbench, settings: Mapping[str, Any] | None = None
) -> Generator[Attempt, Trial, tuple[Attempt, Trial] | None]:
    """Everything in int8 with these settings or the tool's own, or the first others by which it can quantize at all."""
    for chosen in (settings or bench.quantizer.settings, *bench.quantizer.variants()):
        attempt = Attempt(chosen)
        trial = yield attempt
        if _is_made(bench, attempt):
            return attempt, trial
    return None


def opened(bench: Workbench) -> Generator[Attempt, Trial, tuple[Space, Point, Trial] | None]:
    """The space, and the point that every strategy tries first: everything in int8."""
    made = yield from first_made(bench)
    if made is None:
        return None
    attempt, trial = made
    space = Space([bench.quantizer.settings, *bench.quantizer.variants()], bench.units(attempt))
    return space, Point(space.settings.index(attempt.settings), (False,) * len(space.ops)), trial


class Draws:
    """Points at random, none twice."""

    def __init__(self, space: Space, seed: int, first: Point) -> None:
        self._space = space
        self._random = np.random.default_rng(seed)
        self._drawn = {key_of(space.attempt(first))}

    def is_new(self, point: Point) -> bool:
        """Asked once for each point: it counts as drawn from then on."""
        key = key_of(self._space.attempt(point))
        is_new = key not in self._drawn
        self._drawn.add(key)
        return is_new

    def next(self) -> Point | None:
        """Sets of every size are equally likely; None where there seems to be nothing left."""
        for _ in range(_FRUITLESS):
            point = self._draw()
            if self.is_new(point):
                return point
        return None

    def _draw(self) -> Point:
        ops = len(self._space.ops)
        kept = set(self._random.permutation(ops)[: self._random.integers(ops + 1)].tolist())
        return Point(int(self._random.integers(len(self._space.settings))), tuple(at in kept for at in range(ops)))


def _is_made(bench: Workbench, attempt: Attempt) -> bool:
    """Whether the tool can quantize so; the accuracy may be no number all the same."""
    try:
        bench.quantized(attempt)
    except ModelError:
        return False
    return True
