"""Two networks of MXNet as ops and pairs of arrays."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from inc_tb.adapters.common import fitted, linked, split
from inc_tb.adapters.mxnet.graph import Entry, Graph, Node
from inc_tb.adapters.mxnet.grids import unknown_grid
from inc_tb.adapters.mxnet.isolate import Forms, Isolated
from inc_tb.adapters.mxnet.match import Match, Matching
from inc_tb.adapters.mxnet.runtime import Runner
from inc_tb.adapters.mxnet.weights import parameter, read_weights
from inc_tb.capture import Array, Batch, Input, Pair, Role
from inc_tb.errors import ModelError
from inc_tb.records import Op, Quantization

_MOST_SAMPLES, _TRACED = 32, 4
_CHANNELS_FIRST = {"Convolution", "Deconvolution", "Pooling", "BatchNorm", "LRN", "InstanceNorm", "UpSampling"}
_CHANNELS_LAST = {"FullyConnected", "Embedding", "LayerNorm", "softmax", "Flatten", "Reshape", "transpose"}


class MxnetAdapter:
    framework = "mxnet"

    def __init__(self, reference: Any, quantized: Any, *, memory_budget: int = 1 << 30) -> None:
        self.notes: list[str] = []
        self._budget = memory_budget
        self.matching = Matching(Graph(reference), Graph(quantized))
        self._mine, self._theirs = self.matching.reference, self.matching.quantized
        self._runners = Runner(self._mine), Runner(self._theirs)
        self._isolated = Isolated(self.matching)
        self._inputs = self._mine.described_inputs()
        self._ops: list[Op] | None = None
        self._dropped: dict[Entry, str] = {}

    def inputs(self) -> Sequence[Input]:
        return self._inputs

    def batch_size(self) -> int:
        """Before data tell the shapes; batches that turn out to be too large are run in parts."""
        return _MOST_SAMPLES

    def trace(self, batch: Batch) -> None:
        """Types and ranges show when the networks run."""
        if self._ops is not None:
            return
        feeds = fitted(batch, self._inputs, free=self._mine.inputs)
        few = next(split(feeds, None, _TRACED))
        self._compared = {Entry(match.end.index): match for match in self.matching.matches}
        mine, theirs = self._run_both(few)
        for root, array in mine.items():
            if array.dtype.kind != "f":
                self._dropped[root] = "its output holds no real numbers"
        self._bytes = sum(a.nbytes for a in mine.values()) / max(1, _rows(few))
        self.read_grids = self._find_read_grids(few)
        unsigned = self._find_unsigned_sums(few)
        self.grids = {root: self._grid(self.matching.points[root], theirs, unsigned) for root in mine}
        """Of values of the reference, how the quantized network rounds them."""
        self._inputs = [Input(n, np.dtype(np.float32), (None,) * feeds[n].ndim) for n in self._mine.inputs]
        self._axes = _channel_axes(self._mine)
        self._ops = self._describe_ops()
        self._note_lost_ranges()

    def _find_unsigned_sums(self, feeds: Batch) -> set[int]:
        """The nodes that add in place to whole numbers without a sign."""
        added = {node.index: node.added for node in self._theirs.steps if node.is_quantized}
        entries = {index: entry for index, entry in added.items() if entry is not None}
        wanted = list(dict.fromkeys(entries.values()))
        arrays = self._runners[1].run(self._named(feeds), wanted) if wanted else {}
        return {index for index, entry in entries.items() if arrays[entry].dtype == np.uint8}

    def _grid(self, other: Entry, theirs: Forms, unsigned: Container[int]) -> Quantization | None:
        """Where MXNet adds to numbers without a sign, the sum has none either: what is below 0 is lost."""
        found = theirs.grid(other)
        if found is None or found.dtype != "int8" or other.node not in unsigned:
            return found
        self.notes.append(
            f"{self._theirs.nodes[other.node].symbol} loses everything below 0: MXNet adds to numbers without a sign "
            "there (uint8), and gives the sum none either. Keep it in fp32"
        )
        return replace(found, low=0)

    def _run_both(self, feeds: Batch) -> tuple[dict[Entry, Array], Forms]:
        roots = {r: q for r, q in self.matching.points.items() if r.node not in self._variables()}
        roots = {r: q for r, q in roots.items() if r not in self._dropped}
        forms = {q: self.matching.forms(q) for q in roots.values()}
        mine = self._runners[0].run(feeds, list(roots))
        entries = list(dict.fromkeys(e for found in forms.values() for e in found))
        return mine, Forms(self._runners[1].run(self._named(feeds), entries), forms)

    def _variables(self) -> set[int]:
        return {self._mine.variables[name] for name in self._mine.inputs}

    def _find_read_grids(self, feeds: Batch) -> dict[Entry, Quantization]:
        """Of values that are real numbers in the quantized network, how it rounds them for integer kernels."""
        found = {r: n for r, q in self.matching.points.items() if (n := self.matching.quantizer_of(q)) is not None}
        made = self._quantized(feeds, list(found.values()))
        grids = {root: made.grid(Entry(node.index)) for root, node in found.items()}
        return {root: grid for root, grid in grids.items() if grid is not None}

    def _quantized(self, feeds: Batch, nodes: Sequence[Node]) -> Forms:
        forms = {Entry(node.index): [Entry(node.index, at) for at in range(3)] for node in nodes}
        entries = list(dict.fromkeys(e for found in forms.values() for e in found))
        return Forms(self._runners[1].run(self._named(feeds), entries) if entries else {}, forms)

    def _named(self, feeds: Batch) -> dict[str, Array]:
        """By the inputs of the quantized network."""
        return {self.matching.input_names[name]: array for name, array in feeds.items()}

    def ops(self) -> Sequence[Op]:
        if self._ops is None:
            raise ModelError("the networks have not run yet; expected trace(batch) before ops().")
        return self._ops

    def weights(self) -> Iterator[Pair]:
        for match in self.matching.matches:
            found = read_weights(match, self._mine, self._theirs, self.grid_read(match))
            if found is not None and found.reference.shape == found.quantized.shape:
                axis = 0 if found.reference.ndim > 1 else None
                yield Pair(match.main.name, found.name, "weight", found.reference, found.quantized, axis)

    def grid_read(self, match: Match) -> Quantization | None:
        """How the first thing that an op reads is rounded."""
        values = self._mine.values(match.main)
        return self.read_grid(values[0]) if values else None

    def read_grid(self, value: Entry) -> Quantization | None:
        return self.grids.get(value) or self.read_grids.get(value)

    def run(self, batch: Batch) -> Iterator[Pair]:
        self.trace(batch)
        feeds = fitted(batch, self._inputs)
        is_dynamic = not all(self.matching.is_static(e) for e in self._rounded())
        # Ranges that are found at run time are those of the whole batch.
        most = _rows(feeds) if is_dynamic else int(max(1, self._budget // (3 * self._bytes + 1)))
        for part in split(feeds, None, most):
            yield from self._run_part(part)

    def _rounded(self) -> Iterator[Entry]:
        yield from (Entry(node.index) for node in self._theirs.steps if node.is_integer)

    def _run_part(self, feeds: Batch) -> Iterator[Pair]:
        mine, theirs = self._run_both(feeds)
        self._drop_misfits(mine, theirs)
        points = {r: q for r, q in self.matching.points.items() if r in mine and r not in self._dropped}
        yield from self._input_pairs(feeds)
        wanted = {r: q for r, q in points.items() if r in self._compared}
        for root, other in wanted.items():
            yield self._pair(root, "output", mine[root], theirs.real(other))
        given = {q: mine[r].reshape(theirs.arrays[q][0].shape) for r, q in points.items()}
        alone = self._isolated.run(self._named(feeds), theirs, given, list(wanted.values()))
        for root, other in wanted.items():
            yield self._pair(root, "isolated", mine[root], alone.real(other))

    def _pair(self, root: Entry, role: Role, reference: Array, quantized: Array) -> Pair:
        match = self._compared[root]
        axis = self._axes[root.node] if reference.ndim > 1 else None
        return Pair(match.main.name, _tensor(match.end), role, reference, quantized.reshape(reference.shape), axis)

    def _input_pairs(self, feeds: Batch) -> Iterator[Pair]:
        """As the network itself rounds them, at the first op that reads them."""
        for name in self._mine.inputs:
            root = Entry(self._mine.variables[name])
            quantizer = self.matching.quantizer_of(self.matching.points[root])
            first = next((step for step in self._mine.readers[root] if step.index in self.matching.owner), None)
            if quantizer is not None and first is not None:
                rounded = self._quantized(feeds, [quantizer]).real(Entry(quantizer.index))
                array = np.asarray(feeds[name], np.float32)
                axis = None if array.ndim < 2 else 1 if array.ndim > 3 else array.ndim - 1
                yield Pair(self.matching.owner[first.index].main.name, name, "input", array, rounded, axis)

    def _drop_misfits(self, mine: dict[Entry, Array], theirs: Forms) -> None:
        """Ops whose output turned out to be another tensor in the quantized model are not compared after all."""
        for root, array in mine.items():
            other = theirs.arrays[self.matching.points[root]][0]
            if array.size != other.size and root not in self._dropped:
                reason = f"its output is {array.shape} in the reference and {other.shape} in the quantized model"
                self._dropped[root] = reason
                for op in self.ops():
                    if op.compared_at and root in self._compared and op.compared_at == self._compared[root].main.name:
                        is_itself = op.name == op.compared_at
                        op.note = reason if is_itself else f"part of {op.compared_at}, which is not compared: {reason}"
                        op.compared_at = ""

    # what there is

    def _describe_ops(self) -> list[Op]:
        graph, known = self._mine, {step.index for step in self._mine.steps}
        ops: list[Op] = []
        for step in graph.steps:
            inputs = dict.fromkeys(graph.nodes[e.node].name for e in graph.values(step) if e.node in known)
            op = Op(step.name, step.type, len(ops), block=_block(step.name), inputs=list(inputs), unit=step.name)
            op.tensor = _tensor(step)
            match = self.matching.owner.get(step.index)
            if match is None:
                op.note = "the quantized model has no counterpart of it"
            else:
                op.unit, op.module = match.main.name, match.node.symbol
                self._describe(op, step, match)
            ops.append(op)
        return linked(ops)

    def _describe(self, op: Op, step: Node, match: Match) -> None:
        reason = self._dropped.get(Entry(match.end.index), "")
        if step is not match.main:
            op.compared_at = "" if reason else match.main.name
            told = f"which is not compared: {reason}" if reason else "compared there"
            op.note = f"part of {match.main.name} in the quantized model; {told}"
            return
        op.compared_at, op.note = ("", reason) if reason else (op.name, "")
        op.tensor = _tensor(match.end)
        weights = read_weights(match, self._mine, self._theirs, self.grid_read(match))
        op.weight = weights.quantization if weights is not None else None
        forms = self.matching.forms(Entry(match.node.index))
        found = self.grids.get(Entry(match.end.index))
        op.activation = found if found is None or self.matching.is_static(forms[0]) else unknown_grid(found.dtype)
        if name := parameter(self._mine, step.weighted, 1):
            op.params = prod(self._mine.array(name).shape)

    def _note_lost_ranges(self) -> None:
        lost = [
            n.symbol for n in self._theirs.steps
            if "min_calib_range" in n.attrs and not any(float(n.attrs[f"{end}_calib_range"]) for end in ("min", "max"))
        ]  # fmt: skip
        if lost:
            self.notes.append(
                f"the calibrated range of {', '.join(lost)} is 0 in the file: MXNet writes ranges with six decimals, "
                "so smaller ones are lost. Scale the values up, or keep these symbols in fp32"
            )


def _tensor(step: Node) -> str:
    return f"{step.name}_output"


def _block(name: str) -> str:
    """Of gluon's names, such as net_block0_conv0_fwd, what is before the layer."""
    return name.removesuffix("_fwd").rpartition("_")[0].rstrip("_")


def _rows(feeds: Batch) -> int:
    return max((len(array) for array in feeds.values() if array.ndim), default=1)


def _channel_axes(graph: Graph) -> dict[int, int]:
    """Where the channels of each node's result are; element-wise ops keep the place of their input."""
    axes: dict[int, int] = {}
    for step in graph.steps:
        types = {part.type for part in step.parts}
        before = next((axes[e.node] for e in graph.values(step) if e.node in axes), -1)
        is_last = types & _CHANNELS_LAST or step.attrs.get("layout", "").endswith("C")
        axes[step.index] = -1 if is_last else 1 if types & _CHANNELS_FIRST else before
    return axes
