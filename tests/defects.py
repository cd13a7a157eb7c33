"""Small networks trained on digits, each with one defect that int8 cannot take.

A CNN with residuals, one with depthwise convolutions, an MLP and a transformer. What is spoilt, where and how badly
follows from a seed; every defect spoils what one unit writes and one other reads, so that both have to stay in fp32.
benchmarks/ranking.py finds the truth about them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from torch.nn import functional

from inc_tb.demo import load_digits

Array = np.ndarray[Any, np.dtype[np.float32]]
PASS_ON = {"Relu", "Flatten", "Reshape", "Transpose", "ReduceMean"}
"""Ops at which ONNX Runtime starts no rounding; all others are units."""
_STEPS = 120
_NARROW, _HUGE = (0.03, 0.5), (10, 300)
"""How small a part of its range is left to a tensor, and how much larger a few values are than all others."""
_NEXT_TO_NOTHING = 0.01


@dataclass
class Case:
    kind: str
    seed: int
    network: str
    healthy: onnx.ModelProto
    fp32: onnx.ModelProto
    per_channel: bool
    culprits: tuple[str, ...] = ()
    how: str = ""
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Tensors that are not rounded by their calibrated range but by this one."""

    @cached_property
    def expected(self) -> Array:
        return outputs(self.fp32, samples("truth"))[0]

    @property
    def units(self) -> list[str]:
        return [node.name for node in self.fp32.graph.node if node.op_type not in PASS_ON]


@dataclass
class Link:
    """What one unit writes and one other reads."""

    producer: onnx.NodeProto
    tensors: list[str]
    """As written, then as passed on, up to what is read."""
    consumer: onnx.NodeProto


@cache
def samples(purpose: str) -> Array:
    images, _, held_out = load_digits()
    parts = {"calibration": images[~held_out][:128], "probe": images[held_out][:32], "truth": images[held_out][32:232]}
    return parts[purpose]


