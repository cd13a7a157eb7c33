"""A graph module that tells a clock before and behind every node that computes, and whose op each node is part of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, fx, nn

from inc_tb.frameworks.protocols import Kernel
from inc_tb.frameworks.torch.arguments import call
from inc_tb.frameworks.torch.graph_runner import GraphRunner
from inc_tb.frameworks.torch.grids import is_fake_quantizer
from inc_tb.frameworks.torch.kinds import DEQUANTIZE, QUANTIZE, function_kind, module_kind

_BEGIN, _END = "_inc_tb_begin", "_inc_tb_end"
_FREE = ("getitem", "getattr", "sym_", "assert")
"""How functions begin that take no time."""


class _Begin(nn.Module):  # type: ignore[misc]
    clock: Any = None

    def forward(self) -> None:
        self.clock.begin()


class _End(nn.Module):  # type: ignore[misc]
    clock: Any = None

    def forward(self, index: int) -> None:
        self.clock.end(index)


class TimedGraph:
    """`kernels` by the index that the clock is told at the end of a node."""

    def __init__(self, runner: GraphRunner) -> None:
        """After the runner has traced the model, so that the names are final."""
        self._runner = runner
        self._begin, self._end = _Begin(), _End()
        self._module, copies = runner.copied()
        self._module.add_submodule(_BEGIN, self._begin)
        self._module.add_submodule(_END, self._end)
        self.kernels: list[Kernel] = []
        graph = self._module.graph
        for node in filter(_takes_time, runner.model.graph.nodes):
            with graph.inserting_before(copies[node]):
                graph.call_module(_BEGIN, ())
            with graph.inserting_after(copies[node]):
                graph.call_module(_END, (len(self.kernels),))
            self.kernels.append(self._kernel(node))
        self._module.recompile()

    def run(self, inputs: Mapping[str, Tensor], clock: Any) -> Any:
        self._begin.clock = self._end.clock = clock
        return call(self._module, inputs)

    def _kernel(self, node: fx.Node) -> Kernel:
        module = self._runner.modules.get(str(node.target)) if node.op == "call_module" else None
        kind = module_kind(module) if module is not None else _kind(node)
        is_fake = is_fake_quantizer(module)
        is_conversion = is_fake or kind in QUANTIZE | DEQUANTIZE or kind.startswith("choose_qparams")
        own = self._runner.op_of(node)
        if own and not is_conversion:
            return Kernel(node.name, self._runner.kind_of(own), (own,))
        # Quantized on account of who reads it, as is a weight or what is only rounded; the rest because of who made it,
        # as training has it, where modules round what they write.
        before = node.all_input_nodes[0] if node.all_input_nodes else node
        is_rounding = kind in DEQUANTIZE and (before.op == "get_attr" or _kind(before) in QUANTIZE)
        is_for_reader = is_conversion and not is_fake and (kind not in DEQUANTIZE or is_rounding)
        made_by, read_by = self._near(node, is_back=True), self._near(node, is_back=False)
        near = [*read_by, *made_by] if is_for_reader else [*made_by, *read_by]
        return Kernel(node.name, kind or node.name, tuple(near[:1]), is_conversion)

    def _near(self, start: fx.Node, *, is_back: bool) -> Iterator[str]:
        """The nearest ops in one direction."""
        waiting, seen = [start], {start}
        while waiting:
            node = waiting.pop(0)
            for other in node.all_input_nodes if is_back else node.users:
                if other not in seen:
                    seen.add(other)
                    own = self._runner.op_of(other)
                    if own:
                        yield own
                    else:
                        waiting.append(other)


def _kind(node: fx.Node) -> str:
    return function_kind(node.target).name if node.op in ("call_function", "call_method") else ""


def _takes_time(node: fx.Node) -> bool:
    if node.op == "call_module":
        return not str(node.target).endswith("_guards_fn")
    return node.op in ("call_function", "call_method") and not _kind(node).startswith(_FREE)
