"""How much of a run of MXNet the ops of its profile account for: 85 to 115 % are wanted.

.venv-mxnet/bin/python -m benchmarks.mxnet_times [--runs 20] [--repeats 5]
"""

from __future__ import annotations

import argparse

import inc_tb
from inc_tb.frameworks.mxnet.library import mx
from tests.mxnet import zoo


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    network = zoo.nn.HybridSequential(prefix="wide_")
    with network.name_scope():
        network.add(*(zoo.nn.Conv2D(32, 3, padding=1, activation="relu") for _ in range(4)))
    network.initialize(mx.init.Xavier())
    network.hybridize()
    network(mx.nd.zeros((8, 32, 32, 32)))
    batch = {"data": zoo.np.random.default_rng(0).random((8, 32, 32, 32), zoo.np.float32)}
    for _ in range(arguments.repeats):
        found = inc_tb.profile(network, [batch], runs=arguments.runs)
        print(f"{found.total.fp32_us / 1000:.2f} ms a run, of which ops take {found.accounted['fp32']:.3f}", flush=True)


if __name__ == "__main__":
    main()
