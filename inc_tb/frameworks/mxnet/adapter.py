"""Two networks of MXNet as ops and pairs of arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from inc_tb.errors import ModelError
from inc_tb.frameworks.channels import input_axis
from inc_tb.frameworks.describe import misfit, without
from inc_tb.frameworks.edges import first_readers
from inc_tb.frameworks.feeds import count_rows, fitted, split
from inc_tb.frameworks.memory import Parts, SampleSizes
from inc_tb.frameworks.mxnet.descriptions import axes_of, describe_ops, tensor_of
from inc_tb.frameworks.mxnet.graph import Entry, Graph, Node
from inc_tb.frameworks.mxnet.isolate import Forms, Isolated
from inc_tb.frameworks.mxnet.match import Matching
from inc_tb.frameworks.mxnet.side_by_side import SideBySide
from inc_tb.frameworks.mxnet.weights import read_weights
from inc_tb.frameworks.ops import Array, Batch, Input, Op, Pair, Role
from inc_tb.frameworks.protocols import Adapter

_TRACED = 4
_COPIES = 6
"""Of a value: the reference's, the quantized network's and the isolated one, as MXNet's arrays and as numpy's."""


class MxnetAdapter(Adapter):
    framework = "mxnet"

    def __init__(self, reference: Any, quantized: Any, *, memory_budget: int = 1 << 30) -> None:
        self._budget = memory_budget
        self.matching = Matching(Graph(reference), Graph(quantized))
        self._mine, self._theirs = self.matching.reference, self.matching.quantized
        self.both = SideBySide(self.matching)
        self.notes = self.both.notes
        self._isolated = Isolated(self.matching)
        self._inputs = self._mine.described_inputs()
        self._ops: list[Op] | None = None
        self._compared = {Entry(match.end.index): match for match in self.matching.matches}
        self._dropped: dict[Entry, str] = {}
        self._sizes = SampleSizes(self._measure)
        self._samples = Parts(self.notes)

    def inputs(self) -> Sequence[Input]:
        return self._inputs

    def trace(self, batch: Batch) -> None:
        if self._ops is not None:
            return
        feeds = fitted(batch, self._inputs, free=self._mine.inputs)
        few = next(split(feeds, None, _TRACED))
        mine = self.both.trace(few)
        for root, array in mine.items():
            if array.dtype.kind != "f":
                self._dropped[root] = "its output holds no real numbers"
        self._inputs = [Input(n, np.dtype(np.float32), (None,) * feeds[n].ndim) for n in self._mine.inputs]
        self._axes = axes_of(self._mine)
        self._readers = self._find_readers()
        self._ops = describe_ops(self.both)

    def ops(self) -> Sequence[Op]:
        if self._ops is None:
            raise ModelError("the networks have not run yet; expected trace(batch) before ops().")
        lost = {self._compared[root].main.name: why for root, why in self._dropped.items() if root in self._compared}
        return without(self._ops, lost)

    def weights(self) -> Iterator[Pair]:
        for match in self.matching.matches:
            found = read_weights(match, self._mine, self._theirs, self.both.grid_read(match))
            if found is not None and found.reference.shape == found.quantized.shape:
                axis = 0 if found.reference.ndim > 1 else None
                yield Pair(match.main.name, found.name, "weight", found.reference, found.quantized, axis)

    def run(self, batch: Batch) -> Iterator[Pair]:
        self.trace(batch)
        feeds = fitted(batch, self._inputs)
        rounded = (Entry(node.index) for node in self._theirs.steps if node.is_integer)
        is_dynamic = not all(self.matching.is_static(entry) for entry in rounded)
        # Ranges that are found at run time are those of the whole batch.
        asked = self.samples_at_once or (count_rows(feeds) if is_dynamic else None)
        most = asked or max(1, self._budget // (_COPIES * sum(self._sizes.of_one(feeds)) + 1))
        yield from self._samples.run(self._run_part, feeds, most, lambda batch, rows: split(batch, None, rows))

    def _measure(self, one: Batch) -> list[int]:
        return [array.nbytes for array in self.both.run(one, self._dropped)[0].values()]

    def _run_part(self, feeds: Batch) -> Iterator[Pair]:
        mine, theirs = self.both.run(feeds, self._dropped)
        self._drop_misfits(mine, theirs)
        points = {r: q for r, q in self.matching.points.items() if r in mine and r not in self._dropped}
        yield from self._input_pairs(feeds)
        wanted = {r: q for r, q in points.items() if r in self._compared}
        for root, other in wanted.items():
            yield self._pair(root, "output", mine[root], theirs.real(other))
        given = {q: mine[r].reshape(theirs.arrays[q][0].shape) for r, q in points.items()}
        alone = self._isolated.run(self.both.named(feeds), theirs, given, list(wanted.values()))
        for root, other in wanted.items():
            yield self._pair(root, "isolated", mine[root], alone.real(other))

    def _pair(self, root: Entry, role: Role, reference: Array, quantized: Array) -> Pair:
        match = self._compared[root]
        axis = self._axes[root.node] if reference.ndim > 1 else None
        return Pair(match.main.name, tensor_of(match.end), role, reference, quantized.reshape(reference.shape), axis)

    def _drop_misfits(self, mine: dict[Entry, Array], theirs: Forms) -> None:
        for root, array in mine.items():
            other = theirs.arrays[self.matching.points[root]][0]
            if array.size != other.size:
                self._dropped.setdefault(root, misfit(array.shape, other.shape))

    def _input_pairs(self, feeds: Batch) -> Iterator[Pair]:
        """As the network itself rounds them, at the first op that reads them."""
        for name, op in self._readers.items():
            quantizer = self._quantizer_of(name)
            assert quantizer is not None
            rounded = self.both.quantized(feeds, [quantizer]).real(Entry(quantizer.index))
            array = np.asarray(feeds[name], np.float32)
            yield Pair(op, name, "input", array, rounded, input_axis(array.ndim))

    def _find_readers(self) -> dict[str, str]:
        """Inputs that are rounded, and the first op that reads each."""
        graph, inputs = self._mine, {self._mine.variables[name]: name for name in self._mine.inputs}
        owned = [step for step in graph.steps if step.index in self.matching.owner]
        reads = {step.index: [inputs[e.node] for e in step.inputs if e.node in inputs] for step in owned}
        rounded = [name for name in graph.inputs if self._quantizer_of(name) is not None]
        first = first_readers(rounded, reads)
        return {name: self.matching.owner[index].main.name for name, index in first.items()}

    def _quantizer_of(self, name: str) -> Node | None:
        return self.matching.quantizer_of(self.matching.points[Entry(self._mine.variables[name])])
