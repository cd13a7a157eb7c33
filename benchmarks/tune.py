"""All strategies on the same networks: what they keep in fp32, what accuracy that gives, and what it takes.

    python -m benchmarks.tune [--cache build/zoo] [--only NAME] [--patience 2.5] [--strategies probe,basic,mse,mse_v2]

The networks with real weights are those of benchmarks/zoo.py. A strategy that has not met the criterion after
--patience times the seconds of the first one is stopped, and its line says how far it was; a minute it always has.
"""

from __future__ import annotations

import argparse
import logging
import math
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import inc_tb
from benchmarks.zoo import Network, networks
from inc_tb.demo import load_digits
from inc_tb.tuning.loop import Tuned

_NAMES = {"quant_format": "format", "calibrate_method": "calibrator"}


def hard() -> Network:
    """A small CNN whose first two convolutions share two channels that int8 cannot take; held-out digits."""
    images, labels, held_out = load_digits()
    pictures, right = images[held_out], labels[held_out]

    def evaluate(path: str | Path) -> float:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return float((session.run(None, {"input": pictures})[0].argmax(1) == right).mean())

    batches = [{"input": rows} for rows in np.array_split(images[~held_out][:200], 10)]
    return Network("hard.onnx", Path("tests/data/hard.onnx"), batches, evaluate, {"per_channel": True})


def quantizer(network: Network) -> Any:
    settings = {_NAMES.get(name, name): value for name, value in network.settings.items()}
    if "calibrator" in settings:
        settings["calibrator"] = settings["calibrator"].lower()
    return inc_tb.OnnxRuntimeQuantizer(preprocess=False, **settings)


def tuned(network: Network, strategy: str, limit: float) -> tuple[Tuned, float]:
    """Without diagnoses in the log, which would cost the strategies with many trials more."""
    folder = Path(tempfile.mkdtemp())
    start = time.perf_counter()
    with stopped_after(limit):
        found = inc_tb.tune(
            network.model, network.calibration, network.evaluate, strategy=strategy, quantizer=quantizer(network),
            objectives=(), logdir=folder, diagnosis_samples=0, max_trials=10_000,
        )  # fmt: skip
    took = time.perf_counter() - start
    shutil.rmtree(folder)
    return found, took


class stopped_after:  # noqa: N801  reads as a phrase
    """As Ctrl-C does it: the tuning ends with the best so far."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __enter__(self) -> None:
        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        self.before: Any = signal.signal(signal.SIGALRM, interrupt)
        if math.isfinite(self.seconds):
            signal.setitimer(signal.ITIMER_REAL, self.seconds)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.before)


def chosen(arguments: argparse.Namespace) -> Iterator[Network]:
    yield hard()
    yield from networks(arguments.cache)


def report(network: Network, strategy: str, found: Tuned, took: float, show: Callable[[str], None]) -> None:
    best = found.best
    met = "yes" if found.met else "stopped" if "interrupted" in found.reason else "no"
    accuracy = f"{best.accuracy:.4f}" if best.accuracy is not None else "none"
    show(
        f"  {strategy:8}{met:>9}{accuracy:>10}{len(best.fallback):>8}{len(found.trials):>8}"
        f"{found.quantizations:>8}{found.evaluations:>8}{found.simulations:>8}{took:>9.1f}  {changed(network, found)}"
    )


def changed(network: Network, found: Tuned) -> str:
    """Settings of the best trial that are not those of the network."""
    own = quantizer(network).settings
    return ", ".join(f"{k}={v}" for k, v in found.best.config.items() if own[k] != v)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path("build/zoo"))
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    parser.add_argument("--patience", type=float, default=2.5)
    parser.add_argument("--strategies", default="probe,basic,mse,mse_v2")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    for network in chosen(arguments):
        if not any(part in network.name for part in arguments.only.split(",")):
            continue
        ops = len(onnx.load(network.model).graph.node)
        print(f"{network.name}, {ops} ops, fp32 {network.evaluate(network.model):.4f}", flush=True)
        print("                met  accuracy    fp32  trials  quant.   eval.    sim.  seconds", flush=True)
        limit = math.inf
        for strategy in arguments.strategies.split(","):
            found, took = tuned(network, strategy, limit)
            limit = max(60.0, arguments.patience * took) if math.isinf(limit) else limit
            report(network, strategy, found, took, lambda line: print(line, flush=True))


if __name__ == "__main__":
    main()
