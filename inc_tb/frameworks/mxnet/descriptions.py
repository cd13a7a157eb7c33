"""The ops of the reference, as its nodes and what they match tell, and where the channels of their results are."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from inc_tb.frameworks.channels import channel_axes
from inc_tb.frameworks.describe import NO_COUNTERPART, described
from inc_tb.frameworks.mxnet.graph import Entry, Graph, Node
from inc_tb.frameworks.mxnet.grids import unknown_grid
from inc_tb.frameworks.mxnet.match import Match
from inc_tb.frameworks.mxnet.side_by_side import SideBySide
from inc_tb.frameworks.mxnet.weights import parameter, read_weights
from inc_tb.frameworks.ops import Op

_CHANNELS_FIRST = {"Convolution", "Deconvolution", "Pooling", "BatchNorm", "LRN", "InstanceNorm", "UpSampling"}
_CHANNELS_LAST = {"FullyConnected", "Embedding", "LayerNorm", "softmax", "Flatten", "Reshape", "transpose"}


def describe_ops(both: SideBySide) -> list[Op]:
    """After both have run once."""
    graph, owner = both.matching.reference, both.matching.owner
    known = {step.index for step in graph.steps}
    ops: list[Op] = []
    for step in graph.steps:
        inputs = dict.fromkeys(graph.nodes[e.node].name for e in graph.values(step) if e.node in known)
        op = Op(
            step.name, step.type, len(ops), block=_block(step.name), unit=step.name, tensor=tensor_of(step),
            inputs=tuple(inputs),
        )  # fmt: skip
        match = owner.get(step.index)
        if match is not None:
            op = replace(op, module=match.node.symbol)
            op = _quantized_as(op, match, both) if step is match.main else op
        ops.append(op)
    wholes = {s.name: owner[s.index].main.name for s in graph.steps if s.index in owner}
    parts = {name: whole for name, whole in wholes.items() if name != whole}
    return described(ops, parts, {s.name: NO_COUNTERPART for s in graph.steps if s.name not in wholes})


def _quantized_as(op: Op, match: Match, both: SideBySide) -> Op:
    matching, graph = both.matching, both.matching.reference
    weights = read_weights(match, graph, matching.quantized, both.grid_read(match))
    found = both.grids.get(Entry(match.end.index))
    is_static = matching.is_static(matching.forms(Entry(match.node.index))[0])
    name = parameter(graph, match.main.weighted, 1)
    return replace(
        op, tensor=tensor_of(match.end), weight=weights.quantization if weights is not None else None,
        activation=found if found is None or is_static else unknown_grid(found.dtype),
        params=prod(graph.array(name).shape) if name else 0,
    )  # fmt: skip


def tensor_of(step: Node) -> str:
    return f"{step.name}_output"


def _block(name: str) -> str:
    """Of gluon's names, such as net_block0_conv0_fwd, what is before the layer."""
    return name.removesuffix("_fwd").rpartition("_")[0].rstrip("_")


def axes_of(graph: Graph) -> dict[int, int]:
    """By the index of a node; element-wise ops keep the place of their input."""

    def place(index: int, before: int) -> int:
        step = graph.nodes[index]
        types = {part.type for part in step.parts}
        if types & _CHANNELS_LAST or step.attrs.get("layout", "").endswith("C"):
            return -1
        return 1 if types & _CHANNELS_FIRST else before

    return channel_axes({step.index: [e.node for e in graph.values(step)] for step in graph.steps}, place)
