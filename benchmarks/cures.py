"""What a tuning finds on real networks, judged by samples that it never saw.

    python -m benchmarks.cures [--only NAME] [--peers] [--json FILE] [--cache build/zoo] [--limit 600]
        [--probe-s 60] [--patience 1]

The criterion is 1 %. Half of the samples that are not for calibration steer, the other half is what the accuracies are
of. Latencies are of one sample on one thread, all models in turns, the shortest of each. A tuning is stopped after
--limit seconds, as Ctrl-C does it. With --peers also what others find, see benchmarks/peers.py. The networks are those
of benchmarks/zoo.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from onnxruntime.quantization import QuantType

import inc_tb
from benchmarks import peers
from benchmarks.probe import in_turns
from benchmarks.zoo import Network, networks, quantize
from inc_tb.errors import IncTbError
from inc_tb.frameworks.registry import framework_of

TOLERANCE = 0.01
_SECONDS = 3.0
"""To time each model."""
_MULTIPLIES = ["Conv", "ConvTranspose", "MatMul", "Gemm"]


@dataclass
class Found:
    """One way to quantize a network, and what came of it."""

    how: str
    model: Path | None
    seconds: float = 0.0
    trials: int | None = None
    note: str = ""
    is_plain: bool = False
    """Whether everything that the tool quantizes is in int8, with whatever types."""
    accuracy: float | None = None
    int8_macs: float | None = None
    latency_ms: float | None = None
    tried: list[dict[str, Any]] = field(default_factory=list)
    """The trials of a tuning."""


def plain(network: Network, folder: Path) -> Iterator[Found]:
    """One setting for the whole network, no op by its name: the fastest of these is what a cure is measured by."""
    if network.model.suffix != ".onnx":
        tool = inc_tb.TensorFlowQuantizer()
        prepared = tool.prepare(network.model, folder / "prepared")
        for how, is_per_channel in (("int8", True), ("int8 per tensor", False)):
            settings = {**tool.settings, "per_channel": is_per_channel}
            target = folder / f"{how}.tflite"
            yield timed(how, target, lambda: tool.quantize(prepared, target, network.calibration, settings, []), True)
        return
    ways: dict[str, dict[str, Any]] = {
        "int8": {}, "int8 per channel": {"per_channel": True},
        "signed": {"activation_type": QuantType.QInt8},
        "products per channel": {"op_types_to_quantize": _MULTIPLIES, "per_channel": True},
    }  # fmt: skip
    for how, settings in ways.items():
        target = folder / f"{how}.onnx"
        yield timed(
            how, target, lambda: quantize(network.model, target, network.calibration, **settings), is_plain=True
        )


def timed(how: str, target: Path, work: Callable[[], Any], is_plain: bool = False) -> Found:
    start = time.perf_counter()
    try:
        work()
    except Exception as error:  # noqa: BLE001  tools of others raise anything, and what they say is the result
        return Found(how, None, time.perf_counter() - start, note=peers.first_line(error))
    return Found(how, target, time.perf_counter() - start, is_plain=is_plain)


def ours(network: Network, folder: Path, limit: float, probe_s: float) -> Found:
    """As it comes, but for what is logged."""
    start = time.perf_counter()
    try:
        with peers.stopped_after(limit):
            found = inc_tb.tune(
                network.model, network.calibration, network.evaluate, tolerance=TOLERANCE, logdir=folder / "tuned",
                batch_sizes=[], progress=partial(show, start), probe_s=probe_s,
            )  # fmt: skip
    except (peers.Stopped, IncTbError) as error:
        return Found("our tuning", None, time.perf_counter() - start, note=peers.first_line(error))
    took = time.perf_counter() - start
    tried = found.to_json()["trials"]
    return Found("our tuning", found.model, took, len(found.trials), peers.told(found), tried=tried)


def show(began: float, trial: inc_tb.Trial, is_best: bool) -> None:
    """As it goes, beside the table."""
    told = f"{trial.name}: {trial.accuracy}, {len(trial.fallback)} ops in fp32, {trial.objectives}"
    notes = "; ".join(trial.notes)[:200]
    at = time.perf_counter() - began
    print(f"    {at:6.1f} s {'*' if is_best else ' '} {told} {notes}", file=sys.stderr, flush=True)


def first_suggestion(network: Network, naive: Path, folder: Path) -> Found:
    """Of plain `inc-tb diagnose`, pasted into the tool that made the model."""
    how, start = "1st suggestion", time.perf_counter()
    data = folder / "calibration.npz"
    feeds = network.calibration
    np.savez(data, **{name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]})  # type: ignore[arg-type]
    command = [sys.executable, "-m", "inc_tb.cli", "diagnose", network.model, naive, "--data", data]
    command += ["--logdir", folder / "diagnosed", "--json"]
    ran = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    took = time.perf_counter() - start
    if ran.returncode:
        return Found(how, None, took, note=ran.stderr.strip().rpartition("\n")[2])
    suggestions = json.loads(ran.stdout)["suggestions"]
    if not suggestions:
        return Found(how, None, took, note="nothing is suggested")
    first = suggestions[0]
    tool, recipe = next(iter(first["recipes"].items()))
    target = folder / f"suggested{naive.suffix}"
    made = timed(how, target, lambda: pasted(network, first["ops"], recipe, target, folder))
    return Found(how, made.model, took, note=f"{first['rule']}, {len(first['ops'])} ops, {tool} {made.note}".strip())


def pasted(network: Network, ops: Sequence[str], recipe: str, target: Path, folder: Path) -> None:
    if target.suffix == ".onnx":
        reader = peers.Reader(network.calibration)
        places = {"model_input": network.model, "model_output": target, "calibration_data_reader": reader}
        exec(recipe, places)  # noqa: S102  our own text, run as its user would
        return
    tool = inc_tb.TensorFlowQuantizer()
    prepared = tool.prepare(network.model, folder / "suggested")
    tool.quantize(prepared, target, network.calibration, tool.settings, ops)


def judge(network: Network, found: Sequence[Found]) -> None:
    """Fills in what is measured of every model."""
    framework = framework_of(network.model)
    sample = {name: rows[:1] for name, rows in network.calibration[0].items()}
    macs = framework.count_macs(network.model, sample) if framework.can("count_macs") else {}
    total = sum(each.number for each in macs.values())
    made, runs = {f.how: f for f in found}, {}
    for f in found:
        if f.model is None:
            continue
        try:
            f.accuracy = network.held_out(str(f.model))
            runs[f.how] = network.open(str(f.model), threads=1)
        except Exception as error:  # noqa: BLE001  a runtime raises anything about a model that it cannot run
            f.note = f"{f.note} {peers.first_line(error)}".strip()
            continue
        if total:
            own = framework.count_macs(f.model, sample).values()
            f.int8_macs = min(1.0, sum(each.number for each in own if each.is_integer) / total)
    for how, times in in_turns({how: partial(run, sample) for how, run in runs.items()}, _SECONDS).items():
        made[how].latency_ms = 1000 * min(times)  # whatever else the machine does only makes it longer


def table(network: Network, found: Sequence[Found]) -> Iterator[str]:
    fp32 = found[0]
    fastest = min((f.latency_ms for f in found if f.is_plain and f.latency_ms), default=math.nan)
    yield f"{network.name}: held out, fp32 {fp32.accuracy:.4f}"
    yield f"  {'':22}{'accuracy':>9}{'met':>5}{'MACs':>6}{'/fp32':>7}{'/int8':>7}{'trials':>8}{'seconds':>9}"
    for f in found:
        if f.accuracy is None or f.latency_ms is None:
            yield f"  {f.how:22}{'none':>9}{'':33}{f.seconds:9.1f}  {f.note}"
            continue
        met = "" if f is fp32 else "yes" if f.accuracy >= (1 - TOLERANCE) * (fp32.accuracy or 0.0) else "no"
        macs = f"{f.int8_macs:.2f}" if f.int8_macs is not None else "-"
        ratios = f"{f.latency_ms / (fp32.latency_ms or math.nan):7.2f}{f.latency_ms / fastest:7.2f}"
        numbers = f"{f.accuracy:9.4f}{met:>5}{macs:>6}{ratios}{f.trials or '':>8}{f.seconds:9.1f}"
        yield f"  {f.how:22}{numbers}  {f.note}".rstrip()


def measured(network: Network, arguments: argparse.Namespace) -> list[Found]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        found = [Found("fp32", network.fp32), *plain(network, folder)]
        naive = next((f.model for f in found if f.is_plain and f.model is not None), None)
        if naive is not None:
            found.append(first_suggestion(network, naive, folder))
        found.append(ours(network, folder, arguments.limit, arguments.probe_s))
        if arguments.peers:
            patience = max(30.0, arguments.patience * found[-1].seconds)
            found += [Found(*other) for other in peers.others(network, naive, folder, patience, arguments.cache)]
        judge(network, found)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path("build/zoo"))
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    parser.add_argument("--peers", action="store_true", help="also what other tools find")
    parser.add_argument("--json", type=Path, help="also write all of it there")
    parser.add_argument("--limit", type=float, default=600, help="seconds for a tuning")
    parser.add_argument("--probe-s", type=float, default=60, help="of these for the simulation")
    parser.add_argument("--patience", type=float, default=1.0, help="of the peers, in times what our tuning took")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    everything = {}
    for network in networks(arguments.cache, arguments.only):
        found = measured(network, arguments)
        print("\n".join(table(network, found)), flush=True)
        everything[network.name] = [asdict(f) | {"model": str(f.model)} for f in found]
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
