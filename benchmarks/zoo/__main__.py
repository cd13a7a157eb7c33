"""What quantize_static does to the networks of the zoo, as it comes.

python -m benchmarks.zoo [--cache build/zoo] [--only NAME]
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from pathlib import Path

import onnx

from benchmarks.zoo import networks, quantize


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path("build/zoo"))
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    print(f"{'':24}{'ops':>6}{'fp32':>10}{'int8':>10}{'quantize, s':>14}{'evaluate, s':>14}")
    for network in networks(arguments.cache, arguments.only):
        if network.model.suffix != ".onnx":
            continue
        ops, fp32 = len(onnx.load(network.model).graph.node), network.evaluate(network.model)
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            int8 = quantize(network.model, Path(folder, "int8.onnx"), network.calibration)
            middle = time.perf_counter()
            accuracy, end = network.evaluate(int8), time.perf_counter()
        times = f"{middle - start:14.1f}{end - middle:14.1f}"
        print(f"{network.name:24}{ops:6}{fp32:10.4f}{accuracy:10.4f}{times}", flush=True)


if __name__ == "__main__":
    main()
