"""What one subset costs: the switchable model against the fp32 model as it ships, on the same batch, in turns.

    python -m benchmarks.probe [--cache build/zoo] [--only NAME]

Also how far the simulation of all int8 is from the quantized model itself, both against fp32.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnxruntime

from benchmarks.zoo import networks, quantize
from benchmarks.zoo.network import Batch
from inc_tb.demo import load_digits
from inc_tb.frameworks.onnx.switch import OnnxSwitches
from inc_tb.search.simulation import Simulation

ROUNDS, MOST = 7, 50


def in_turns(calls: Mapping[str, Callable[[], object]], seconds: float = 0.0) -> dict[str, list[float]]:
    """The seconds of each, one after the other in every round, so that noise hits all alike.

    Some rounds, and so many `seconds` for each of the calls if it takes less than that.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    began, rounds = time.perf_counter(), 0
    while rounds < ROUNDS or (rounds < MOST and time.perf_counter() - began < seconds * len(calls)):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
        rounds += 1
    return times


def hard() -> tuple[Path, list[Batch]]:
    """A small CNN whose first two convolutions share two channels that int8 cannot take, and digits."""
    images, _, held_out = load_digits()
    return Path("tests/data/hard.onnx"), [{"input": rows} for rows in np.array_split(images[~held_out][:200], 10)]


def measure(name: str, model: Path, calibration: list[Batch], folder: Path, *, per_channel: bool = False) -> str:
    int8 = quantize(model, folder / "int8.onnx", calibration, per_channel=per_channel)
    switches = OnnxSwitches(model, int8)
    simulation = Simulation(switches, calibration, samples=8)
    batch, everything = simulation.batches[0], [site.name for site in switches.sites]
    half = list(np.random.default_rng(0).choice(everything, len(everything) // 2, replace=False))
    options = onnxruntime.SessionOptions()  # threads of one session that spin after a run would disturb the next one
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    fp32 = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    times = in_turns(
        {
            "fp32": lambda: fp32.run(None, dict(batch)), "off": lambda: switches.run(batch, ()),
            "half": lambda: switches.run(batch, half), "on": lambda: switches.run(batch, everything),
        }
    )  # fmt: skip
    found = {name: float(np.median(some)) for name, some in times.items()}
    ratios = "".join(f"{found[name] / found['fp32']:>8.2f}" for name in ("off", "half", "on"))
    compared = simulation.compare()
    errors = "".join(f"{compared[form].error:>12.4g}" for form in ("simulated", "real"))
    return f"{name:22}{len(switches.units):>7}{len(everything):>7}{1000 * found['fp32']:>9.1f}{ratios}{errors}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path("build/zoo"))
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    print(f"{'':22}{'':>14}{'fp32':>9}{'times fp32, rounded':>24}{'error of the output':>24}")
    print(f"{'':22}{'units':>7}{'sites':>7}{'ms':>9}{'none':>8}{'half':>8}{'all':>8}{'simulated':>12}{'real':>12}")
    with tempfile.TemporaryDirectory() as folder:
        if arguments.only in "hard.onnx":
            print(measure("hard.onnx", *hard(), Path(folder), per_channel=True), flush=True)
        for network in networks(arguments.cache, arguments.only):
            if network.model.suffix == ".onnx":
                print(measure(network.name, network.model, network.calibration, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
