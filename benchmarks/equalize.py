"""Outlier channels injected into networks, and what is left of their harm when all of it stays in int8.

    python -m benchmarks.equalize [--seeds 8] [--framework onnx]

One channel of a layer is scaled up and divided back in the layers that read it, at every place or at random ones, which
changes nothing in fp32. The rewrites are then found on calibration data, and all ops are quantized, with one scale a
tensor. Cured: at least 90 % of the error at the output is gone that the channel has brought, on samples that nothing
else sees. A case counts only if the channel makes the error at least 1.5 times that of the healthy network in int8.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from inc_tb import OnnxRuntimeQuantizer, TorchQuantizer
from inc_tb.frameworks.models import open_results
from inc_tb.frameworks.registry import framework_of
from tests import defects, torch_defects
from tests.outliers import INJECTED, ONNX_INJECTED, as_onnx, injected, lost, samples

HARMED, CURED = 1.5, 0.9
FACTORS = (400.0, 100.0, 1000.0, 50.0)


class Case(NamedTuple):
    family: str
    healthy: Any
    spoilt: Any
    calibration: Any
    held_out: Any


class Result(NamedTuple):
    healthy: float
    before: float
    after: float
    changed: float
    """The largest difference of an fp32 output, relative to the largest output."""
    found_s: float

    @property
    def is_harmed(self) -> bool:
        return self.before >= HARMED * self.healthy

    @property
    def is_cured(self) -> bool:
        return self.before - self.after >= CURED * (self.before - self.healthy)


def onnx_cases(seeds: int) -> Iterator[Case]:
    """Networks trained on digits, written as ONNX by hand; and untrained ones as torch's exporter writes them."""
    for seed in range(4 * seeds):
        case = defects.made("outlier channel", seed)
        data, held_out = ({"input": defects.samples(part)} for part in ("calibration", "truth"))
        yield Case(f"onnx {case.network}", case.healthy, case.fp32, data, held_out)
    for seed in range(seeds):
        for kind, made, read in ONNX_INJECTED:
            pair = [as_onnx(injected(kind, made, read, seed % 7, factor)) for factor in (1.0, FACTORS[seed % 4])]
            yield Case(f"onnx exported {kind.__name__.lower()}", *pair, samples(kind, seed), samples(kind, seed + 1000))


def torch_cases(seeds: int) -> Iterator[Case]:
    for seed in range(4 * seeds):
        case = torch_defects.made("outlier channel", seed)
        data, held_out = ({"image": defects.samples(part)} for part in ("calibration", "truth"))
        yield Case(f"torch {case.network}", case.healthy, case.fp32, data, held_out)
    for seed in range(seeds):
        for kind, made, read in INJECTED:
            pair = [injected(kind, made, read, seed % 7, factor) for factor in (1.0, FACTORS[seed % 4])]
            yield Case(f"torch {kind.__name__.lower()}", *pair, samples(kind, seed), samples(kind, seed + 1000))


def tried(case: Case) -> Result:
    framework = framework_of(case.spoilt)
    began = time.perf_counter()
    rewrites = framework.find_rewrites(case.spoilt, [case.calibration])
    found_s = time.perf_counter() - began
    cured = framework.apply_rewrites(case.spoilt, rewrites)
    own = open_results(case.spoilt)(case.held_out)[0]
    changed = float(np.abs(open_results(cured)(case.held_out)[0] - own).max() / np.abs(own).max())
    errors = [lost(own, open_results(quantized(model, case))(case.held_out)[0]) for model in (*case[1:3], cured)]
    return Result(*errors, changed, found_s)


def quantized(model: Any, case: Case) -> Any:
    is_onnx = case.family.startswith("onnx")
    tool: Any = OnnxRuntimeQuantizer() if is_onnx else TorchQuantizer(approach="static", per_channel=False)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "int8.onnx")
        prepared = tool.prepare(model, Path(folder, "fp32"))
        made = tool.quantize(prepared, target, [case.calibration], tool.settings, [])
        if not is_onnx:
            return made
        import onnx

        return onnx.load(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--framework", choices=("onnx", "torch"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # what torch's exporter tells of packages that are not there
    found: dict[str, list[Result]] = {}
    cases = [] if options.framework == "torch" else [onnx_cases(options.seeds)]
    cases += [] if options.framework == "onnx" else [torch_cases(options.seeds)]
    for case in itertools.chain(*cases):
        found.setdefault(case.family, []).append(tried(case))
    print(
        f"{'network':26}{'cases':>6}{'harmed':>8}{'cured':>7}{'healthy':>10}{'before':>9}{'after':>9}  fp32 differs by"
    )
    for family, results in sorted(found.items()):
        print(line(family, results))
    print(line("all", [result for results in found.values() for result in results]))


def line(family: str, results: list[Result]) -> str:
    harmed = [result for result in results if result.is_harmed]
    cured = sum(result.is_cured for result in harmed)
    errors = [np.median([getattr(r, name) for r in harmed or results]) for name in ("healthy", "before", "after")]
    told = "".join(f"{error:>9.5f}" for error in errors)
    changed = max(result.changed for result in results)
    return f"{family:26}{len(results):>6}{len(harmed):>8}{cured:>7} {told}  at most {changed:.1g}"


if __name__ == "__main__":
    main()
