"""Which ops of a graph the nodes compute that TensorFlow makes of it when it opens it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from inc_tb.frameworks.kernels import covered, on_account
from inc_tb.frameworks.protocols import Kernel, Recorded
from inc_tb.frameworks.tensorflow.forms import source_of
from inc_tb.frameworks.tensorflow.frozen import FrozenGraph
from inc_tb.frameworks.tensorflow.graph import Step
from inc_tb.frameworks.tensorflow.kinds import LOOPS, graph_type
from inc_tb.frameworks.tensorflow.nodes import data_inputs, in_order

_IDLE = {
    "Const", "HostConst", "_Arg", "_Retval", "_DeviceArg", "_DeviceRetval", "NoOp", "Identity", "IdentityN",
    "Placeholder", "PlaceholderWithDefault",
}  # fmt: skip
"""They hand over what is there."""
_CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
_MOVES = re.compile(r"LayoutOptimizer$|AutoMixedPrecision$|^_MklToTf$|^_MklInputConversion$")
"""What the optimizer puts between ops for the sake of a layout or a type, by name or type."""
_OPTIMIZER = re.compile(r"(?:^|(?<=/))(?:ArithmeticOptimizer|ConstantFolding|Optimizer|Remapper)/")
_NOTICEABLE = 0.005
_OWN = re.compile(r"^_(?:MklNative|Mkl)?(?=[A-Z])")


def find_kernels(graph: FrozenGraph, nodes: Iterable[Any]) -> dict[str, Kernel]:
    """Name of a node of the optimized graph -> what it computes; without those that compute nothing."""
    nodes = [node for node in in_order(list(nodes)) if node.op not in _IDLE]
    sources = {
        name: [source_of(i)[0] for i in data_inputs(node) if i not in graph.constants]
        for name, node in graph.nodes.items()
    }
    known_by = [_origins(node, graph) for node in nodes]
    steps = {step.name: step for step in graph.steps}
    kernels: list[Kernel] = []
    for_reader: set[int] = set()
    for at, (node, ends, inside) in enumerate(zip(nodes, known_by, covered(known_by, sources), strict=True)):
        parts = dict.fromkeys([*ends, *inside])
        computed = {
            name: steps[graph.part_of.get(name, name)] for name in parts if graph.part_of.get(name, name) in steps
        }
        forms = {graph.conversion(name) for name in parts} - {""}
        if not computed and "restore" not in forms and not _is_move(node):
            for_reader.add(at)
        kernels.append(_kernel(node, list(computed.values()), bool(forms) or _is_move(node)))
    place = {node.name: at for at, node in enumerate(nodes)}
    before = [[place[s] for i in data_inputs(node) if (s := source_of(i)[0]) in place] for node in nodes]
    return {kernel.name: kernel for kernel in on_account(kernels, before, for_reader)}


def _kernel(node: Any, steps: Sequence[Step], is_form: bool) -> Kernel:
    if not steps:
        return Kernel(node.name, _OWN.sub("", node.op), (), is_form)
    first = sorted(steps, key=lambda s: (not s.weight, s.index))
    return Kernel(node.name, first[0].kind, tuple(dict.fromkeys(s.name for s in first)))


def _is_move(node: Any) -> bool:
    return bool(_MOVES.search(node.name) or _MOVES.search(node.op))


def _origins(node: Any, graph: FrozenGraph) -> list[str]:
    """The node of the file by which a kernel is known: fused ones have the name of the last that they replace."""
    if _is_move(node):
        return []
    name = _without_optimizer(node.name, graph.nodes)
    if name in graph.nodes:
        return [name]
    parts = node.name.split("/")
    outer = ("/".join(parts[:n]) for n in range(len(parts) - 1, 0, -1))
    return [name for name in outer if name in graph.nodes and _is_body(graph.nodes[name])][:1]


def _is_body(node: Any) -> bool:
    """What is in its functions is executed as if it stood in its place."""
    return node.op in _CALLS or graph_type(node.op) in LOOPS


def _without_optimizer(name: str, known: Collection[str]) -> str:
    """`scope/ArithmeticOptimizer/AddOpsRewrite_Leaf_0_add` is made of `scope/add`."""
    name = name.removesuffix("/unary_ops_composition")
    found = _OPTIMIZER.search(name)
    if found is None or name in known:
        return name
    scope, rest = name[: found.start()], name[found.end() :]
    while rest and scope + rest not in known:
        rest = rest.partition("_")[2]
    return scope + rest


def noticed(runs: Sequence[Recorded]) -> list[Recorded]:
    """Without kernels that belong to no op and take next to no time, such as those that compute shapes."""
    took: dict[Kernel, float] = defaultdict(float)
    for run in runs:
        for execution in run.executions:
            took[execution.kernel] += execution.duration_us
    least = _NOTICEABLE * sum(took.values())
    kept = {kernel for kernel, us in took.items() if kernel.ops or us >= least}
    return [run._replace(executions=[e for e in run.executions if e.kernel in kept]) for run in runs]
