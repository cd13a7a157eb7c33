"""Small networks of gluon, and what quantize_net makes of them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from inc_tb.frameworks.mxnet.library import mx
from tests.frameworks.contracts import tiny

nn = mx.gluon.nn
Array = np.ndarray[Any, Any]
SHAPE = (1, 8, 8)


class Block(nn.HybridBlock):
    """Of residual networks, in their second version (nothing is cut off after the sum) or the first."""

    def __init__(self, channels: int, version: int) -> None:
        super().__init__()
        self.version = version
        with self.name_scope():
            self.norm1, self.conv1 = nn.BatchNorm(), nn.Conv2D(channels, 3, padding=1, use_bias=False)
            self.norm2, self.conv2 = nn.BatchNorm(), nn.Conv2D(channels, 3, padding=1, use_bias=False)

    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: N803
        if self.version == 2:
            y = self.conv1(F.Activation(self.norm1(x), act_type="relu"))
            return x + self.conv2(F.Activation(self.norm2(y), act_type="relu"))
        y = F.Activation(self.norm1(self.conv1(x)), act_type="relu")
        return F.Activation(x + self.norm2(self.conv2(y)), act_type="relu")


class Branches(nn.HybridBlock):
    """Two convolutions side by side, joined."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.left, self.right = (nn.Conv2D(4, size, padding=size // 2, activation="relu") for size in (1, 3))

    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: N803
        return F.concat(self.left(x), self.right(x), dim=1)


class Twice(nn.HybridBlock):
    """One layer, called two times."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.conv = nn.Conv2D(1, 3, padding=1, activation="relu")

    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: N803
        return self.conv(self.conv(x))


class TwoInputs(nn.HybridBlock):
    """Tokens and an image."""

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix=prefix)
        with self.name_scope():
            self.words, self.left, self.right = nn.Embedding(20, 8), nn.Dense(8, flatten=False), nn.Dense(8)
            self.norm, self.end = nn.LayerNorm(), nn.Dense(10)

    def hybrid_forward(self, F: Any, tokens: Any, image: Any) -> Any:  # noqa: N803
        seen = F.mean(self.norm(self.left(self.words(tokens))), axis=1)
        return self.end(F.Activation(seen + self.right(image), act_type="relu"))


def residual(version: int = 2) -> list[Any]:
    stem = [nn.Conv2D(8, 3, padding=1, use_bias=False), nn.BatchNorm(), nn.Activation("relu")]
    return [*stem, Block(8, version), Block(8, version), nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(10)]


NETS = {
    "residual": residual,
    "residual-1": lambda: residual(1),
    "depthwise": lambda: [
        nn.Conv2D(8, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.Conv2D(8, 3, padding=1, groups=8),
        nn.BatchNorm(), nn.Activation("relu"), nn.Conv2D(12, 1), nn.MaxPool2D(), nn.Flatten(), nn.Dense(10),
    ],
    "dense": lambda: [nn.Flatten(), nn.Dense(24, activation="relu"), nn.Dense(16, activation="relu"), nn.Dense(10)],
    "concat": lambda: [Branches(), nn.Conv2D(6, 3), nn.Flatten(), nn.Dense(10)],
    "twice": lambda: [Twice(), nn.Flatten(), nn.Dense(10)],
}  # fmt: skip


def images(count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).random((count, *SHAPE)).astype(np.float32)


def made(name: str, prefix: str = "net_") -> Any:
    """With weights that are the same each time, and batch norms that do something."""
    network = nn.HybridSequential(prefix=prefix)
    with network.name_scope():
        network.add(*NETS[name]())
    network.initialize()
    network.hybridize()
    network(mx.nd.array(images(2)))
    rng = np.random.default_rng(7)
    for parameter in network.collect_params().values():
        parameter.set_data(mx.nd.array(_values(parameter.name, parameter.shape, rng)))
    return network


def _values(name: str, shape: Sequence[int], rng: np.random.Generator) -> Array:
    if name.endswith("weight"):
        return rng.normal(size=shape) * np.sqrt(2 / np.prod(shape[1:]))
    if name.endswith(("gamma", "running_var")):
        return rng.uniform(0.5, 1.5, shape)
    return rng.normal(size=shape) * 0.1


def with_outliers(network: Any, factors: Sequence[float] = (300, 100)) -> Any:
    """The same function in fp32; int8 has nothing left for the other channels inside the first block."""
    block = network[3]
    scale = np.ones(8, np.float32)
    scale[: len(factors)] = factors
    for parameter in (block.norm2.gamma, block.norm2.beta):
        parameter.set_data(parameter.data() * mx.nd.array(scale))
    block.conv2.weight.set_data(block.conv2.weight.data() / mx.nd.array(scale.reshape(1, -1, 1, 1)))
    return network


def with_small_branch(network: Any) -> Any:
    """What the second block adds is small, so that its sum has the signs of the first."""
    weight = network[4].conv2.weight
    weight.set_data(weight.data() * 0.004)
    return network


def loss_module(kind: str, rank: int = 2, **settings: Any) -> Any:
    """That ends with one of MXNet's losses, on scores with so many axes."""
    scores = mx.sym.Convolution(mx.sym.var("data"), num_filter=6, kernel=(3, 3), name="conv")
    shape = {2: (0, -1), 3: (0, 0, -1), 4: (0, 0, 0, 0)}[rank]
    symbol = getattr(mx.sym, kind)(mx.sym.reshape(scores, shape=shape), name="loss", **settings)
    shapes = dict(zip(symbol.list_arguments(), symbol.infer_shape(data=(4, *SHAPE))[0], strict=True))
    module = mx.mod.Module(symbol, label_names=["loss_label"])
    module.bind([("data", shapes["data"])], [("loss_label", shapes["loss_label"])], for_training=False)
    module.init_params(mx.init.Xavier())
    return module


