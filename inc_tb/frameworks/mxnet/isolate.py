"""The quantized network cut at every matched value, each piece fed with the reference's values.

What comes out of a piece differs from the reference only by what that piece itself does: its inputs' rounding, its
weights' rounding, its output's rounding. That is the added error of its op.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from inc_tb.frameworks.mxnet.graph import VARIABLE, Entry, made_symbol
from inc_tb.frameworks.mxnet.grids import divisible, grid, is_whole
from inc_tb.frameworks.mxnet.match import Matching
from inc_tb.frameworks.mxnet.runtime import Executor, keep, shapes_of
from inc_tb.frameworks.ops import Array, Batch, Quantization
from inc_tb.frameworks.rounding import dequantize, quantize

_FED = "inc_tb_reference"


class Forms:
    """Values of the quantized network as they came out: real numbers, or whole ones with their range."""

    def __init__(self, arrays: Mapping[Entry, Array], forms: Mapping[Entry, Sequence[Entry]]) -> None:
        self.arrays = {root: [arrays[entry] for entry in entries] for root, entries in forms.items()}

    def grid(self, root: Entry) -> Quantization | None:
        data, *ends = self.arrays[root]
        return grid(data.dtype, *ends) if ends and is_whole(data.dtype) else None

    def real(self, root: Entry) -> Array:
        found = self.grid(root)
        data = self.arrays[root][0]
        return data if found is None else dequantize(data, found)


class Isolated:
    def __init__(self, matching: Matching) -> None:
        self._matching = matching
        self._opened: OrderedDict[Any, Executor] = OrderedDict()

    def run(self, feeds: Batch, theirs: Forms, given: Mapping[Entry, Array], wanted: Sequence[Entry]) -> Forms:
        """`given` has the reference's values by what they are in the quantized network."""
        fed, place = dict(feeds), {}
        for root, array in given.items():
            forms = self._matching.forms(root)
            found, ends = theirs.grid(root), theirs.arrays[root][1:]
            whole = array if found is None else quantize(array, divisible(found), theirs.arrays[root][0].dtype)
            for entry, value in zip(forms, (whole, *ends), strict=True):
                place[entry] = f"{_FED}_{entry.node}_{entry.at}"
                fed[place[entry]] = np.ascontiguousarray(value)
        entries = [entry for root in wanted for entry in self._matching.forms(root)]
        key = tuple(wanted), shapes_of(fed)
        if key not in self._opened:
            keep(self._opened, key, self._open(place, entries, fed))
        executor = self._opened[key]
        executor.feed(fed)
        arrays = {e: np.asarray(a.asnumpy()) for e, a in zip(entries, executor.run(), strict=True)}
        return Forms(arrays, {root: self._matching.forms(root) for root in wanted})

    def _open(self, place: Mapping[Entry, str], entries: Sequence[Entry], fed: Batch) -> Executor:
        document = self._matching.quantized.document
        new = {name: i for i, name in enumerate(place.values())}

        def moved(entry: Sequence[int]) -> list[int]:
            name = place.get(Entry(*entry[:2]))
            return [new[name], 0, 0] if name is not None else [entry[0] + len(new), *entry[1:]]

        variables = [{"op": VARIABLE, "name": name, "inputs": []} for name in new]
        nodes = [{**node, "inputs": [moved(entry) for entry in node["inputs"]]} for node in document["nodes"]]
        heads = [[entry.node + len(new), entry.at, 0] for entry in entries]
        symbol = made_symbol({**document, "nodes": [*variables, *nodes], "heads": heads})
        names = set(symbol.list_arguments())
        network = self._matching.quantized.network._replace(symbol=symbol)
        return Executor(network, {name: array for name, array in fed.items() if name in names})
