"""What a diagnosis and a probe of PyTorch models cost, against running the models.

    python -m benchmarks.torch [--only NAME] [--repeats 3]

A diagnosis is allowed 4 times the time of both models' own forward passes over the same batches, and 1.5 times the peak
memory of running both once. Times are taken in turns in one process, peaks in turns in processes of their own; the
figures are medians over the turns. "least" is the ratio of the shortest times, which other work on the machine changes
less; "runs" is the ratio of the peaks since the models were made, which takes memory of its own. The probe is one unit
in a simulation of 8 samples, against fp32's forward pass.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
if __name__ in ("__main__", "torch"):
    # The folder of a script is where Python looks first: `import torch` there finds this file, not the package.
    looked_in = list(sys.path)
    sys.path[:] = [str(ROOT), *(place for place in looked_in if Path(place).resolve() != ROOT / "benchmarks")]
    if __name__ == "torch":
        del sys.modules["torch"]
        importlib.import_module("torch")
        sys.path[:] = looked_in

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import inc_tb  # noqa: E402
from inc_tb.frameworks.models import open_switches  # noqa: E402
from inc_tb.search.simulation import Simulation  # noqa: E402

SAMPLES = 64
PROBED = 8
MOST_TIME, MOST_MEMORY = 4.0, 1.5


class Models(NamedTuple):
    reference: nn.Module
    quantized: nn.Module
    inputs: dict[str, Tensor]

    def batches(self, size: int) -> list[dict[str, Tensor]]:
        parts = {name: values.split(size) for name, values in self.inputs.items()}
        return [dict(zip(parts, batch, strict=True)) for batch in zip(*parts.values(), strict=True)]


class Block(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.relu1, self.relu2 = nn.ReLU(), nn.ReLU()
        is_same = stride == 1 and channels == width
        shortcut = [] if is_same else [nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width)]
        self.shortcut = nn.Sequential(*shortcut)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))
        return self.relu2(y + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet-18: 11.7 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()
        self.pool = nn.MaxPool2d(3, 2, 1)
        widths, strides = (64, 64, 64, 128, 128, 256, 256, 512, 512), (1, 1, 2, 1, 2, 1, 2, 1)
        sizes = zip(widths, widths[1:], strides, strict=False)
        self.blocks = nn.Sequential(*(Block(*size) for size in sizes))
        self.fc = nn.Linear(512, 1000)

    def forward(self, image: Tensor) -> Tensor:
        x = self.blocks(self.pool(self.relu(self.bn(self.conv(image)))))
        return self.fc(x.mean(dim=(2, 3)))


def bert() -> Models:
    from transformers import BertConfig, BertForSequenceClassification

    reference = BertForSequenceClassification(BertConfig()).eval()
    quantized = torch.ao.quantization.quantize_dynamic(reference, {nn.Linear})
    return Models(reference, quantized, {"input_ids": torch.randint(0, 30000, (SAMPLES, 128))})


def resnet(approach: str) -> Models:
    tool = inc_tb.TorchQuantizer(approach=approach, calibrator="minmax")
    reference, images = ResNet().eval(), torch.randn(SAMPLES, 3, 128, 128)
    calibration = [{"image": images[:8].numpy()}]
    return Models(reference, tool.quantize(reference, Path(), calibration, tool.settings, []), {"image": images})


CASES: dict[str, Callable[[], Models]] = {
    "BERT-base, dynamic": bert,
    "ResNet-18, FX": lambda: resnet("static"),
    "ResNet-18, PT2E": lambda: resnet("pt2e"),
}


def peak_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def forward(model: nn.Module, batches: list[dict[str, Tensor]]) -> None:
    with torch.no_grad():
        for batch in batches:
            model(**batch)


def run_both(models: Models, size: int) -> dict[str, float]:
    batches = models.batches(size)
    forward(models.reference, batches)
    forward(models.quantized, batches)
    return {}


def diagnose(models: Models, size: int) -> dict[str, float]:
    inc_tb.diagnose(models.reference, models.quantized, models.batches(size))
    return {}


def compare_times(models: Models, size: int) -> dict[str, float]:
    batches = models.batches(size)
    return {
        "fp32": seconds(lambda: forward(models.reference, batches)),
        "int8": seconds(lambda: forward(models.quantized, batches)),
        "diagnose": seconds(lambda: inc_tb.diagnose(models.reference, models.quantized, batches)),
    }


def probe(models: Models, size: int) -> dict[str, float]:
    """Median over units, one at a time and each in turn with the reference."""
    batches = models.batches(size)[:1]
    simulation = Simulation(open_switches(models.reference, models.quantized), batches, samples=size)
    units = [unit.name for unit in simulation.model.units if simulation.sites_of(unit.name)]
    ratios = []
    for unit in units[:: max(1, len(units) // 7)]:
        own = seconds(lambda: forward(models.reference, batches))
        ratios.append(seconds(lambda: simulation.errors(simulation.sites_of(unit))) / own)
    return {"probe": median(ratios), "units": len(units)}


TASKS = {"both": run_both, "diagnose": diagnose, "times": compare_times, "probe": probe}


def measure(task: str, case: str, size: int, repeats: int) -> Iterator[dict[str, float]]:
    """In this process."""
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    models = CASES[case]()
    for model in models[:2]:
        forward(model, models.batches(1)[:1])
    before = peak_mib()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    for _ in range(repeats):
        found = TASKS[task](models, size)
        yield {**found, "runs": peak_mib(), "peak": max(before, peak_mib())}


def measured(task: str, case: str, size: int, repeats: int = 1) -> list[dict[str, float]]:
    """In a process of its own."""
    options = {"--measure": task, "--only": case, "--size": str(size), "--repeats": str(repeats)}
    command = [sys.executable, "-m", "benchmarks.torch", *(part for option in options.items() for part in option)]
    # Waiting threads that spin slow down a busy machine: the models' own passes, in one thread and its helpers, most of
    # all, so that a diagnosis would look cheaper than it is.
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def row(case: str, size: int, repeats: int) -> str:
    times = measured("times", case, size, repeats)
    slower = median(turn["diagnose"] / (turn["fp32"] + turn["int8"]) for turn in times)
    least = {name: min(turn[name] for turn in times) for name in times[0]}
    ratios = f"{slower:8.2f}{least['diagnose'] / (least['fp32'] + least['int8']):8.2f}"
    peaks = [[measured(task, case, size)[0] for task in ("both", "diagnose")] for _ in range(repeats)]
    larger = "".join(f"{median(turn[1][name] / turn[0][name] for turn in peaks):8.2f}" for name in ("peak", "runs"))
    shown = "".join(f"{median(turn[name] for turn in times):9.1f}" for name in ("fp32", "int8", "diagnose"))
    mib = "".join(f"{median(turn[i]['peak'] for turn in peaks):10.0f}" for i in range(2))
    return f"{case}, {SAMPLES // size} x {size}".ljust(28) + f"{shown}{ratios}{mib}{larger}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--size", type=int, help="samples in a batch; both 64 and 8 if it is not given")
    parser.add_argument("--measure", choices=TASKS, help="one measurement in this process, as JSON")
    given = parser.parse_args()
    chosen = [case for case in CASES if given.only in case]
    if given.measure:
        for found in measure(given.measure, chosen[0], given.size, given.repeats):
            print(json.dumps(found), flush=True)
        return
    print(f"{'':28}{'seconds':>27}{'times both':>16}{'peak, MiB':>20}{'times both':>16}")
    names = "fp32", "int8", "diagnose", "median", "least", "both", "diagnose", "peak", "runs"
    widths = 9, 9, 9, 8, 8, 10, 10, 8, 8
    header = "".join(name.rjust(width) for name, width in zip(names, widths, strict=True))
    print(f"{f'{SAMPLES} samples':28}{header}")
    for case in chosen:
        for size in [given.size] if given.size else (SAMPLES, 8):
            print(row(case, size, given.repeats), flush=True)
    print(f"{'at most':28}{MOST_TIME:35.2f}{MOST_MEMORY:36.2f}\n\nprobing one unit with {PROBED} samples")
    for case in chosen:
        turns = [measured("probe", case, PROBED)[0] for _ in range(given.repeats)]
        ratio = median(turn["probe"] for turn in turns)
        print(f"{case:28}{turns[0]['units']:.0f} units, {ratio:.2f} times fp32's forward pass", flush=True)
    print(f"\n{torch.get_num_threads()} threads; {os.getloadavg()[1]:.1f} processes wanted to run at a time")


if __name__ == "__main__":
    main()
