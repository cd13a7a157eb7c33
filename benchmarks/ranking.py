"""Whether the first suggestion of a probe is the best pair of ops to keep in fp32, on networks with one defect each.

    python -m benchmarks.ranking [--cases 20] [--kind "clipped range"] [--first 0]

The networks are those of tests/defects.py. The best pair is found by trial: the network is quantized anew by ONNX
Runtime for every pair of its units, and the error at the output is measured on samples that nothing else sees. A case
counts only if that gives a clear answer, whatever the probe says.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import logging
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
from onnxruntime.quantization import quantize_static

import inc_tb
from tests.defects import KINDS, Case, made, outputs, samples

LOST, CLEARLY, REPAIRED = 0.03, 2.0, 3.0
"""int8 loses this much of the output's variance; the best pair leaves less error than one unit and than other pairs by
this factor; and not more than this many times the error of the network without the defect."""
Pair = tuple[str, ...]


@dataclass
class Truth:
    healthy: float
    full: float
    singles: dict[str, float]
    pairs: dict[Pair, float]

    @classmethod
    def of(cls, case: Case) -> Truth:
        healthy, full = error(replace(case, fp32=case.healthy, ranges={})), error(case)
        if full < LOST:
            return cls(healthy, full, {}, {})
        singles = {unit: error(case, [unit]) for unit in case.units}
        pairs: dict[Pair, float] = {pair: error(case, pair) for pair in itertools.combinations(case.units, 2)}
        return cls(healthy, full, singles, pairs)

    @property
    def best(self) -> Pair:
        return min(self.pairs, key=lambda pair: self.pairs[pair])

    @property
    def dropped(self) -> str:
        """Why there is no clear answer; empty if there is."""
        if self.full < LOST:
            return "loses little"
        left = self.pairs[self.best]
        others = [other for pair, other in self.pairs.items() if not set(pair) & set(self.best)]
        if min(self.singles.values()) < CLEARLY * left:
            return "one unit does as much"
        if min(others) < CLEARLY * left:
            return "another pair does as much"
        return "takes more than a pair" if left > REPAIRED * self.healthy else ""


def quantized(case: Case, keep: Sequence[str] = ()) -> onnx.ModelProto:
    reader = SimpleNamespace(get_next=functools.partial(next, iter([{"input": samples("calibration")}]), None))
    ranges = {name: np.array(ends, np.float32) for name, ends in case.ranges.items()}
    options = {"TensorQuantOverrides": {name: [{"rmin": a, "rmax": b}] for name, (a, b) in ranges.items()}}
    with tempfile.TemporaryDirectory() as folder, _quiet():
        source, target = Path(folder, "fp32.onnx"), Path(folder, "int8.onnx")
        onnx.save(case.fp32, source)
        quantize_static(
            source, target, reader, per_channel=case.per_channel, nodes_to_exclude=list(keep), extra_options=options
        )
        return onnx.load(target)


def error(case: Case, keep: Sequence[str] = ()) -> float:
    """At the output, relative to how much that varies, with these units kept in fp32."""
    own, int8 = case.expected, outputs(quantized(case, keep), samples("truth"))[0]
    return float(np.square(int8 - own).sum() / np.square(own - own.mean(axis=0)).sum())


def answers(case: Case) -> dict[str, Pair]:
    """What the first suggestion of a probe keeps in fp32, and the worst two units by other rankings."""
    found = inc_tb.probe(case.fp32, quantized(case), {"input": samples("probe")})
    diagnosis = found.diagnosis
    suggested = diagnosis.suggestions[0].ops if diagnosis.suggestions else []
    by = {"probe": tuple(op for op in case.units if op in suggested)}
    for column in ("a_inc_mse", "a_sqnr_db", "added_sqnr_db"):
        names = [str(diagnosis.ops["name"][row]) for row in diagnosis.worst(sort=column)]
        by[column] = tuple([name for name in names if name in case.units][:2])
    by["sensitivity"] = tuple(effect.name for effect in found.units[:2])
    return by


@contextmanager
def _quiet() -> Iterator[None]:
    before = logging.root.level
    logging.root.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.root.setLevel(before)


@dataclass
class Result:
    case: Case
    truth: Truth
    answers: dict[str, Pair]

    def is_hit(self, ranking: str) -> bool:
        return set(self.answers[ranking]) == set(self.truth.best)

    def line(self) -> str:
        left, mine = self.truth.pairs[self.truth.best], self.answers["probe"]
        told = "hit" if self.is_hit("probe") else f"MISS, keeps {short(mine)}: {error(self.case, mine):.5f} left"
        return (
            f"{self.case.kind:18}{self.case.seed:>4}  {self.case.network:12}{short(self.case.culprits):36}"
            f"{short(self.truth.best):36}{self.truth.full:8.3f}{left:9.5f}  {told}"
        )


def short(units: Sequence[str]) -> str:
    return " + ".join(unit.strip("/").rsplit("/", 1)[0] for unit in units) or "nothing"


def results(kinds: Sequence[str], first: int, count: int, dropped: Counter[str]) -> Iterator[Result]:
    """The kinds take turns, so that each has its share of the cases that count."""
    seeds = {kind: itertools.count(first) for kind in kinds}
    for kind in itertools.islice(itertools.cycle(kinds), count):
        for seed in seeds[kind]:
            case = made(kind, seed)
            truth = Truth.of(case)
            if not truth.dropped:
                yield Result(case, truth, answers(case))
                break
            dropped[f"{kind}: {truth.dropped}"] += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--kind", choices=list(KINDS), action="append")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    arguments = parser.parse_args()
    kinds = arguments.kind or list(KINDS)
    print(f"{'defect':18}seed  {'network':12}{'spoilt':36}{'best pair by trial':36}    int8     pair  first suggestion")
    found, dropped = [], Counter[str]()
    for result in results(kinds, arguments.first, arguments.cases, dropped):
        found.append(result)
        print(result.line(), flush=True)
    rankings = list(found[0].answers)
    print(f"\n{'hits':18}{'cases':>6}" + "".join(f"{name:>15}" for name in rankings))
    for kind in [*kinds, "all"]:
        some = [result for result in found if kind in (result.case.kind, "all")]
        hits = [sum(result.is_hit(name) for result in some) for name in rankings]
        print(f"{kind:18}{len(some):>6}" + "".join(f"{count:>15}" for count in hits))
    print(f"\n{sum(dropped.values())} more cases had no clear answer:")
    for reason, count in sorted(dropped.items()):
        print(f"{count:>4}  {reason}")


if __name__ == "__main__":
    main()
