"""What the first suggestion of `inc-tb diagnose` gives back, pasted into the tool that quantizes.

    python -m benchmarks.first_suggestion [--cases 10] [--kind mask] [--only onnx] [--first 0] [--probe 5]

Small networks of a known culprit (tests/defects.py, tests/chained_defects.py, tests/torch_defects.py), and each of them
without it, where nothing is to be said. They are quantized by ONNX Runtime or PyTorch, diagnosed as the command line
does, and quantized anew with the ops of the first suggestion in fp32. The error is that of the output on samples that
nothing else sees; "back" is the share of what was lost against the network without the defect.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import inc_tb
from benchmarks import ranking, torch_ranking
from inc_tb.advise.configs import is_setting
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.search.brief import BUDGET_S, probe_briefly
from inc_tb.search.objective import Measure
from tests import chained_defects, defects, torch_defects

LOST = 0.03
"""A case counts if int8 loses this much of what the output says."""
BACK = 0.9
TRIES = 20
Settings = dict[str, Any]


class Family(NamedTuple):
    """One kind of case; `quantized` is told the ops to keep in fp32, and whether to give channels their own scales."""

    name: str
    made: Callable[[int], Any]
    quantized: Callable[[Any, Sequence[str], bool], Any]
    run: Callable[[Any], Any]
    probe: Any
    """Samples, as batches."""


class Result(NamedTuple):
    family: str
    seed: int
    where: str
    healthy: float
    before: float
    after: float
    alarms: int
    """Suggestions for the network without the defect."""
    told: str

    @property
    def back(self) -> float:
        lost = self.before - self.healthy
        return (self.before - self.after) / lost if lost > 0 else 1.0

    def line(self) -> str:
        mark = "" if self.back >= BACK else "  MISS"
        alarm = f"  ALARM {self.alarms}" if self.alarms else ""
        return (
            f"{self.family:26}{self.seed:>4}  {self.where:12}{self.healthy:9.4f}{self.before:9.4f}{self.after:9.4f}"
            f"{self.back:8.0%}  {self.told}{mark}{alarm}"
        )


def families(only: str = "") -> Iterator[Family]:
    images = defects.samples("probe")
    if only != "torch":
        for name in (*defects.KINDS, *chained_defects.CHAINED):
            source = defects if name in defects.KINDS else chained_defects
            yield Family(
                f"onnx: {name}", lambda seed, s=source, n=name: s.made(n, seed), _onnx,
                lambda model: defects.outputs(model, defects.samples("truth"))[0], {"input": images},
            )  # fmt: skip
    if only != "onnx":
        for name, settings in itertools.product(torch_defects.KINDS, ("static", "static per tensor", "pt2e")):
            yield Family(
                f"{settings}: {name}", lambda seed, n=name: torch_defects.made(n, seed),
                lambda case, keep, per_channel, s=settings: _torch(case, keep, per_channel, s),
                lambda model: torch_defects.outputs(model, defects.samples("truth")), torch_defects.probed(),
            )  # fmt: skip


def _onnx(case: Any, keep: Sequence[str], per_channel: bool) -> Any:
    return ranking.quantized(replace(case, per_channel=case.per_channel or per_channel), keep)


def _torch(case: Any, keep: Sequence[str], per_channel: bool, settings: str) -> Any:
    tool = torch_ranking.Tool(case, settings)
    told = {**tool.quantizer.settings, **({"per_channel": True} if per_channel else {})}
    return tool.quantizer.quantize(tool.ready, torch_ranking.NOWHERE, torch_defects.calibration(), told, keep)


def result(family: Family, seed: int, budget_s: float) -> Result | None:
    """With so many seconds for the probe, or none; None where int8 loses too little to find anything."""
    case = family.made(seed)
    own = family.run(case.fp32)
    measure = Measure.of([own])

    def error(model: Any) -> float:
        return float(measure.errors(family.run(model), own, len(own)).mean())

    int8 = family.quantized(case, (), False)
    before = error(int8)
    spared = replace(case, fp32=case.healthy, **({"ranges": {}} if hasattr(case, "ranges") else {}))
    well = family.quantized(spared, (), False)
    expected, found = family.run(case.healthy), family.run(well)
    healthy = float(Measure.of([expected]).errors(found, expected, len(own)).mean())
    if before < max(LOST, 4 * healthy):
        return None
    alarms = len(diagnosed(case.healthy, well, family.probe, budget_s).suggestions)
    diagnosis = diagnosed(case.fp32, int8, family.probe, budget_s)
    if not diagnosis.suggestions:
        return Result(family.name, seed, case.network, healthy, before, before, alarms, "no suggestion")
    first = diagnosis.suggestions[0]
    is_set = is_setting(diagnosis.framework, diagnosis.ops, first)
    after = error(family.quantized(case, () if is_set else first.ops, is_set))
    told = f"{first.rule}: {'a setting' if is_set else ranking.short(first.ops)}"
    return Result(family.name, seed, case.network, healthy, before, after, alarms, told)


def diagnosed(model: Any, quantized: Any, batches: Any, budget_s: float) -> Diagnosis:
    found = inc_tb.diagnose(model, quantized, batches)
    return probe_briefly((model, quantized), [batches], found, budget_s, None).diagnosis if budget_s else found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10, help="of each family")
    parser.add_argument("--kind", default="", help="families whose name has this in it")
    parser.add_argument("--only", choices=["onnx", "torch"], default="")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--probe", type=float, default=BUDGET_S, metavar="SECONDS", help="0 is without")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"{'family':26}seed  {'network':12}{'healthy':>9}{'int8':>9}{'cured':>9}{'back':>8}  first suggestion")
    totals: dict[str, list[Result]] = {}
    for family in families(arguments.only):
        if arguments.kind not in family.name:
            continue
        seeds = range(arguments.first, arguments.first + arguments.cases + TRIES)
        tried = (result(family, seed, arguments.probe) for seed in seeds)
        for found in itertools.islice((r for r in tried if r is not None), arguments.cases):
            totals.setdefault(family.name, []).append(found)
            print(found.line(), flush=True)
    print(f"\n{'family':34}{'cases':>6}{'cured':>7}{'alarms':>8}")
    every = [found for some in totals.values() for found in some]
    for name, some in {**totals, "all": every}.items():
        cured = sum(found.back >= BACK for found in some)
        print(f"{name:34}{len(some):>6}{cured:>7}{sum(found.alarms > 0 for found in some):>8}")


if __name__ == "__main__":
    main()