def outputs(model: onnx.ModelProto, images: Array, *tensors: str) -> list[Array]:
    """Of the model, or these tensors instead."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    if tensors:
        del shown.graph.output[:]
        shown.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in tensors)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(shown.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, {"input": images}))


class _Net:
    """A graph as it is written down, layer by layer; every method returns the name of what it computes."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Array] = {}

    def op(self, kind: str, name: str, *inputs: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [name], f"/{name}/{kind}", **attributes))
        return name

    def weight(self, name: str, *shape: int, fan_in: int) -> str:
        self.weights[name] = (self.random.normal(size=shape) * np.sqrt(1.5 / fan_in)).astype(np.float32)
        return name

    def conv(self, name: str, x: str, shape: tuple[int, int, int], group: int = 1, stride: int = 1) -> str:
        out, channels, size = shape
        self.weight(f"{name}.weight", out, channels // group, size, size, fan_in=channels // group * size**2)
        self.weights[f"{name}.bias"] = np.zeros(out, np.float32)
        places = {"kernel_shape": [size] * 2, "pads": [size // 2] * 4, "strides": [stride] * 2}
        return self.op("Conv", name, x, f"{name}.weight", f"{name}.bias", group=group, **places)

    def gemm(self, name: str, x: str, wide: int, out: int) -> str:
        self.weight(f"{name}.weight", out, wide, fan_in=wide)
        self.weights[f"{name}.bias"] = np.zeros(out, np.float32)
        return self.op("Gemm", name, x, f"{name}.weight", f"{name}.bias", transB=1)

    def matmul(self, name: str, x: str, wide: int, out: int) -> str:
        return self.op("MatMul", name, x, self.weight(f"{name}.weight", wide, out, fan_in=wide))

    def relu(self, x: str) -> str:
        return self.op("Relu", f"{x}.relu", x)

    def pooled(self, x: str) -> str:
        return self.op("Flatten", "flat", self.op("GlobalAveragePool", "pool", x))


def _residual(net: _Net) -> str:
    x = net.relu(net.conv("stem", "input", (12, 1, 3)))
    for i, (width, stride) in enumerate([(16, 2), (24, 1)]):
        wide = net.weights["stem.weight"].shape[0] if i == 0 else 16
        inner = net.relu(net.conv(f"block{i}.a", x, (wide, wide, 3)))
        x = net.relu(net.op("Add", f"block{i}.sum", net.conv(f"block{i}.b", inner, (wide, wide, 3)), x))
        x = net.relu(net.conv(f"next{i}", x, (width, wide, 3), stride=stride))
    return net.gemm("head", net.pooled(x), 24, 10)


def _depthwise(net: _Net) -> str:
    x = net.relu(net.conv("stem", "input", (12, 1, 3)))
    for i in range(2):
        inner = net.relu(net.conv(f"block{i}.expand", x, (24, 12, 1)))
        inner = net.relu(net.conv(f"block{i}.depthwise", inner, (24, 24, 3), group=24))
        x = net.op("Add", f"block{i}.sum", net.conv(f"block{i}.project", inner, (12, 24, 1)), x)
        if i == 0:
            x = net.relu(net.conv("down.depthwise", x, (12, 12, 3), group=12, stride=2))
            x = net.conv("down.project", x, (12, 12, 1))
    return net.gemm("head", net.pooled(net.relu(net.conv("last", x, (24, 12, 1)))), 24, 10)


def _mlp(net: _Net) -> str:
    x = net.relu(net.gemm("stem", net.op("Flatten", "flat", "input"), 64, 24))
    for i in range(2):
        inner = net.relu(net.gemm(f"block{i}.a", x, 24, 32))
        x = net.relu(net.op("Add", f"block{i}.sum", net.gemm(f"block{i}.b", inner, 32, 24), x))
        x = net.relu(net.gemm(f"next{i}", x, 24, 24))
    return net.gemm("head", x, 24, 10)


def _transformer(net: _Net) -> str:
    """Each row of the picture is a token."""
    net.weight("place", 8, 16, fan_in=16)
    x = net.op("Reshape", "rows", "input", "rows.shape")
    x = net.op("Add", "placed", net.matmul("embed", x, 8, 16), "place")
    q, k, v = (net.matmul(name, x, 16, 16) for name in "qkv")
    scores = net.op("MatMul", "scores", q, net.op("Transpose", "turned", k, perm=[0, 2, 1]))
    mixed = net.op("MatMul", "mixed", net.op("Softmax", "attention", scores, axis=-1), v)
    x = net.op("Add", "sum0", net.matmul("project", mixed, 16, 16), x)
    inner = net.relu(net.matmul("widen", x, 16, 32))
    x = net.op("Add", "sum1", net.matmul("narrow", inner, 32, 16), x)
    return net.gemm("head", net.op("ReduceMean", "mean", x, axes=[1], keepdims=0), 16, 10)


NETWORKS: Mapping[str, Callable[[_Net], str]] = {
    "residual": _residual, "depthwise": _depthwise, "mlp": _mlp, "transformer": _transformer,
}  # fmt: skip


@cache
def trained(network: str, seed: int) -> onnx.ModelProto:
    net = _Net(seed)
    result = NETWORKS[network](net)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the same weights wherever it runs, and faster for arrays as small as these
    images, labels, held_out = load_digits()
    weights = {name: torch.tensor(values, requires_grad=True) for name, values in net.weights.items()}
    optimizer = torch.optim.Adam(weights.values(), lr=0.01)
    for _ in range(_STEPS):
        rows = net.random.choice(np.flatnonzero(~held_out), 128, replace=False)
        values = {**weights, "input": torch.from_numpy(images[rows])}
        for node in net.nodes:
            values[node.output[0]] = _run(node, values)
        optimizer.zero_grad()
        functional.cross_entropy(values[result], torch.from_numpy(labels[rows])).backward()
        optimizer.step()
    torch.set_num_threads(threads)
    constants = {name: values.detach().numpy() for name, values in weights.items()}
    constants["rows.shape"] = np.array([-1, 8, 8])
    graph = helper.make_graph(
        net.nodes, network, [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", 1, 8, 8])],
        [helper.make_tensor_value_info(result, TensorProto.FLOAT, ["N", 10])],
        [numpy_helper.from_array(v, k) for k, v in constants.items() if any(k in node.input for node in net.nodes)],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _run(node: onnx.NodeProto, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
    x, *others = (values[name] for name in node.input if name in values)
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return {
        "Conv": lambda: functional.conv2d(x, *others, given["strides"][0], given["pads"][0], 1, given["group"]),
        "Gemm": lambda: functional.linear(x, *others), "MatMul": lambda: x @ others[0], "Add": lambda: x + others[0],
        "Relu": lambda: functional.relu(x), "Softmax": lambda: torch.softmax(x, -1), "Flatten": lambda: x.flatten(1),
        "Reshape": lambda: x.reshape(-1, 8, 8), "Transpose": lambda: x.mT, "ReduceMean": lambda: x.mean(1),
        "GlobalAveragePool": lambda: x.mean((2, 3), keepdim=True),
    }[node.op_type]()  # fmt: skip


def links(model: onnx.ModelProto) -> list[Link]:
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    found = []
    for node in model.graph.node:
        tensors = [node.output[0]]
        while len(then := readers.get(tensors[-1], [])) == 1 and then[0].op_type in PASS_ON:
            tensors.append(then[0].output[0])
        if node.op_type not in PASS_ON and len(then) == 1:
            found.append(Link(node, tensors, then[0]))
    return found


def made(kind: str, seed: int) -> Case:
    """One defect of this kind at a random place of a random network."""
    random = np.random.default_rng([list(KINDS).index(kind), seed])
    network = str(random.choice(list(NETWORKS)))
    healthy, spoilt = trained(network, seed % 2), onnx.ModelProto()
    spoilt.CopyFrom(healthy)
    case = Case(kind, seed, network, healthy, spoilt, bool(random.integers(2)))
    link, case.how = KINDS[kind](case, random)
    case.culprits = link.producer.name, link.consumer.name
    return case


def _outlier_channels(case: Case, random: np.random.Generator) -> tuple[Link, str]:
    """Scaled up and divided back: the same function in fp32."""
    link, channel = _channel(case, random, links(case.fp32))
    factor = _between(random, *_HUGE)
    _scale(case.fp32, link.producer, channel, factor)
    _scale(case.fp32, link.consumer, channel, 1 / factor, reads=True)
    return link, f"a channel x {factor:.0f}"


def _clipped_range(case: Case, random: np.random.Generator) -> tuple[Link, str]:
    return _narrowed(case, random, [x for x in links(case.fp32) if not _is_at_sum(x)])


def _tiny_scale(case: Case, random: np.random.Generator) -> tuple[Link, str]:
    """A huge value that nobody reads, or a huge weight for what is always zero: all others are too small for a step."""
    link, channel = _channel(case, random, links(case.fp32))
    factor = _between(random, *_HUGE)
    is_value = bool(random.integers(2))
    _scale(case.fp32, link.producer, channel, factor if is_value else 0)
    _scale(case.fp32, link.consumer, channel, 0 if is_value else factor, reads=True)
    return link, f"a channel x {factor:.0f}, not read" if is_value else f"weights x {factor:.0f} for zeros"


def _saturating_residual(case: Case, random: np.random.Generator) -> tuple[Link, str]:
    """A branch or the sum is clipped; or one branch is so large that the sum has no steps left for the other."""
    found = links(case.fp32)
    if random.integers(2):
        return _narrowed(case, random, [x for x in found if _is_at_sum(x)])
    link, channel = _channel(case, random, found, of="Add")
    factor = _between(random, *_HUGE)
    branch = next(x.producer for x in found if x.consumer.name == link.producer.name)
    _scale(case.fp32, branch, slice(None), _NEXT_TO_NOTHING)
    _scale(case.fp32, branch, channel, factor / _NEXT_TO_NOTHING)
    _scale(case.fp32, link.consumer, channel, 0, reads=True)
    return link, f"a channel x {factor:.0f} in {branch.name}, not read"


def _wrong_calibration(case: Case, random: np.random.Generator) -> tuple[Link, str]:
    found = links(case.fp32)
    link = found[int(random.integers(len(found)))]
    right = samples("calibration")
    dark = _between(random, *_NARROW)
    noise = random.normal(size=right.shape) / dark
    pictures = {"dark": right * dark, "bright": right / dark, "noisy": right + noise, "no": right * 0}
    word = str(random.choice(list(pictures)))
    values = outputs(case.fp32, np.asarray(pictures[word], np.float32), *link.tensors)
    case.ranges = {name: _range(array) for name, array in zip(link.tensors, values, strict=True)}
    return link, f"calibrated with {word} pictures"


KINDS: Mapping[str, Callable[[Case, np.random.Generator], tuple[Link, str]]] = {
    "outlier channel": _outlier_channels, "clipped range": _clipped_range, "tiny scale": _tiny_scale,
    "residual": _saturating_residual, "wrong calibration": _wrong_calibration,
}  # fmt: skip


def _narrowed(case: Case, random: np.random.Generator, among: Sequence[Link]) -> tuple[Link, str]:
    link, factor = among[int(random.integers(len(among)))], _between(random, *_NARROW)
    values = outputs(case.fp32, samples("calibration"), *link.tensors)
    for name, (low, high) in zip(link.tensors, map(_range, values), strict=True):
        case.ranges[name] = low * factor, high * factor
    return link, f"{factor:.0%} of the range"


def _is_at_sum(link: Link) -> bool:
    return "Add" in (link.producer.op_type, link.consumer.op_type)


def _channel(case: Case, random: np.random.Generator, among: Sequence[Link], of: str = "") -> tuple[Link, int]:
    """A link that weights write (or an op of this type) and weights read, and a channel of it that is in use."""
    weights = {tensor.name: tensor for tensor in case.fp32.graph.initializer if len(tensor.dims) > 1}
    weighted = [n.name for n in case.fp32.graph.node if n.op_type != "Add" and not weights.keys().isdisjoint(n.input)]
    ends = [(x, x.producer.op_type == of if of else x.producer.name in weighted) for x in among]
    fit = [x for x, is_written in ends if is_written and x.consumer.name in weighted]
    link = fit[int(random.integers(len(fit)))]
    values = outputs(case.fp32, samples("calibration"), link.tensors[-1])[0]
    size = values.std(axis=(0, 1) if values.ndim == 3 else (0, *range(2, values.ndim)))
    return link, int(random.choice(np.flatnonzero(size >= np.median(size))))


def _scale(
    model: onnx.ModelProto, node: onnx.NodeProto, channel: int | slice, factor: float, reads: bool = False
) -> None:
    """What an op writes to a channel, or its weights for what it reads there."""
    for tensor in model.graph.initializer:
        if tensor.name in node.input[1 : 2 if reads else 3]:
            values = numpy_helper.to_array(tensor).copy()
            axis = _axis(node, reads) if values.ndim > 1 else 0
            np.moveaxis(values, axis, 0)[channel] *= factor
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _axis(node: onnx.NodeProto, reads: bool) -> int:
    is_depthwise = any(a.name == "group" and a.i > 1 for a in node.attribute)
    return 0 if is_depthwise else int(reads) if node.op_type != "MatMul" else int(not reads)


def _between(random: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(random.uniform(np.log(low), np.log(high))))


def _range(values: Array) -> tuple[float, float]:
    """Has 0 in it, and is not empty."""
    return min(float(values.min()), 0.0), max(float(values.max()), 1e-3)
