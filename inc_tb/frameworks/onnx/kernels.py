"""Which ops of a file the nodes of ONNX Runtime's optimized graph compute."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import onnx

from inc_tb.frameworks.kernels import covered, on_account
from inc_tb.frameworks.onnx.graph import Graph
from inc_tb.frameworks.onnx.model import DEQUANTIZE, QUANTIZE, all_inputs, attribute
from inc_tb.frameworks.onnx.steps import base_type
from inc_tb.frameworks.protocols import Kernel

_FOR_READER = {QUANTIZE, "DynamicQuantizeLinear", "ReorderInput"}
"""Conversions on account of the op that reads them; the others are there because of the one before them."""
_CONVERSIONS = {*_FOR_READER, DEQUANTIZE, "ReorderOutput"}
_MOVING = {*_CONVERSIONS, "Transpose", "Cast"}
"""What a runtime puts between ops; it then has the name of what it moves."""
_BLOCKED = "_nchwc"
"""In the layout of blocks of channels kernels are called after the tensor that was written in the file."""
_FOLDED = {
    "Relu",
    "Clip",
    "LeakyRelu",
    "Sigmoid",
    "Tanh",
    "HardSigmoid",
    "HardSwish",
    "Add",
    "Sum",
    QUANTIZE,
    DEQUANTIZE,
}
"""What kernels also do that keep the name of the node before it."""
_COUNTED = re.compile(r"_token_\d+$")


def find_kernels(graph: Graph, named: Mapping[str, onnx.NodeProto], optimized: onnx.GraphProto) -> dict[str, Kernel]:
    """Name of a node of the optimized graph -> what it computes; `named` are the nodes of the file."""
    writer = {out: name for name, node in named.items() for out in node.output if out}
    step_at = {writer[out]: step for step in graph.steps for out in step.node.output if out}
    scaled_at = {writer[out]: step for out, step in graph.scaled_by.items()}
    sources = {
        name: [writer[i] for i in all_inputs(node) if i in writer and i not in graph.model.constants]
        for name, node in named.items()
    }
    found = []
    for node, inside in zip(optimized.node, covered(_find_ends(optimized.node, named, sources), sources), strict=True):
        steps = {n: step_at[n] for n in inside if n in step_at and named[n].op_type not in _CONVERSIONS}
        helped = {n: scaled_at[n] for n in inside if n in scaled_at}
        kind = base_type(node.op_type)
        first = sorted((steps or helped).values(), key=lambda s: (not s.weight, s.type != kind, s.index))
        found.append(Kernel(node.name, node.op_type, tuple(dict.fromkeys(s.name for s in first)), not steps))
    for_reader = {i for i, node in enumerate(optimized.node) if _is_for_reader(node)}
    return {kernel.name: kernel for kernel in on_account(found, _before(optimized.node), for_reader)}


def _find_ends(
    kernels: Sequence[onnx.NodeProto], named: Mapping[str, onnx.NodeProto], sources: Mapping[str, Sequence[str]]
) -> list[list[str]]:
    """The nodes of the file by which each kernel is known: those that wrote its results, or the one with its name."""
    writer = {out: name for name, node in named.items() for out in node.output if out}
    readers: dict[str, list[str]] = defaultdict(list)
    for name, before in sources.items():
        for source in before:
            readers[source].append(name)
    names = [_COUNTED.sub("", kernel.name) for kernel in kernels]
    known = set(names)
    ends: list[list[str]] = []
    for kernel, name in zip(kernels, names, strict=True):
        tensors = [*kernel.output, name.removesuffix(_BLOCKED)] if name.endswith(_BLOCKED) else list(kernel.output)
        written = dict.fromkeys(writer[tensor] for tensor in tensors if tensor in writer)
        ends.append([n for n in written if kernel.op_type not in _MOVING or named[n].op_type == kernel.op_type])
        known.update(ends[-1])
    for kernel, name, found in zip(kernels, names, ends, strict=True):
        if not found and name in named and (kernel.op_type not in _MOVING or named[name].op_type == kernel.op_type):
            found.append(name)
        is_named_after = bool(found) and not any(out in writer for out in kernel.output)
        while is_named_after and len(readers[found[-1]]) == 1:
            behind = readers[found[-1]][0]
            if behind in known or named[behind].op_type not in _FOLDED:
                break
            found.append(behind)
            known.add(behind)
    return ends


def _before(nodes: Sequence[onnx.NodeProto]) -> list[list[int]]:
    """The kernels that each reads from."""
    writer = {out: i for i, node in enumerate(nodes) for out in node.output if out}
    return [[writer[i] for i in all_inputs(node) if i in writer] for node in nodes]


def _is_for_reader(node: onnx.NodeProto) -> bool:
    """Also where channels are moved to the end, as kernels for integers want them."""
    order = list(attribute(node, "perm", ())) if node.op_type == "Transpose" else []
    return node.op_type in _FOR_READER or (len(order) > 2 and order == [0, *range(2, len(order)), 1])
