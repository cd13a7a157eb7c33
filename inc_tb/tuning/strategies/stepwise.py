"""Neural Compressor's strategies that go step by step, in our units: ops, and settings of the tool for all of them."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence

from inc_tb.errors import ModelError
from inc_tb.records import Trial
from inc_tb.search.simulation import Simulation
from inc_tb.tuning.attempt import Attempt, key_of
from inc_tb.tuning.pricing import MULTIPLYING
from inc_tb.tuning.strategies.abreast import abreast
from inc_tb.tuning.strategies.workbench import Attempts, Workbench


def basic(bench: Workbench) -> Attempts:
    """As Neural Compressor's: other settings for all ops, then each op alone in fp32, then the best together."""
    base = yield from _best_settings(bench)
    singles: list[tuple[float, str]] = []
    ops = bench.units(base)
    for op, attempt in zip(ops, abreast(bench, [Attempt(base.settings, (op,)) for op in ops]), strict=True):
        trial = yield attempt
        singles.append((bench.loss(trial), op))
    yield from _accumulated(bench, base, [op for _, op in sorted(singles)])


def mse(bench: Workbench) -> Attempts:
    """As Neural Compressor's: the same, with the ops in the order of their mean squared error."""
    base = yield from _best_settings(bench)
    found = bench.diagnosis(base)
    names = [str(found.ops["name"][row]) for row in found.worst(sort="a_inc_mse")]
    ops = set(bench.units(base))
    order = [name for name in names if name in ops]
    yield from abreast(bench, [Attempt(base.settings, (op,)) for op in order])
    yield from _accumulated(bench, base, order)


def mse_v2(bench: Workbench) -> Attempts:
    """As Neural Compressor's: of all ops, the one whose fp32 brings the output closest joins the set, and so on."""
    base = Attempt(bench.quantizer.settings)
    yield base
    simulation = bench.simulation(base)
    kept: list[str] = []
    left = bench.units(base)
    while left:
        errors = {op: _real_error(bench, Attempt(base.settings, (*kept, op)), simulation) for op in left}
        best = min(left, key=lambda op: errors[op])
        kept.append(best)
        left.remove(best)
        yield Attempt(base.settings, tuple(kept))


def _real_error(bench: Workbench, attempt: Attempt, simulation: Simulation) -> float:
    try:
        return bench.real_error(attempt, simulation)
    except ModelError:
        return math.inf


def _best_settings(bench: Workbench) -> Generator[Attempt, Trial, Attempt]:
    attempts = [Attempt(bench.quantizer.settings), *(Attempt(s) for s in bench.quantizer.variants())]
    losses = []
    for attempt in abreast(bench, attempts):
        trial = yield attempt
        losses.append(bench.loss(trial))
    return attempts[losses.index(min(losses))]


def _accumulated(bench: Workbench, base: Attempt, order: Sequence[str]) -> Attempts:
    yield from abreast(bench, (Attempt(base.settings, tuple(order[:count])) for count in range(2, len(order) + 1)))


def conservative(bench: Workbench) -> Attempts:
    """As Neural Compressor's: from fp32, one type of ops after the other goes to int8 as long as the accuracy holds."""
    yield from _type_by_type(bench)


def auto(bench: Workbench) -> Attempts:
    """As Neural Compressor's: everything in int8, then conservative, then basic, until one of them has found a set."""
    yield from _each_once(_auto(bench))


def _auto(bench: Workbench) -> Attempts:
    trial = yield Attempt(bench.quantizer.settings)
    if bench.is_met(trial):
        return
    if not (yield from _type_by_type(bench)):
        yield from basic(bench)


def _type_by_type(bench: Workbench) -> Generator[Attempt, Trial, bool]:
    """Whether any set has met the criterion."""
    base = Attempt(bench.quantizer.settings)
    ops = bench.units(base)
    quantized: set[str] = set()
    for kind, members in _by_type(bench, base, ops).items():
        wanted = quantized | members
        kept = tuple(op for op in ops if op not in wanted)
        trial = yield Attempt(base.settings, kept, f"{kind} in int8 as well", goes_on=True)
        if bench.is_met(trial):
            quantized = wanted
    return bool(quantized)


def _by_type(bench: Workbench, base: Attempt, ops: Sequence[str]) -> dict[str, set[str]]:
    """The key types first, then others, those with most ops first."""
    table = bench.diagnosis(base).ops
    types = dict(zip(table["name"], table["type"], strict=True))
    found: dict[str, set[str]] = {key: set() for key in MULTIPLYING}
    for op in ops:
        kind = str(types.get(op, ""))
        key = next((key for key in MULTIPLYING if key in kind.lower()), kind)
        found.setdefault(key, set()).add(op)
    others = sorted((key for key in found if key not in MULTIPLYING), key=lambda key: -len(found[key]))
    return {key: found[key] for key in (*MULTIPLYING, *others) if found[key]}


def _each_once(attempts: Attempts) -> Attempts:
    """What comes again is answered without another trial."""
    known: dict[str, Trial] = {}
    try:
        attempt = next(attempts)
        while True:
            key = key_of(attempt)
            if key not in known:
                known[key] = yield attempt
            attempt = attempts.send(known[key])
    except StopIteration:
        return
