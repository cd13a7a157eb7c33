"""What a quantized model rounds, seen in the reference: tensors and weights, and the ops at which that starts.

An op with an integer kernel rounds what it reads and what it writes, and nobody else's: TFLite, `quantize_saved_model`
and Neural Compressor put a conversion between it and an op that stays in fp32. In a graph with fake quantization a
tensor is rounded for everybody, as long as an op at either end of it is quantized.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from inc_tb.frameworks.match import Match
from inc_tb.frameworks.ops import Array, Quantization, Site, Unit
from inc_tb.frameworks.tensorflow.frozen import FrozenGraph
from inc_tb.frameworks.tensorflow.graph import Step
from inc_tb.frameworks.tensorflow.kinds import FOLLOWERS
from inc_tb.frameworks.tensorflow.match import Matching
from inc_tb.frameworks.weights import unfolded


class OwnRange(NamedTuple):
    """A range that is found while the model runs."""

    axes: tuple[int, ...] | None
    """Over which the largest values are sought; None is all of a sample."""
    is_symmetric: bool


@dataclass
class Rounding:
    """How the sites are carried out in the reference."""

    tensors: dict[str, tuple[str, Quantization]] = field(default_factory=dict)
    """Site -> the value that is rounded for all who read it."""
    reads: dict[str, tuple[str, str, Quantization | OwnRange]] = field(default_factory=dict)
    """Site -> the value, and the node that reads it rounded."""
    weights: dict[str, tuple[str, str, Array]] = field(default_factory=dict)
    """Site -> the node, its tensor of weights, and the rounded ones."""


class Sites:
    def __init__(self, matching: Matching, reference: FrozenGraph) -> None:
        self.notes: list[str] = []
        self.rounding = Rounding()
        self.all: list[Site] = []
        self._matching = matching
        self._reference = reference
        self._tensors = matching.quantized.tensors
        self._has_kernels = any(step.is_integer for step in matching.quantized.steps)
        self._grids = self._find_grids()
        self._starters = {index: match for index, match in sorted(matching.matches.items()) if self._starts(match)}
        self.units = [Unit(m.step.name, [m.step.name, *(s.name for s in m.folded)]) for m in self._starters.values()]
        for match in self._starters.values():
            self._add_weights(match)
        if self._has_kernels:
            self._add_kernel_sites()
        else:
            self._add_tensor_sites()
        for match in self._starters.values():
            if match.twin.is_dynamic and match.step.reads:
                self._add_read(match.step.name, match.step.name, match.step.reads[0], self._own_range(match))

    def _find_grids(self) -> dict[str, Quantization]:
        found = {}
        for root, other in self._matching.points.items():
            quantization = self._tensors[other].quantization
            if quantization is not None and quantization.scale is not None and quantization.axis is None:
                found[root] = quantization
        return found

    def _starts(self, match: Match[Step]) -> bool:
        if match.twin.weight_quantization is not None or match.twin.is_integer or match.twin.is_dynamic:
            return True
        if self._has_kernels or match.step.type in FOLLOWERS:
            return False
        reads = [v for v in match.step.reads if v in self._matching.points]
        return match.end.outputs[0] in self._grids and all(v in self._grids for v in reads)

    # weights

    def _add_weights(self, match: Match[Step]) -> None:
        if match.twin.weight_quantization is None:
            return
        found = self._matching.weights(match)
        if found is None or not found.reference.size:
            return
        own = self._reference.canonical(match.step, self._reference.raw(match.step.weight))
        # A batch norm or a factor that is folded into the twin's weights is still an op of its own here.
        changed = unfolded(own, found.reference if match.affine else own, found.quantized)
        name = f"weights of {match.step.name}"
        stored = self._reference.stored(match.step, changed)
        self.rounding.weights[name] = match.step.name, match.step.weight, stored
        self.all.append(Site(name, "weight", frozenset([match.step.name]), name))
        self._add_bias(match, name)

    def _add_bias(self, match: Match[Step], shared: str) -> None:
        """Its step is the product of the input's and the weights', which may be coarse."""
        bias = self._matching.quantized.bias(match.twin)
        if bias is None or not match.twin.is_integer or [s.type for s in match.affine] != ["Add"]:
            return
        (adding,) = match.affine
        own = [(name, self._reference.raw(name)) for name in adding.constants]
        if len(own) != 1 or own[0][1].size != bias.size:
            return
        tensor, values = own[0]
        name = f"bias of {match.step.name}"
        self.rounding.weights[name] = adding.name, tensor, bias.reshape(values.shape).astype(values.dtype)
        self.all.append(Site(name, "weight", frozenset([match.step.name]), shared))

    # kernels of integers

    def _add_kernel_sites(self) -> None:
        same_grid: dict[str, str] = {}
        for match in self._starters.values():
            if not match.twin.is_integer:
                continue
            for step in (match.step, *match.folded):
                for value in dict.fromkeys(step.reads):
                    if value in self._grids and not self._is_inside(match, value):
                        shared = same_grid.get(value, value)
                        self._add_read(match.step.name, step.name, value, self._grids[value], shared)
            end = match.end.outputs[0]
            if end not in self._grids or not self._tensors[match.root].is_integer:
                continue
            before = next((v for v in match.step.reads if v in self._grids and self._is_same(v, end)), None)
            if match.step.type in FOLLOWERS and before is not None:
                same_grid[end] = same_grid.get(before, before)
            self.rounding.tensors[end] = end, self._grids[end]
            self.all.append(Site(end, "activation", frozenset([match.step.name]), same_grid.get(end, end)))

    def _is_inside(self, match: Match[Step], value: str) -> bool:
        """Made and read within one kernel."""
        producer = self._reference.producer.get(value)
        return producer is not None and producer in (match.step, *match.folded)

    def _is_same(self, a: str, b: str) -> bool:
        mine, theirs = self._grids[a], self._grids[b]
        return mine.dtype == theirs.dtype and bool(
            np.allclose(np.asarray(mine.scale), np.asarray(theirs.scale), rtol=1e-6)
            and np.array_equal(np.asarray(mine.zero_point), np.asarray(theirs.zero_point))
        )

    def _own_range(self, match: Match[Step]) -> OwnRange:
        """Of each row for products of matrices, else of each sample, as TFLite does it; or as the graph says."""
        if isinstance(self._matching.quantized, FrozenGraph):
            return OwnRange(self._matching.quantized.run_time_axes(match.twin), is_symmetric=True)
        return OwnRange((-1,) if match.step.type == "MatMul" else None, is_symmetric=False)

    def _add_read(self, unit: str, node: str, value: str, grid: Quantization | OwnRange, shared: str = "") -> None:
        name = f"{value} for {node}"
        self.rounding.reads[name] = value, node, grid
        self.all.append(Site(name, "activation", frozenset([unit]), shared or name))

    # fake quantization

    def _add_tensor_sites(self) -> None:
        started: dict[str, list[str]] = {}
        for value in (*self._reference.input_roots.values(), *(o for s in self._reference.steps for o in s.outputs)):
            if value not in self._grids:
                continue
            by = dict.fromkeys(self._writers(value, started))
            by.update(dict.fromkeys(self._readers(value)))
            started[value] = list(by)
            if by:
                self.rounding.tensors[value] = value, self._grids[value]
                self.all.append(Site(value, "activation", frozenset(by), value))

    def _writers(self, value: str, started: dict[str, list[str]]) -> Iterator[str]:
        producer = self._reference.producer.get(value)
        if producer is None:
            return
        source = self._owner(producer)
        if source.index in self._starters:
            yield source.name
        elif producer.type in FOLLOWERS:
            for before in producer.reads:
                yield from started.get(before, ())

    def _readers(self, value: str) -> Iterator[str]:
        for step in self._reference.consumers[value]:
            if self._owner(step).index in self._starters:
                yield self._owner(step).name

    def _owner(self, step: Step) -> Step:
        """The op that it is part of: in the quantized model, or because nothing is rounded between the two."""
        match = self._matching.folded_into.get(step.index)
        if match is not None:
            return match.step
        while step.index not in self._starters and len(step.reads) == 1 and step.reads[0] not in self._grids:
            before = self._reference.producer.get(step.reads[0])
            if before is None or len(self._reference.consumers[step.reads[0]]) != 1:
                break
            step = before
        return step
