"""Both networks run on the same data: their values, and how the quantized one rounds them."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

import numpy as np

from inc_tb.frameworks.mxnet.graph import Entry, Node
from inc_tb.frameworks.mxnet.isolate import Forms
from inc_tb.frameworks.mxnet.match import Match, Matching
from inc_tb.frameworks.mxnet.runtime import Runner
from inc_tb.frameworks.ops import Array, Batch, Quantization


class SideBySide:
    def __init__(self, matching: Matching) -> None:
        self.matching = matching
        self.notes: list[str] = []
        self._runners = Runner(matching.reference), Runner(matching.quantized)
        self._inputs = {matching.reference.variables[name] for name in matching.reference.inputs}
        self.grids: dict[Entry, Quantization | None] = {}
        """Of values of the reference, how the quantized network rounds them."""
        self._read_grids: dict[Entry, Quantization] = {}
        """Of values that are real numbers in the quantized network, how it rounds them for integer kernels."""

    def trace(self, feeds: Batch) -> dict[Entry, Array]:
        """Find out what is rounded how: types and ranges show when the networks run. The reference's values."""
        mine, theirs = self.run(feeds)
        self._read_grids = self._find_read_grids(feeds)
        unsigned = self._find_unsigned_sums(feeds)
        self.grids = {root: self._grid(self.matching.points[root], theirs, unsigned) for root in mine}
        self._note_lost_ranges()
        return mine

    def run(self, feeds: Batch, without: Container[Entry] = ()) -> tuple[dict[Entry, Array], Forms]:
        """What is the same in both, by its place in the reference, and the quantized network's by their own places."""
        points = self.matching.points.items()
        roots = {r: q for r, q in points if r.node not in self._inputs and r not in without}
        forms = {q: self.matching.forms(q) for q in roots.values()}
        mine = self._runners[0].run(feeds, list(roots))
        entries = list(dict.fromkeys(e for found in forms.values() for e in found))
        return mine, Forms(self._runners[1].run(self.named(feeds), entries), forms)

    def quantized(self, feeds: Batch, nodes: Sequence[Node]) -> Forms:
        """What nodes that quantize give."""
        forms = {Entry(node.index): [Entry(node.index, at) for at in range(3)] for node in nodes}
        entries = list(dict.fromkeys(e for found in forms.values() for e in found))
        return Forms(self._runners[1].run(self.named(feeds), entries) if entries else {}, forms)

    def named(self, feeds: Batch) -> dict[str, Array]:
        """By the inputs of the quantized network."""
        return {self.matching.input_names[name]: array for name, array in feeds.items()}

    def grid_read(self, match: Match) -> Quantization | None:
        """How the first thing that an op reads is rounded."""
        values = self.matching.reference.values(match.main)
        return self.read_grid(values[0]) if values else None

    def read_grid(self, value: Entry) -> Quantization | None:
        return self.grids.get(value) or self._read_grids.get(value)

    def _find_read_grids(self, feeds: Batch) -> dict[Entry, Quantization]:
        found = {r: n for r, q in self.matching.points.items() if (n := self.matching.quantizer_of(q)) is not None}
        made = self.quantized(feeds, list(found.values()))
        grids = {root: made.grid(Entry(node.index)) for root, node in found.items()}
        return {root: grid for root, grid in grids.items() if grid is not None}

    def _find_unsigned_sums(self, feeds: Batch) -> set[int]:
        """The nodes that add in place to whole numbers without a sign."""
        added = {node.index: node.added for node in self.matching.quantized.steps if node.is_quantized}
        entries = {index: entry for index, entry in added.items() if entry is not None}
        wanted = list(dict.fromkeys(entries.values()))
        arrays = self._runners[1].run(self.named(feeds), wanted) if wanted else {}
        return {index for index, entry in entries.items() if arrays[entry].dtype == np.uint8}

    def _grid(self, other: Entry, theirs: Forms, unsigned: Container[int]) -> Quantization | None:
        """Where MXNet adds to numbers without a sign, the sum has none either: what is below 0 is lost."""
        found = theirs.grid(other)
        if found is None or found.dtype != "int8" or other.node not in unsigned:
            return found
        self.notes.append(
            f"{self.matching.quantized.nodes[other.node].symbol} loses everything below 0: MXNet adds to numbers "
            "without a sign there (uint8), and gives the sum none either. Keep it in fp32"
        )
        return replace(found, low=0)

    def _note_lost_ranges(self) -> None:
        lost = [
            n.symbol for n in self.matching.quantized.steps
            if "min_calib_range" in n.attrs and not any(float(n.attrs[f"{end}_calib_range"]) for end in ("min", "max"))
        ]  # fmt: skip
        if lost:
            self.notes.append(
                f"the calibrated range of {', '.join(lost)} is 0 in the file: MXNet writes ranges with six decimals, "
                "so smaller ones are lost. Scale the values up, or keep these symbols in fp32"
            )
