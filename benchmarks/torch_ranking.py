"""benchmarks/ranking.py for PyTorch: whether the first suggestion of a probe is the best op or pair of ops to keep.

    python -m benchmarks.torch_ranking [--cases 8] [--approach static] [--kind residual] [--network mlp] [--first 0]

The networks are those of tests/torch_defects.py. They are quantized anew by torch's own tools for every unit and every
pair of units, and the error at the output is measured on samples that nothing else sees. What one op repairs is a case
for that op, everything else one for a pair. A case counts only if that gives a clear answer, whatever the probe says.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import inc_tb
from benchmarks.ranking import CLEARLY, LOST, REPAIRED, Pair, Truth, short
from inc_tb import TorchQuantizer
from inc_tb.frameworks.models import open_switches
from tests.defects import samples
from tests.torch_defects import KINDS, NETWORKS, Case, calibration, made, outputs, probed

SETTINGS: dict[str, dict[str, Any]] = {
    "static": {"approach": "static"},
    "static per tensor": {"approach": "static", "per_channel": False},
    "pt2e": {"approach": "pt2e"},
    "dynamic per tensor": {"approach": "dynamic", "per_channel": False},
}
NOWHERE = Path("/nonexistent")
TRIES = 12
"""Seeds for one case; some defects leave no clear answer anywhere in a network."""


@dataclass
class TorchTruth(Truth):
    failed: list[Pair] = field(default_factory=list)
    """Sets that torch makes a model of which does not run."""

    @classmethod
    def found(cls, case: Case, settings: str) -> TorchTruth:
        tool, units = Tool(case, settings), []
        healthy, full = Tool(replace(case, fp32=case.healthy), settings).error(), tool.error()
        if full < LOST:
            return cls(healthy, full, {}, {})
        units = tool.units()
        singles = {unit: tool.error(unit) for unit in units}
        pairs: dict[Pair, float] = {pair: tool.error(*pair) for pair in itertools.combinations(units, 2)}
        return cls(healthy, full, singles, pairs, tool.failed)

    @property
    def best(self) -> Pair:
        single, pair = min(self.singles, key=self.singles.__getitem__), min(self.pairs, key=self.pairs.__getitem__)
        enough = max(CLEARLY * self.pairs[pair], REPAIRED * self.healthy)
        return (single,) if self.singles[single] <= enough else pair

    @property
    def left(self) -> float:
        return self.pairs[self.best] if len(self.best) == 2 else self.singles[self.best[0]]

    @property
    def dropped(self) -> str:
        if self.full < LOST:
            return "loses little"
        sets: dict[Pair, float] = self.pairs if len(self.best) == 2 else {(u,): e for u, e in self.singles.items()}
        others = [other for kept, other in sets.items() if not set(kept) & set(self.best)]
        if min(others) < CLEARLY * self.left:
            return "another one does as much"
        return "takes more than a pair" if self.left > REPAIRED * self.healthy else ""


class Tool:
    def __init__(self, case: Case, settings: str) -> None:
        self.case = case
        self.quantizer = TorchQuantizer(**SETTINGS[settings])
        self.ready = self.quantizer.prepare(case.fp32, NOWHERE)
        self.failed: list[Pair] = []

    def quantized(self, *keep: str) -> Any:
        return self.quantizer.quantize(self.ready, NOWHERE, calibration(), self.quantizer.settings, keep)

    def units(self) -> list[str]:
        switches = open_switches(self.ready, self.quantized())
        switches.trace(probed())
        return [unit.name for unit in switches.units]

    def error(self, *keep: str) -> float:
        """At the output, relative to how much that varies, with these units kept in fp32."""
        own = self.case.expected
        try:
            int8 = outputs(self.quantized(*keep), samples("truth"))
        except RuntimeError:  # torch makes models that do not run for some sets
            self.failed.append(keep)
            return np.inf
        return float(np.square(int8 - own).sum() / np.square(own - own.mean(axis=0)).sum())


def answers(case: Case, settings: str, size: int) -> dict[str, Pair]:
    """What the first suggestion of a probe keeps in fp32, and the worst units by other rankings, as many as right."""
    tool = Tool(case, settings)
    found = inc_tb.probe(tool.ready, tool.quantized(), probed())
    diagnosis, units = found.diagnosis, tool.units()
    suggested = diagnosis.suggestions[0].ops if diagnosis.suggestions else []
    by = {"probe": tuple(op for op in units if op in suggested)}
    for column in ("a_inc_mse", "a_sqnr_db", "added_sqnr_db"):
        names = [str(diagnosis.ops["name"][row]) for row in diagnosis.worst(sort=column)]
        by[column] = tuple([name for name in names if name in units][:size])
    by["sensitivity"] = tuple(effect.name for effect in found.units[:size])
    scores = dict(zip(diagnosis.ops["name"], diagnosis.ops["sensitivity_gradient"], strict=True))
    by["gradient"] = tuple(sorted(units, key=lambda unit: -np.nan_to_num(scores[unit], nan=-1.0))[:size])
    return by


@dataclass
class Result:
    case: Case
    settings: str
    truth: TorchTruth
    answers: dict[str, Pair]

    def is_hit(self, ranking: str) -> bool:
        return set(self.answers[ranking]) == set(self.truth.best)

    def line(self) -> str:
        mine = self.answers["probe"]
        told = "hit"
        if not self.is_hit("probe"):
            told = f"MISS, keeps {short(mine)}: {Tool(self.case, self.settings).error(*mine):.5f} left"
        failed = f"; {len(self.truth.failed)} sets do not run" if self.truth.failed else ""
        return (
            f"{self.settings:20}{self.case.kind:18}{self.case.seed:>4}  {self.case.network:12}"
            f"{' + '.join(self.case.culprits):44}{' + '.join(self.truth.best):44}"
            f"{self.truth.full:8.3f}{self.truth.left:9.5f}  {told}{failed}"
        )


def results(
    settings: str, kinds: Sequence[str], network: str, first: int, count: int, dropped: Counter[str]
) -> Iterator[Result]:
    """The kinds take turns, so that each has its share of the cases that count."""
    seeds = {kind: itertools.count(first) for kind in kinds}
    for kind in itertools.islice(itertools.cycle(kinds), count):
        for seed in itertools.islice(seeds[kind], TRIES):
            case = made(kind, seed, network)
            truth = TorchTruth.found(case, settings)
            if not truth.dropped:
                yield Result(case, settings, truth, answers(case, settings, len(truth.best)))
                break
            dropped[f"{settings}, {kind}: {truth.dropped}"] += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=8, help="for each way to quantize")
    parser.add_argument("--approach", choices=list(SETTINGS), action="append")
    parser.add_argument("--kind", choices=list(KINDS), action="append")
    parser.add_argument("--network", choices=["", *NETWORKS], default="")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    ways = arguments.approach or list(SETTINGS)
    print(
        f"{'quantized':20}{'defect':18}seed  {'network':12}{'spoilt':44}{'best by trial':44}    int8     left  "
        "first suggestion"
    )
    found, dropped = [], Counter[str]()
    for settings in ways:
        able = ["huge weights"] if settings.startswith("dynamic") else list(KINDS)
        kinds = [kind for kind in able if not arguments.kind or kind in arguments.kind]
        kinds = [
            kind for kind in kinds if kind != "residual" or not arguments.network or NETWORKS[arguments.network].sums
        ]
        for result in results(settings, kinds, arguments.network, arguments.first, arguments.cases, dropped):
            found.append(result)
            print(result.line(), flush=True)
    rankings = list(found[0].answers)
    print(f"\n{'hits':20}{'cases':>6}" + "".join(f"{name:>15}" for name in rankings))
    for settings in [*ways, "all"]:
        some = [result for result in found if settings in (result.settings, "all")]
        hits = [sum(result.is_hit(name) for result in some) for name in rankings]
        print(f"{settings:20}{len(some):>6}" + "".join(f"{count:>15}" for count in hits))
    print(f"\n{sum(dropped.values())} more cases had no clear answer:")
    for reason, count in sorted(dropped.items()):
        print(f"{count:>4}  {reason}")


if __name__ == "__main__":
    main()
