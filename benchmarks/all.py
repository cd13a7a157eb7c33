"""Every goal for speed, in one table: what is measured, the goal, the figure, and how it compares.

    python -m benchmarks.all [--only PART,…] [--cache build/zoo] [--json FILE]

At most ten minutes. Figures are ratios of times in one run, medians of turns that are taken alternately. Beside other
work the processor's time of this process is the one to trust, so each row has both: "wall" as the clock says, "cpu" as
Linux counts it. Networks are real ones where `python -m benchmarks.zoo` has left them in the cache, made ones else.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx

import inc_tb
from benchmarks import diagnose as against_qdq
from benchmarks import stats as kernel
from benchmarks.models import images, make_cnn, quantize
from benchmarks.times import mobile, transformer
from benchmarks.zoo.network import open_onnx
from inc_tb.frameworks.onnx.switch import OnnxSwitches
from inc_tb.search.simulation import Simulation

ROOT = Path(__file__).resolve().parents[1]
TURNS, SAMPLES = 2, 32
LEAST_OPS = 80
ZOO = ("MiniLM-L6 encoder", "Magika", "PP-OCRv4 recognizer", "PP-LCNet orientation")


class Row(NamedTuple):
    part: str
    what: str
    goal: float
    wall: float | None
    cpu: float | None
    unit: str = "x"
    is_least: bool = False
    """The goal is to be reached, not to be kept."""

    @property
    def met(self) -> bool | None:
        """By the processor's time; by the clock where that is all there is."""
        found = self.wall if self.cpu is None else self.cpu
        if found is None:
            return None
        return found >= self.goal if self.is_least else found <= self.goal


class Times(NamedTuple):
    wall: float
    cpu: float


def timed(work: Callable[[], object]) -> Times:
    """Of this process and those that it waits for."""
    wall, cpu = time.perf_counter(), _cpu()
    work()
    return Times(time.perf_counter() - wall, _cpu() - cpu)


def _cpu() -> float:
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + others.ru_utime + others.ru_stime


def in_turns(works: Mapping[str, Callable[[], object]], turns: int = TURNS) -> dict[str, Times]:
    """Medians, after one turn to warm up."""
    found: dict[str, list[Times]] = {name: [] for name in works}
    for turn in range(turns + 1):
        for name, work in works.items():
            took = timed(work)
            found[name] += [took] if turn else []
    return {name: Times(*map(statistics.median, zip(*some, strict=True))) for name, some in found.items()}


def ratio(part: str, what: str, goal: float, above: Times, below: Times, *, is_least: bool = False) -> Row:
    return Row(part, what, goal, above.wall / below.wall, above.cpu / below.cpu, is_least=is_least)


