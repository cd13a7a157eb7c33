"""What one subset costs: the switchable model against the fp32 model as it ships, on the same batch, in turns.

    python -m benchmarks.probe [--cache build/zoo] [--only NAME]

Also how far the simulation of all int8 is from the quantized model itself, both against fp32.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime

from benchmarks.tune import hard, quantizer
from benchmarks.zoo import Network, networks
from inc_tb.frameworks.onnx.switch import OnnxSwitches
from inc_tb.search.simulation import Simulation

ROUNDS = 7


def in_turns(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median seconds of each, one after the other in every round, so that noise hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: float(np.median(some)) for name, some in times.items()}


def measure(network: Network, folder: Path) -> str:
    tool, int8 = quantizer(network), folder / "int8.onnx"
    tool.quantize(network.model, int8, network.calibration, tool.settings, [])
    switches = OnnxSwitches(network.model, int8)
    simulation = Simulation(switches, network.calibration, samples=8)
    batch, everything = simulation.batches[0], [site.name for site in switches.sites]
    half = list(np.random.default_rng(0).choice(everything, len(everything) // 2, replace=False))
    options = onnxruntime.SessionOptions()  # threads of one session that spin after a run would disturb the next one
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    fp32 = onnxruntime.InferenceSession(str(network.model), options, providers=["CPUExecutionProvider"])
    found = in_turns(
        {
            "fp32": lambda: fp32.run(None, dict(batch)), "off": lambda: switches.run(batch, ()),
            "half": lambda: switches.run(batch, half), "on": lambda: switches.run(batch, everything),
        }
    )  # fmt: skip
    ratios = "".join(f"{found[name] / found['fp32']:>8.2f}" for name in ("off", "half", "on"))
    compared = simulation.compare()
    errors = "".join(f"{compared[form].error:>12.4g}" for form in ("simulated", "real"))
    return f"{network.name:22}{len(switches.units):>7}{len(everything):>7}{1000 * found['fp32']:>9.1f}{ratios}{errors}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path("build/zoo"))
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    print(f"{'':22}{'':>14}{'fp32':>9}{'times fp32, rounded':>24}{'error of the output':>24}")
    print(f"{'':22}{'units':>7}{'sites':>7}{'ms':>9}{'none':>8}{'half':>8}{'all':>8}{'simulated':>12}{'real':>12}")
    for network in (hard(), *networks(arguments.cache)):
        if arguments.only in network.name:
            with tempfile.TemporaryDirectory() as folder:
                print(measure(network, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
