"""What a quantized network rounds, seen in the reference: values and weights, and the ops at which that starts.

An op with an integer kernel rounds what it reads and what it writes, and nobody else's: quantize_net puts a conversion
between it and an op that stays in fp32. Fully connected layers give real numbers wherever no integer kernel reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from inc_tb.frameworks.mxnet.graph import Entry
from inc_tb.frameworks.mxnet.grids import unknown_grid
from inc_tb.frameworks.mxnet.match import Match
from inc_tb.frameworks.mxnet.side_by_side import SideBySide
from inc_tb.frameworks.mxnet.weights import read_bias, read_weights
from inc_tb.frameworks.ops import Array, Quantization, Site, Unit

_FOLLOWERS = {"_contrib_quantized_flatten", "_contrib_quantized_act", "_contrib_quantized_pooling"}
"""They hand on whole numbers as they get them, or some of them."""


@dataclass
class Rounding:
    """How the sites are carried out in the reference."""

    values: dict[str, tuple[Entry, Quantization]] = field(default_factory=dict)
    """Site -> what is rounded for all who read it."""
    reads: dict[str, tuple[Entry, int, Quantization]] = field(default_factory=dict)
    """Site -> what is rounded for one node."""
    weights: dict[str, tuple[int, Mapping[str, Array]]] = field(default_factory=dict)
    """Site -> the node, and its parameters as they are rounded."""


class Sites:
    def __init__(self, both: SideBySide) -> None:
        """After they have run once."""
        self.rounding = Rounding()
        self.all: list[Site] = []
        self._shared: dict[str, str] = {}
        self._both = both
        self._matching = both.matching
        self._graph = both.matching.reference
        chosen = [match for match in self._matching.matches if match.node.is_quantized]
        self.units = [Unit(m.main.name, [m.main.name, *(s.name for s in m.steps if s is not m.main)]) for m in chosen]
        for match in chosen:
            self._add_weights(match)
            self._add_reads(match)
            self._add_result(match)

    def _add(self, name: str, kind: Literal["activation", "weight"], match: Match, shared: str = "") -> None:
        self.all.append(Site(name, kind, frozenset([match.main.name]), shared or name))

    def _add_weights(self, match: Match) -> None:
        graphs = self._matching.reference, self._matching.quantized
        weights = read_weights(match, *graphs, self._both.grid_read(match))
        if weights is None or weights.reference.shape != weights.quantized.shape:
            return
        bias = read_bias(match, *graphs)
        arrays = {weights.name: weights.unfolded} | ({bias.name: bias.quantized} if bias is not None else {})
        name = f"weights of {match.main.name}"
        self.rounding.weights[name] = match.main.index, arrays
        self._add(name, "weight", match)

    def _add_reads(self, match: Match) -> None:
        inside = {step.index for step in match.steps}
        for step in match.steps:
            for entry in dict.fromkeys(self._graph.values(step)):
                found = self._read_grid(match, entry)
                if entry.node not in inside and found is not None:
                    value = self._graph.nodes[entry.node].name
                    name = f"{value} for {step.name}"
                    self.rounding.reads[name] = entry, step.index, found
                    self._add(name, "activation", match, self._shared.get(value, value))

    def _read_grid(self, match: Match, entry: Entry) -> Quantization | None:
        """As the quantized network rounds it for this op."""
        form, found = self._form_read(match, entry), self._both.read_grid(entry)
        if form is None or found is None:
            return None
        # Whatever its producer loses: rounded for this op alone, it keeps its sign.
        whole = unknown_grid(found.dtype)
        return replace(found, low=whole.low) if self._matching.is_static(form) else whole

    def _form_read(self, match: Match, entry: Entry) -> Entry | None:
        root = self._matching.points.get(entry)
        return next((e for e in match.node.inputs if self._matching.root(e) == root and e.at == 0), None)

    def _add_result(self, match: Match) -> None:
        end = Entry(match.end.index)
        found = self._both.grids.get(end)
        if found is None or _is_real(match):
            return
        is_static = self._matching.is_static(self._matching.forms(Entry(match.node.index))[0])
        if match.node.type in _FOLLOWERS and not is_static:
            return  # its range is that of what it reads, which its reading rounds
        name = match.end.name
        self.rounding.values[name] = end, found if is_static else unknown_grid(found.dtype)
        before = next((e for e in self._graph.values(match.main)), None)
        if match.node.type in _FOLLOWERS and before is not None and _is_same(self._both.read_grid(before), found):
            value = self._graph.nodes[before.node].name
            self._shared[name] = self._shared.get(value, value)
        self._add(name, "activation", match, self._shared.get(name, name))


def _is_real(match: Match) -> bool:
    part = match.node.weighted
    return part is not None and part.type == "FullyConnected"


def _is_same(a: Quantization | None, b: Quantization) -> bool:
    return a is not None and a.dtype == b.dtype and bool(np.array_equal(np.asarray(a.scale), np.asarray(b.scale)))
