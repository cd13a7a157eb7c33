"""The table of MXNet's guide to quantization with Neural Compressor, on a residual network that is trained here.

    python examples/mxnet_resnet.py [LOGDIR]

The guide's ResNet-50 v2 falls from 0.77 to 0.22 with naive calibration; one symbol in fp32 cures it. Here two channels
inside the first block are made 300 and 100 times as large, and the weights behind them as much smaller: nothing changes
in fp32, and int8 has nothing left for the other channels. (The notes of the diagnosis tell of something that MXNet does
by itself: the sum of the first block loses its sign.) `basic` and `mse` are Neural Compressor's strategies, which try
symbols one by one; `probe` searches in a simulation first. Every trial and every row of the table is a run in LOGDIR,
side by side in the Trials tab; the recipe at the end has the symbols as MXNet calls them.
"""

import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

if np.lib.NumpyVersion(np.__version__) >= "1.24.0":
    np.bool = bool  # MXNet wants it
import mxnet as mx

import inc_tb
from inc_tb.demo import load_digits

EPOCHS, BATCH, CALIBRATION, CHANNELS, TOLERANCE = 12, 32, 192, 16, 0.015
REPEATS = 30
FIRST_BLOCK, OUTLIERS = 3, (300, 100)
STATIC = {"static_alloc": True, "static_shape": True}  # for every row of the table, so that their times compare
nn = mx.gluon.nn


class Block(nn.HybridBlock):
    """Version 2 of residual networks: normalize and cut off first, convolve then; nothing is cut off after the sum."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        with self.name_scope():
            self.norm1, self.conv1 = nn.BatchNorm(), nn.Conv2D(channels, 3, padding=1, use_bias=False)
            self.norm2, self.conv2 = nn.BatchNorm(), nn.Conv2D(channels, 3, padding=1, use_bias=False)

    def hybrid_forward(self, F: object, x: object) -> object:  # noqa: N803  # as gluon calls it
        y = self.conv1(F.Activation(self.norm1(x), act_type="relu"))
        return x + self.conv2(F.Activation(self.norm2(y), act_type="relu"))


def made() -> nn.HybridSequential:
    network = nn.HybridSequential(prefix="net_")
    with network.name_scope():
        network.add(nn.Conv2D(CHANNELS, 3, padding=1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
        network.add(Block(CHANNELS), nn.MaxPool2D(), Block(CHANNELS))
        network.add(nn.BatchNorm(), nn.Activation("relu"), nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(10))
    return network


def trained(images: np.ndarray, labels: np.ndarray) -> nn.HybridSequential:
    mx.random.seed(0)
    network, order = made(), np.random.default_rng(0)
    network.initialize(mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2))
    network.hybridize()
    trainer = mx.gluon.Trainer(network.collect_params(), "adam", {"learning_rate": 0.003})
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    for _ in range(EPOCHS):
        for rows in np.array_split(order.permutation(len(images)), len(images) // BATCH):
            with mx.autograd.record():
                lost = loss(network(mx.nd.array(images[rows])), mx.nd.array(labels[rows]))
            lost.backward()
            trainer.step(len(rows))
    return network


def with_outliers(network: nn.HybridSequential) -> nn.HybridSequential:
    """The same function in fp32: inside the first block ReLU(k·x) = k·ReLU(x), and the next weights divide by k."""
    block = network[FIRST_BLOCK]
    factors = np.ones(CHANNELS, np.float32)
    factors[: len(OUTLIERS)] = OUTLIERS
    for parameter in (block.norm2.gamma, block.norm2.beta):
        parameter.set_data(parameter.data() * mx.nd.array(factors))
    block.conv2.weight.set_data(block.conv2.weight.data() / mx.nd.array(factors.reshape(1, -1, 1, 1)))
    return network


def accuracies(network: object, images: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Top-1 and top-5."""
    ranked = np.argsort(-network(mx.nd.array(images)).asnumpy(), axis=1)
    return float((ranked[:, 0] == labels).mean()), float((ranked[:, :5] == labels[:, None]).any(1).mean())


def fastest(networks: list[object], images: np.ndarray) -> list[float]:
    """The shortest of some validations in seconds; in turns, so that other work on the machine hits all alike."""
    data = mx.nd.array(images)
    times = [[timed(lambda n=network: n(data).asnumpy())[1] for network in networks] for _ in range(REPEATS)]
    return list(map(min, zip(*times, strict=True)))


def timed(work: Callable[[], object]) -> tuple[object, float]:
    start = time.perf_counter()
    return work(), time.perf_counter() - start


