"""Small networks with a defect that no single edge explains; tests/defects.py has those that one does.

A chain through attention, two causes that must both go, boxes and scores in one output, an attention mask in one range
with the scores, and a norm that subtracts two large numbers which are nearly equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.defects import _HUGE, Case, _between, _Net, _outlier_channels, _scale, trained

_MASKED = -3.4e38
_BOX = 300.0


def made(kind: str, seed: int) -> Case:
    """One defect of this kind; what and how badly follows from the seed."""
    random = np.random.default_rng([list(CHAINED).index(kind), seed, 7])
    return CHAINED[kind](seed, random)


def _case(kind: str, seed: int, network: str, healthy: onnx.ModelProto) -> Case:
    spoilt = onnx.ModelProto()
    spoilt.CopyFrom(healthy)
    return Case(kind, seed, network, healthy, spoilt, per_channel=bool(seed % 2))


def _attention(seed: int, random: np.random.Generator) -> Case:
    """Values with an outlier channel, which attention mixes and the projection undoes."""
    case = _case("attention chain", seed, "transformer", trained("transformer", seed % 2))
    nodes = {node.name: node for node in case.fp32.graph.node}
    channel, factor = int(random.integers(16)), _between(random, *_HUGE)
    _scale(case.fp32, nodes["/v/MatMul"], channel, factor)
    _scale(case.fp32, nodes["/project/MatMul"], channel, 1 / factor, reads=True)
    case.culprits, case.how = ("/v/MatMul", "/mixed/MatMul", "/project/MatMul"), f"a channel x {factor:.0f}"
    return case


def _two_causes(seed: int, random: np.random.Generator) -> Case:
    """Either alone is enough to lose the output."""
    network = str(random.choice(["residual", "depthwise", "mlp"]))
    case = _case("two causes", seed, network, trained(network, seed % 2))
    first, how = _outlier_channels(case, random)
    ends = {first.producer.name, first.consumer.name}
    while True:
        second = onnx.ModelProto()
        second.CopyFrom(case.fp32)
        tried = Case("two causes", seed, network, case.fp32, second, case.per_channel)
        link, more = _outlier_channels(tried, random)
        if not ends & {link.producer.name, link.consumer.name}:
            break
    case.fp32 = second
    case.culprits, case.how = (*ends, link.producer.name, link.consumer.name), f"{how}; {more}"
    return case


def _detector(seed: int, random: np.random.Generator) -> Case:
    """Four numbers of a box up to 300 and three scores up to 1 for every place, side by side."""

    def model(size: float) -> onnx.ModelProto:
        net = _Net(seed)
        x = net.relu(net.conv("stem", "input", (12, 1, 3)))
        x = net.relu(net.conv("body", x, (16, 12, 3)))
        boxes, scores = net.conv("boxes", x, (4, 16, 1)), net.conv("scores", x, (3, 16, 1))
        net.weights["boxes.weight"] *= size
        parts = [boxes, net.op("Sigmoid", "shares", scores)]
        result = net.op("Concat", "found", *(parts if seed % 2 else parts[::-1]), axis=1)
        return _finished(net, "detector", result, ["N", 7, 8, 8])

    case = _case("boxes and scores", seed, "detector", model(1.0))
    factor = _between(random, 100, _BOX)
    case.fp32 = model(factor)
    case.culprits, case.how = ("/found/Concat",), f"boxes x {factor:.0f}"
    return case


def _mask(seed: int, random: np.random.Generator) -> Case:
    """Scores that are not to be seen get -3.4e38, which no softmax tells from -30."""

    def model(masked: float) -> onnx.ModelProto:
        net = _Net(seed)
        net.weights["rows.shape"] = np.array([-1, 8, 8])
        mask = np.zeros((8, 8), np.float32)
        mask[np.triu_indices(8, 1)] = masked
        net.weights["mask"] = mask
        x = net.matmul("embed", net.op("Reshape", "rows", "input", "rows.shape"), 8, 16)
        q, k, v = (net.matmul(name, x, 16, 16) for name in "qkv")
        scores = net.op("MatMul", "scores", q, net.op("Transpose", "turned", k, perm=[0, 2, 1]))
        seen = net.op("Softmax", "attention", net.op("Add", "masked", scores, "mask"), axis=-1)
        x = net.matmul("project", net.op("MatMul", "mixed", seen, v), 16, 16)
        return _finished(net, "masked", x, ["N", 8, 16])

    case = _case("mask", seed, "masked", model(-10.0))
    case.fp32 = model(_MASKED if seed % 2 else -_between(random, 1e4, 1e9))
    case.culprits, case.how = ("/masked/Add", "/attention/Softmax"), "a mask of huge numbers"
    return case


def _variance(seed: int, random: np.random.Generator) -> Case:
    """A norm written as E[x²] - E[x]², of numbers whose mean is much larger than their spread."""

    def model(shift: float) -> onnx.ModelProto:
        net = _Net(seed)
        net.weights |= {"rows.shape": np.array([-1, 8, 8]), "shift": np.full(16, shift, np.float32)}
        net.weights["epsilon"] = np.array(1e-3, np.float32)
        x = net.matmul("embed", net.op("Reshape", "rows", "input", "rows.shape"), 8, 16)
        x = net.op("Add", "shifted", x, "shift")
        mean = net.op("ReduceMean", "mean", x, axes=[2])
        square = net.op("ReduceMean", "square.mean", net.op("Mul", "square", x, x), axes=[2])
        spread = net.op("Sub", "variance", square, net.op("Mul", "mean.square", mean, mean))
        spread = net.op("Sqrt", "deviation", net.op("Add", "above", net.op("Relu", "positive", spread), "epsilon"))
        x = net.op("Div", "normed", net.op("Sub", "centered", x, mean), spread)
        return _finished(net, "norm", net.matmul("project", x, 16, 10), ["N", 8, 10])

    case = _case("variance", seed, "norm", model(0.0))
    factor = _between(random, 10, 60)
    case.fp32 = model(factor)
    case.culprits, case.how = ("/variance/Sub", "/square/Mul"), f"a mean of {factor:.0f}"
    return case


def _finished(net: _Net, name: str, result: str, shape: list[str | int]) -> onnx.ModelProto:
    graph = helper.make_graph(
        net.nodes, name, [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", 1, 8, 8])],
        [helper.make_tensor_value_info(result, TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(v, k) for k, v in net.weights.items() if any(k in node.input for node in net.nodes)],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


CHAINED: Mapping[str, Callable[[int, np.random.Generator], Case]] = {
    "attention chain": _attention, "two causes": _two_causes, "boxes and scores": _detector, "mask": _mask,
    "variance": _variance,
}  # fmt: skip
