"""The reference with any subset of what the quantized network rounds.

A network is made for each subset: what is off is not there, so all off is the reference bit for bit. Opening one takes
some milliseconds, for all its batches.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from inc_tb.frameworks.edges import before_softmax
from inc_tb.frameworks.feeds import fitted
from inc_tb.frameworks.mxnet.adapter import MxnetAdapter
from inc_tb.frameworks.mxnet.graph import DEQUANTIZE, VARIABLE, Entry, made_symbol
from inc_tb.frameworks.mxnet.grids import STEPS
from inc_tb.frameworks.mxnet.model import open_results
from inc_tb.frameworks.mxnet.runtime import Executor, keep, shapes_of
from inc_tb.frameworks.mxnet.sites import Sites
from inc_tb.frameworks.ops import Array, Batch, Input, Quantization, Site, Unit
from inc_tb.frameworks.protocols import Outputs, Switchable

_SOFTMAX = {"softmax", "log_softmax", "SoftmaxOutput", "SoftmaxActivation"}
_PASSING = {
    "Reshape", "reshape", "Flatten", "flatten", "transpose", "expand_dims", "squeeze", "Cast", "cast", "amp_cast",
    "identity", "_copy", "BlockGrad",
}  # fmt: skip
_ROUNDED = "inc_tb_rounded"


class MxnetSwitches(Switchable):
    framework = "mxnet"

    def __init__(self, reference: Any, quantized: Any) -> None:
        self._adapter = MxnetAdapter(reference, quantized)
        self._graph = self._adapter.matching.reference
        self.notes = self._adapter.notes
        self.inputs: Sequence[Input] = self._adapter.inputs()
        self.units: list[Unit] = []
        self.sites: list[Site] = []
        self._opened: OrderedDict[Any, Executor] = OrderedDict()
        self._found: Sites | None = None
        self._real: Any = None

    def trace(self, batch: Batch) -> None:
        if self._found is None:
            self._adapter.trace(batch)
            self._found = Sites(self._adapter.both)
            self.inputs = self._adapter.inputs()
            self.units, self.sites = self._found.units, self._found.all

    def run(self, batch: Batch, on: Collection[str]) -> Outputs:
        self.trace(batch)
        feeds = fitted(batch, self.inputs)
        key = frozenset(on), shapes_of(feeds)
        if key not in self._opened:
            keep(self._opened, key, self._open(feeds, frozenset(on)))
        executor = self._opened[key]
        executor.feed(feeds)
        arrays = [np.asarray(a.asnumpy()) for a in executor.run()]
        count = len(self._graph.heads)
        return Outputs(arrays[:count], arrays[count:])

    def run_real(self, batch: Batch) -> list[Array]:
        if self._real is None:
            self._real = open_results(self._adapter.matching.quantized.network)
        names = self._adapter.matching.input_names
        found: list[Array] = self._real({names.get(name, name): array for name, array in batch.items()})
        return found

    def _open(self, feeds: Batch, on: frozenset[str]) -> Executor:
        made = _Rounded(self._graph.document["nodes"])
        assert self._found is not None
        rounding = self._found.rounding
        values = {entry: grid for site, (entry, grid) in rounding.values.items() if site in on}
        reads = {(node, entry): grid for site, (entry, node, grid) in rounding.reads.items() if site in on}
        weights = {node: arrays for site, (node, arrays) in rounding.weights.items() if site in on}
        for node in self._graph.nodes:
            inputs = [made.place(entry) for entry in node.inputs]
            for at, entry in enumerate(node.inputs):
                grid = reads.get((node.index, entry))
                # To a range of its own, what is rounded already would be rounded to other numbers.
                if grid is not None and not (grid.scale is None and entry in values):
                    inputs[at] = made.round(inputs[at], grid)
                elif (name := self._graph.nodes[entry.node].name) in weights.get(node.index, {}):
                    inputs[at] = made.new_parameter(weights[node.index][name])
            made.copy(node.index, inputs)
            for entry in (e for e in values if e.node == node.index):
                made.replace(entry, made.round(made.place(entry), values[entry]))
        scores = [before_softmax(head, self._maker, _SOFTMAX, _PASSING) for head in self._graph.heads]
        ends = [*scores, *self._graph.heads]
        symbol = made_symbol(
            {**self._graph.document, "nodes": made.nodes, "heads": [made.place(entry) for entry in ends]}
        )
        return Executor(self._graph.network._replace(symbol=symbol), {**feeds, **made.parameters})

    def _maker(self, entry: Entry) -> tuple[str, Entry] | None:
        node = self._graph.nodes[entry.node]
        return (node.type, node.inputs[0]) if node.inputs else None


class _Rounded:
    """The nodes of a network, copied one by one with others in between."""

    def __init__(self, given: Sequence[Mapping[str, Any]]) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.parameters: dict[str, Array] = {}
        self._given = given
        self._moved: dict[int, int] = {}
        self._instead: dict[Entry, list[int]] = {}

    def place(self, entry: Entry) -> list[int]:
        return self._instead.get(entry) or [self._moved[entry.node], entry.at, 0]

    def replace(self, entry: Entry, place: list[int]) -> None:
        self._instead[entry] = place

    def copy(self, index: int, inputs: list[list[int]]) -> None:
        self._moved[index] = len(self.nodes)
        self.nodes.append({**self._given[index], "inputs": inputs})

    def new_parameter(self, array: Array) -> list[int]:
        name = f"{_ROUNDED}_{len(self.nodes)}"
        self.parameters[name] = np.ascontiguousarray(array, np.float32)
        return self._add(VARIABLE, {}, [])

    def round(self, place: list[int], grid: Quantization) -> list[int]:
        """To whole numbers and back, by MXNet's own ops; a range that is not known is that of the values."""
        attrs = {"out_type": grid.dtype}
        if grid.limits is not None and grid.scale is not None:
            widest = float(grid.scale.max()) * STEPS[grid.dtype]
            low = 0.0 if grid.dtype == "uint8" else -widest
            attrs |= {"min_calib_range": repr(low), "max_calib_range": repr(widest)}
        whole = self._add("_contrib_quantize_v2", attrs, [place])
        real = self._add(DEQUANTIZE, {}, [[whole[0], at, 0] for at in range(3)])
        is_cut = grid.dtype == "int8" and grid.low == 0
        return self._add("Activation", {"act_type": "relu"}, [real]) if is_cut else real

    def _add(self, kind: str, attrs: Mapping[str, str], inputs: list[list[int]]) -> list[int]:
        self.nodes.append({"op": kind, "name": f"{_ROUNDED}_{len(self.nodes)}", "attrs": attrs, "inputs": inputs})
        return [len(self.nodes) - 1, 0, 0]