def main(logdir: Path) -> None:
    warnings.filterwarnings("ignore", "Cannot decide type", UserWarning)
    images, labels, left = load_digits()
    network = with_outliers(trained(images[~left], labels[~left]))
    network.hybridize(**STATIC)
    network(mx.nd.array(images[:1]))
    calibration = [{"data": rows} for rows in np.array_split(images[~left][:CALIBRATION], CALIBRATION // BATCH)]

    def evaluate(candidate: object) -> float:
        """On the images that the table shows: all that were not trained with."""
        return accuracies(candidate, images[left], labels[left])[0]

    rows: dict[str, tuple[object, float]] = {"fp32 no optimization": (network, 0.0)}

    def fused() -> object:
        network.export(str(logdir / "fp32"))
        block = mx.gluon.SymbolBlock.imports(
            str(logdir / "fp32-symbol.json"), ["data"], str(logdir / "fp32-0000.params")
        )
        block.hybridize(backend="MKLDNN", **STATIC)
        return block

    logdir.mkdir(parents=True, exist_ok=True)
    rows["fp32 fused"] = timed(fused)
    for mode in ("full", "smart"):
        for calibrated in ("naive", "entropy"):
            tool = inc_tb.MxnetQuantizer(calibration=calibrated, quantize_mode=mode)
            rows[f"int8 {mode} {calibrated}"] = timed(lambda tool=tool: quantized(tool, network, calibration, logdir))
    found = {}
    for strategy in ("basic", "mse", "probe"):
        tool = inc_tb.MxnetQuantizer(quantize_mode="smart")
        found[strategy], cost_s = timed(
            lambda strategy=strategy, tool=tool: inc_tb.tune(
                network, calibration, evaluate, tolerance=TOLERANCE, strategy=strategy, quantizer=tool,
                logdir=logdir / strategy,
            )
        )  # fmt: skip
        rows[f"int8 {strategy}"] = shown(tool, found[strategy].quantized), cost_s
    kept = {f"int8 {strategy}": tuned.best.fallback for strategy, tuned in found.items()}
    show(rows, kept, images[left], labels[left], logdir / "table")
    for strategy, tuned in found.items():
        names = ", ".join(tuned.best.fallback) or "nothing"
        print(f"{strategy}: {len(tuned.trials)} trials, {'met' if tuned.met else 'not met'}, kept in fp32: {names}")
    print(f"\n{found['probe'].recipe}\n\ntensorboard --logdir {logdir}")


def quantized(tool: inc_tb.MxnetQuantizer, network: object, calibration: list[object], logdir: Path) -> object:
    folder = logdir / "models" / "-".join(str(value) for value in tool.settings.values())
    tool.quantize(tool.prepare(network, folder), folder / "int8", calibration, tool.settings, ())
    return shown(tool, folder / "int8")


def shown(tool: inc_tb.MxnetQuantizer, model: object) -> object:
    block = tool.shown(model)
    block.hybridize(**STATIC)
    return block


def show(
    rows: dict[str, tuple[object, float]],
    kept: dict[str, list[str]],
    images: np.ndarray,
    labels: np.ndarray,
    logdir: Path,
) -> None:
    """The columns of the guide, and each row as a trial beside the others."""
    times = fastest([network for network, _ in rows.values()], images)
    found = {
        name: (*accuracies(network, images, labels), took_s, cost_s)
        for (name, (network, cost_s)), took_s in zip(rows.items(), times, strict=True)
    }
    top1, top5, slowest_s, _ = found["fp32 no optimization"]
    print(f"{'':<36}relative loss %")
    print("method                top-1   top-5  top-1  top-5   cost s  valid. ms  speed-up")
    for name, (first, fifth, took_s, cost_s) in found.items():
        losses, speedup = (100 * (top1 - first) / top1, 100 * (top5 - fifth) / top5), slowest_s / took_s
        lost = "".join(f"{loss:7.2f}" for loss in losses)
        print(f"{name:<20} {first:.4f}  {fifth:.4f}{lost} {cost_s:8.2f} {1000 * took_s:10.1f} {speedup:9.1f}")
        measures = {"top5": fifth, "cost_s": cost_s, "validation_ms": 1000 * took_s, "speed_up": speedup}
        measures |= {"top1_loss_percent": losses[0], "top5_loss_percent": losses[1]}
        trial = inc_tb.Trial(
            name, first, top1, kept.get(name, []), {"method": name}, measures, target=top1 * (1 - TOLERANCE)
        )
        with inc_tb.SummaryWriter(logdir / name.replace(" ", "-")) as writer:
            writer.add_trial(trial)
    print()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "nc_workspace"))