def loader(count: int = 16, batch: int = 8) -> Any:
    """As quantize_net wants calibration data."""
    data = mx.gluon.data.ArrayDataset(mx.nd.array(images(count)), mx.nd.zeros(count))
    return mx.gluon.data.DataLoader(data, batch_size=batch)


def quantized(network: Any, calibration: str = "naive", **settings: Any) -> Any:
    """By MXNet's own function, as a user calls it."""
    shapes = [mx.io.DataDesc("data", (8, *SHAPE))]
    given = {"data_shapes": shapes} if calibration == "none" else {"calib_data": loader()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mx.contrib.quantization.quantize_net_v2(network, calib_mode=calibration, **given, **settings)


@cache
def pair(name: str, calibration: str = "naive", excluded: tuple[str, ...] = ()) -> tuple[Any, Any]:
    network = made(name)
    return network, quantized(network, calibration, exclude_layers=list(excluded))


def symbol_of(network: Any) -> Any:
    return network(mx.sym.var("data"))


def op_names(network: Any) -> list[str]:
    """As the network's text has them."""
    return [node["name"] for node in json.loads(symbol_of(network).tojson())["nodes"] if node["op"] != "null"]


def results(network: Any, data: Array) -> Array:
    """As gluon runs it."""
    return np.asarray(network(mx.nd.array(data)).asnumpy())


def tokens(count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 20, (count, 5)).astype(np.float32)


@cache
def two_inputs() -> tuple[Any, Any]:
    network = TwoInputs(prefix="two_")
    network.initialize()
    network.hybridize()
    network(mx.nd.array(tokens(2)), mx.nd.array(images(2)))
    rng = np.random.default_rng(7)
    for parameter in network.collect_params().values():
        parameter.set_data(mx.nd.array(_values(parameter.name, parameter.shape, rng)))
    data = mx.gluon.data.ArrayDataset(mx.nd.array(tokens(16)), mx.nd.array(images(16)), mx.nd.zeros(16))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = mx.gluon.data.DataLoader(data, batch_size=8)
        return network, mx.contrib.quantization.quantize_net_v2(network, calib_data=loaded, calib_mode="naive")


class TinyNet(nn.HybridBlock):
    def __init__(self) -> None:
        super().__init__(prefix="net_")
        with self.name_scope():
            for name, weights in tiny.WEIGHTS.items():
                rows, columns = weights.shape
                setattr(self, name, nn.Dense(rows, use_bias=False, in_units=columns, prefix=f"{name}_"))

    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: N803
        x = F.relu(self.first(x), name="relu")
        return F.softmax(self.second(x), name="softmax"), self.side(x)


TINY_NAMES = {
    "first": "net_first_fwd", "relu": "net_relu", "second": "net_second_fwd", "softmax": "net_softmax",
    "side": "net_side_fwd",
}  # fmt: skip


@cache
def tiny_pair() -> tuple[Any, Any]:
    network = TinyNet()
    network.initialize()
    for name, weights in tiny.WEIGHTS.items():
        getattr(network, name).weight.set_data(mx.nd.array(weights))
    network.hybridize()
    network(mx.nd.array(tiny.X))
    data = mx.gluon.data.ArrayDataset(mx.nd.array(tiny.X), mx.nd.zeros(len(tiny.X)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = mx.gluon.data.DataLoader(data, batch_size=len(tiny.X))
        return network, mx.contrib.quantization.quantize_net_v2(network, calib_data=loaded, calib_mode="naive")