def networks(cache: Path, folder: Path) -> Iterator[tuple[str, Path, Path, list[dict[str, Any]]]]:
    """Name, fp32, int8 and batches of ONNX networks."""
    from benchmarks.zoo import networks as real
    from benchmarks.zoo import quantize as quantize_real

    there = [name for name in ZOO if (cache / f"{name}.onnx").exists()]
    for found in real(cache, ",".join(there)) if there else ():
        int8 = quantize_real(found.model, folder / f"{found.name}.int8.onnx", found.calibration)
        yield found.name, found.model, int8, found.calibration
    for name, case in (("made MobileNet", mobile(folder)), ("made transformer", transformer(folder, "static"))):
        batches = [case.batch] * (SAMPLES // len(next(iter(case.batch.values()))))
        yield name, case.fp32, case.int8, batches


def diagnoses(cache: Path, folder: Path) -> Iterator[Row]:
    for name, fp32, int8, batches in networks(cache, folder):
        ops = len(onnx.load(fp32, load_external_data=False).graph.node)
        runs = [open_onnx(model) for model in (fp32, int8)]
        took = in_turns(
            {
                "diagnose": lambda: inc_tb.diagnose(fp32, int8, batches),
                "models": lambda: [run(batch) for run in runs for batch in batches],
            }
        )
        samples = sum(len(next(iter(batch.values()))) for batch in batches)
        goal = 3.0 if ops >= LEAST_OPS else math.nan
        yield ratio("diagnose", f"{name}, {ops} ops, {samples} samples", goal, took["diagnose"], took["models"])


def tensorflow(cache: Path, folder: Path) -> Iterator[Row]:
    from benchmarks.tensorflow import interpreted
    from benchmarks.times import tensorflow_cnn

    case = tensorflow_cnn(folder)
    name, image = next(iter(case.batch.items()))
    given = np.repeat(image, SAMPLES, axis=0)
    runs = [interpreted(path, given) for path in (case.fp32, case.int8)]
    batches = [{name: one[None]} for one in given]
    took = in_turns(
        {"diagnose": lambda: inc_tb.diagnose(case.fp32, case.int8, batches), "models": lambda: [run() for run in runs]}
    )
    yield ratio("tensorflow", f"TFLite CNN, {SAMPLES} samples", 3.0, took["diagnose"], took["models"])


def qdq(cache: Path, folder: Path) -> Iterator[Row]:
    for name, case in against_qdq.CASES.items():
        for size in (1, 8):
            ours, theirs = against_qdq.works(case, size, folder)
            took = in_turns({"ours": ours, "theirs": theirs}, turns=2)
            yield ratio("qdq", f"qdq_loss_debug / diagnose: {name}, batch {size}", 2.0, took["theirs"], took["ours"],
                        is_least=True)  # fmt: skip


def statistics_kernel(cache: Path, folder: Path) -> Iterator[Row]:
    for label, one, two in kernel.measured(repeats=2):
        yield Row("kernel", f"{label}, one thread", 8.0, one.wall, one.cpu)
        yield Row("kernel", f"{label}, two threads", 4.5, two.wall, two.cpu)


def simulated(cache: Path, folder: Path) -> Iterator[Row]:
    for name, fp32, int8, batches in networks(cache, folder):
        switches = OnnxSwitches(fp32, int8)
        batch = Simulation(switches, batches, samples=8).batches[0]
        names = [site.name for site in switches.sites]
        half = list(np.random.default_rng(0).choice(names, len(names) // 2, replace=False))
        run = open_onnx(fp32)
        took = in_turns({"subset": lambda: switches.run(batch, half), "fp32": lambda: run(dict(batch))}, turns=5)
        yield ratio("simulation", f"one subset / fp32: {name}", 2.0, took["subset"], took["fp32"])


def command_line(cache: Path, folder: Path) -> Iterator[Row]:
    np.savez(folder / "toy.npz", input=np.zeros((1, 1, 8, 8), np.float32))
    hard = ROOT / "tests/data/hard.onnx"
    quantize(hard, folder / "toy.int8.onnx", np.random.default_rng(0).random((16, 1, 8, 8), np.float32), "input")
    start = [sys.executable, "-m", "inc_tb.start"]
    toy = [hard, folder / "toy.int8.onnx", "--data", folder / "toy.npz", "--logdir", folder / "logs", "--run", "toy"]
    calls = {"help": [*start, "--help"], "toy": [*start, "diagnose", *toy, "--append"]}
    calls["nothing"] = [sys.executable, "-c", "import onnxruntime, onnx, numpy"]
    subprocess.run([*start, "diagnose", *toy], check=True, capture_output=True)
    took = in_turns(
        {n: lambda c=call: subprocess.run(c, check=True, capture_output=True) for n, call in calls.items()}, turns=3
    )
    yield Row("start", "help of inc-tb", 0.25, *took["help"], unit="s")
    yield Row("start", "diagnose of a toy", 0.4, *took["toy"], unit="s")
    yield Row("start", "of which loading onnxruntime, onnx and numpy", math.nan, *took["nothing"], unit="s")


def tuning(cache: Path, folder: Path) -> Iterator[Row]:
    """Everything that a tuning does, over what its tool and the user's evaluation take."""
    inside: list[Times] = []

    def counted(work: Callable[[], Any]) -> Any:
        found = []
        inside.append(timed(lambda: found.append(work())))
        return found[0]

    class Counted(inc_tb.OnnxRuntimeQuantizer):
        def quantize(self, *given: Any) -> None:
            counted(lambda: super(Counted, self).quantize(*given))

    model, data = make_cnn(folder / "tuned.onnx", size=32, width=16, blocks=4), images(256, 32)
    wanted = open_onnx(model)({"image": data})[0].argmax(-1)

    def evaluate(path: Any) -> float:
        return float(counted(lambda: (open_onnx(path)({"image": data})[0].argmax(-1) == wanted).mean()))

    given = {"quantizer": Counted(), "logdir": folder / "tuned", "probe_s": 5.0, "tolerance": 0.0, "objectives": ()}
    whole = timed(lambda: inc_tb.tune(model, [{"image": data[:32]}], evaluate, max_trials=8, batch_sizes=[], **given))
    alone = Times(sum(t.wall for t in inside), sum(t.cpu for t in inside))
    yield ratio("tune", f"tune / its {len(inside)} quantizations and evaluations", 1.5, whole, alone)


def page(cache: Path, folder: Path) -> Iterator[Row]:
    """With a tenth of the runs: writing all of them takes longer than everything else here."""
    from benchmarks import page as measured

    measured.write_runs(folder / "page", 10, 20_000, 40)
    with measured.serve(folder / "page", "--reload_interval=0") as server, measured.open_browser() as browser:
        measured.wait_until_loaded(server, 10)
        looks = {
            "time series": (f"{server.url}?tagFilter=trial/accuracy#timeseries", measured.series_shown),
            "first rows": (f"{server.url}#quantization&p.quantization.view=ops", measured.rows_shown),
        }
        took = {name: [measured.first_sight(browser, *look) for _ in range(TURNS)] for name, look in looks.items()}
        median = {name: statistics.median(some) for name, some in took.items()}
    yield Row("page", "first rows of 20,000 ops / first card of Time Series", 0.6,
              median["first rows"] / median["time series"], None)  # fmt: skip


def growth(cache: Path, folder: Path) -> Iterator[Row]:
    """The exponent: 1 is linear, less is better. Of what is four times as much, both beyond the fixed part."""

    def diagnosis(size: int, width: int, blocks: int, samples: int) -> Callable[[], object]:
        at = folder / f"grown-{size}-{width}-{blocks}"
        at.mkdir(exist_ok=True)
        fp32, data = make_cnn(at / "fp32.onnx", size=size, width=width, blocks=blocks), images(samples, size)
        int8 = quantize(fp32, at / "int8.onnx", data[:8])
        batches = [data[i : i + 16] for i in range(0, samples, 16)]
        return lambda: inc_tb.diagnose(fp32, int8, batches)

    cases = {
        "samples": ((32, 16, 2, 128), (32, 16, 2, 512)), "ops": ((4, 4, 64, 8), (4, 4, 256, 8)),
        "tensor size": ((64, 16, 2, 32), (128, 16, 2, 32)),
    }  # fmt: skip
    for name, (little, much) in cases.items():
        took = in_turns({"little": diagnosis(*little), "much": diagnosis(*much)}, turns=2)
        found = (math.log(took["much"][i] / took["little"][i], 4) for i in range(2))
        yield Row("growth", f"time of a diagnosis with {name}", 1.05, *found, unit="power")


PARTS: dict[str, Callable[[Path, Path], Iterator[Row]]] = {
    "kernel": statistics_kernel, "diagnose": diagnoses, "tensorflow": tensorflow, "qdq": qdq, "simulation": simulated,
    "start": command_line, "tune": tuning, "growth": growth, "page": page,
}  # fmt: skip


def shown(row: Row) -> str:
    sign = "≥" if row.is_least else "≤"
    goal = "" if math.isnan(row.goal) else f"{sign} {row.goal:g}"
    figures = "".join(f"{'' if found is None else f'{found:.2f}':>8}" for found in (row.wall, row.cpu))
    met = {True: "yes", False: "no", None: ""}[row.met] if goal else ""
    return f"{row.what:66}{goal:>8}{figures}  {row.unit:6}{met}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--cache", type=Path, default=Path("build/zoo"))
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    rows: list[Row] = []
    print(f"{'':66}{'goal':>8}{'wall':>8}{'cpu':>8}", flush=True)
    for part in given.only.split(","):
        with tempfile.TemporaryDirectory() as folder:
            try:
                for row in PARTS[part](given.cache, Path(folder)):
                    rows.append(row)
                    print(shown(row), flush=True)
            except (ImportError, SystemExit) as error:
                print(f"{part}: left out: {error}", flush=True)
    if given.json is not None:
        found = [{**row._asdict(), "goal": None if math.isnan(row.goal) else row.goal, "met": row.met} for row in rows]
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
