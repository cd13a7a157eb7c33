"""The quantized model cut at every matched value, each piece fed with the reference's values.

What comes out of a piece differs from the reference only by what that piece itself does: its
inputs' rounding, its weights' rounding, its output's rounding. That is the added error of its op.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx
from onnx import helper

from inc_tb.frameworks.onnx.graph import Graph
from inc_tb.frameworks.onnx.model import all_inputs

_TAIL = "/inc_tb_isolated"
_FED = "/inc_tb_reference"


def isolated_model(graph: Graph, cuts: Iterable[str], wanted: Iterable[str]) -> tuple[onnx.ModelProto, dict[str, str]]:
    """A model with one output for each root in `wanted`, and its inputs: name -> root whose reference value it takes.

    `cuts` are the roots that have a counterpart in the reference.
    """
    cuts = [root for root in cuts if root in graph.producer]
    tails = {root: root + _TAIL for root in cuts}
    nodes = [_renamed(node, tails) for node in graph.model.nodes]
    feeds: dict[str, str] = {i.name: i.name for i in graph.model.inputs}
    for root in cuts:
        value = graph.tensors[root]
        if value.is_integer:
            feeds[root + _FED] = root
            nodes.append(value.quantizer(root + _FED, root))
        else:
            feeds[root] = root
    outputs = {}
    for root in wanted:
        outputs[root], more = graph.tensors[root].as_consumed(tails[root])
        nodes.extend(more)
    return _assembled(graph, nodes, feeds, outputs)


def _renamed(node: onnx.NodeProto, tails: Mapping[str, str]) -> onnx.NodeProto:
    if not any(out in tails for out in node.output):
        return node
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.output[:] = [tails.get(out, out) for out in node.output]
    return copy


def _assembled(
    graph: Graph, nodes: list[onnx.NodeProto], feeds: Mapping[str, str], outputs: Mapping[str, str]
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Only what the outputs need, in an order that runs."""
    producer = {out: i for i, node in enumerate(nodes) for out in node.output}
    needed: set[int] = set()
    used: set[str] = set(outputs.values())
    stack = list(used)
    while stack:
        name = stack.pop()
        at = producer.get(name) if name not in feeds else None
        if at is None or at in needed:
            continue
        needed.add(at)
        inputs = all_inputs(nodes[at])
        used.update(inputs)
        stack.extend(inputs)
    source = graph.model.proto
    proto = onnx.ModelProto(ir_version=source.ir_version)
    proto.opset_import.extend(source.opset_import)
    proto.functions.extend(source.functions)
    proto.graph.name = "isolated"
    # The quantize nodes that feed integer pieces come first, the ones that read results last.
    chosen = [nodes[i] for i in sorted(needed)]
    proto.graph.node.extend(sorted(chosen, key=lambda n: not (n.input and n.input[0].endswith(_FED))))
    proto.graph.initializer.extend(t for name, t in graph.model.initializers.items() if name in used)
    kept = {name: root for name, root in feeds.items() if name in used}
    types = {i.name: i.type.tensor_type.elem_type for i in graph.model.inputs} | graph.types
    proto.graph.input.extend(helper.make_tensor_value_info(name, types[root], None) for name, root in kept.items())
    proto.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in outputs.values())
    return proto, kept
