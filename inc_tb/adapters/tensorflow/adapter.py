"""Two TensorFlow models as ops and pairs of arrays."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import Any

import numpy as np

from inc_tb.adapters import common
from inc_tb.adapters.common import linked, split
from inc_tb.adapters.tensorflow.engines import open_engine
from inc_tb.adapters.tensorflow.frozen import FrozenGraph
from inc_tb.adapters.tensorflow.graph import Engine, Graph, Step
from inc_tb.adapters.tensorflow.grids import unknown_grid
from inc_tb.adapters.tensorflow.kinds import ACTIVATIONS, AFFINE
from inc_tb.adapters.tensorflow.match import Match, Matching
from inc_tb.adapters.tensorflow.source import as_reference, open_source
from inc_tb.capture import Array, Batch, Input, Pair
from inc_tb.errors import MismatchError
from inc_tb.records import Op

_MOST_SAMPLES = 32
_LARGEST = 24 << 20
"""Bytes of an array that the C library's heap still takes back and gives out again, without asking for fresh memory."""


class TensorFlowAdapter:
    framework = "tensorflow"

    def __init__(self, reference: Any, quantized: Any, *, memory_budget: int = 1 << 30) -> None:
        self.notes: list[str] = []
        self._budget = memory_budget
        source = open_source(quantized)
        self._mine = open_engine(as_reference(source) if reference is None else reference)
        self._theirs = open_engine(source)
        self._at_once = _samples_at_once(self._mine, self._theirs)
        self.matching = Matching(self._mine.graph, self._theirs.graph)
        self._points = self._choose_points()
        self._compared = self._choose_compared()
        self._inputs = [i if not i.shape else i._replace(shape=(None, *i.shape[1:])) for i in self._mine.graph.inputs]
        self._axes = _channel_axes(self._mine.graph)
        self._ops = self._describe_ops()
        self._readers = self._find_readers()
        self._dropped: set[str] = set()
        self._pool = ThreadPoolExecutor(1)

    def inputs(self) -> Sequence[Input]:
        return self._inputs

    def batch_size(self) -> int:
        if self._at_once is not None:
            return self._at_once * max(1, _MOST_SAMPLES // self._at_once)
        return self._fitting_samples()

    def _fitting_samples(self) -> int:
        """How many samples fit the memory: of each value the reference's array, the quantized one, and the isolated."""
        sizes = self._mine.bytes_by_root()
        own = [sizes.get(root, 0) for root in self._points]
        return max(1, min(_MOST_SAMPLES, self._budget // (3 * sum(own) + 1), _LARGEST // (max(own, default=0) + 1)))

    def trace(self, batch: Batch) -> None:
        """Nothing to find out: the graph says it all."""

    def ops(self) -> Sequence[Op]:
        return self._ops

    def weights(self) -> Iterator[Pair]:
        for match in self.matching.matches.values():
            found = self.matching.weights(match)
            if found is not None and found.reference.size:
                axis = found.reference.ndim - 1 if found.reference.ndim > 1 else None
                yield Pair(match.step.name, match.step.weight, "weight", found.reference, found.quantized, axis)

    def run(self, batch: Batch) -> Iterator[Pair]:
        for part in split(self._fitted(batch), self._at_once, self._fitting_samples()):
            yield from self._run_part(part)

    def _run_part(self, feeds: Batch) -> Iterator[Pair]:
        """The quantized model beside the reference, then its ops one by one beside the use of what came out."""
        theirs_fed = {self.matching.input_names[name]: array for name, array in feeds.items()}
        roots = {r: q for r, q in self._points.items() if r not in self._dropped}
        waiting = self._pool.submit(self._theirs.run, theirs_fed, list(dict.fromkeys(roots.values())))
        mine = self._mine.run(feeds, list(roots))
        theirs = waiting.result()
        roots = self._without_misfits(roots, mine, theirs)
        given = {
            q: mine[r].reshape(theirs[q].shape) for r, q in reversed(roots.items()) if q in self._theirs.graph.producer
        }
        wanted = {r: q for r, q in roots.items() if r in self._compared}
        alone = self._pool.submit(self._theirs.run_isolated, theirs_fed, given, list(dict.fromkeys(wanted.values())))
        for name, op in self._readers.items():
            root = self._mine.graph.input_roots[name]
            array = np.asarray(feeds[name], np.float32)
            yield Pair(op, name, "input", array, theirs[self._points[root]].reshape(array.shape), _last_axis(array))
        for root, other in wanted.items():
            yield self._pair(root, "output", mine[root], theirs[other])
        del theirs, given
        isolated = alone.result()
        for root, other in wanted.items():
            yield self._pair(root, "isolated", mine[root], isolated[other])

    def _pair(self, root: str, role: Any, reference: Array, quantized: Array) -> Pair:
        axis = self._axes[root] if reference.ndim > 1 else None
        return Pair(self._compared[root], root, role, reference, quantized.reshape(reference.shape), axis)

    def _without_misfits(
        self, roots: Mapping[str, str], mine: Mapping[str, Array], theirs: Mapping[str, Array]
    ) -> dict[str, str]:
        """Ops whose output turned out to be another tensor in the quantized model are not compared after all."""
        for root, other in roots.items():
            if mine[root].size != theirs[other].size:
                self._dropped.add(root)
                shapes = mine[root].shape, theirs[other].shape
                reason = f"its output is {shapes[0]} in the reference and {shapes[1]} in the quantized model"
                for op in self._ops:
                    if op.compared_at and op.compared_at == self._compared.get(root):
                        is_itself = op.name == op.compared_at
                        op.note = reason if is_itself else f"part of {op.compared_at}, which is not compared: {reason}"
                        op.compared_at = ""
        return {r: q for r, q in roots.items() if r not in self._dropped}

    # what there is

    def _choose_points(self) -> dict[str, str]:
        """Real numbers in both models."""
        graph = self._mine.graph
        whole = {graph.input_roots[i.name] for i in graph.inputs if i.dtype.kind != "f"}
        return {r: q for r, q in self.matching.points.items() if r not in whole}

    def _choose_compared(self) -> dict[str, str]:
        ends = ((match.end.outputs[0], match.step.name) for match in self.matching.matches.values())
        return {root: name for root, name in ends if root in self._points}

    def _find_readers(self) -> dict[str, str]:
        """Inputs of the model that are quantized with a fixed scale, and the first op that reads each."""
        graph, found = self._mine.graph, {}
        for name, root in graph.input_roots.items():
            if root not in self._points:
                continue
            quantization = self._theirs.graph.values[self._points[root]].quantization
            reading = [step.name for step in graph.consumers[root]]
            first = next((op.name for op in self._ops if op.name in reading), None)
            if quantization is not None and quantization.scale is not None and first is not None:
                found[name] = first
        return found

    def _describe_ops(self) -> list[Op]:
        graph = self._mine.graph
        made_by = {out: step.name for step in graph.steps for out in step.outputs}
        unit: dict[str, str] = {}
        layers = _layers(graph)
        ops: list[Op] = []
        for step in graph.steps:
            inputs = list(dict.fromkeys(made_by[v] for v in step.values if v in made_by))
            op = Op(step.name, step.kind, len(ops), block=step.name.rpartition("/")[0], inputs=inputs)
            op.tensor, op.module = step.outputs[0], layers[step.name]
            op.unit = unit[op.name] = self._unit(step, inputs, unit)
            match = self.matching.matches.get(step.index)
            if step.index in self.matching.folded_into:
                op.compared_at = self.matching.folded_into[step.index].step.name
                op.note = f"part of {op.compared_at} in the quantized model; compared there"
            elif match is not None:
                op.compared_at = op.name
                self._describe_quantization(op, match)
            else:
                op.note = self.matching.missing.get(step.index, "the quantized model has no counterpart of it")
            ops.append(op)
        return linked(ops)

    def _describe_quantization(self, op: Op, match: Match) -> None:
        op.tensor = match.end.outputs[0]
        op.weight = match.twin.weight_quantization
        op.activation = self._theirs.graph.values[match.value].quantization
        if op.activation is None and match.twin.is_dynamic:
            op.activation = unknown_grid("int8")
        op.params = prod(self._mine.graph.weight_shape(match.step)) if match.step.weight else 0

    def _unit(self, step: Step, inputs: Sequence[str], unit: Mapping[str, str]) -> str:
        """Ops between which nothing is quantized change precision together: Conv2D, BiasAdd, Relu."""
        if step.index in self.matching.folded_into:
            return unit.get(self.matching.folded_into[step.index].step.name, step.name)
        if len(step.values) != 1 or len(inputs) != 1:
            return step.name
        source = step.values[0]
        twin = self._theirs.graph.values.get(self._points.get(source, ""))
        alone = len(self._mine.graph.consumers[source]) == 1
        joins = step.type in ACTIVATIONS or (step.type in AFFINE and bool(step.constants))
        return unit[inputs[0]] if alone and joins and twin is not None and twin.quantization is None else step.name

    # data

    def _fitted(self, batch: Batch) -> dict[str, Array]:
        return fitted(batch, self._inputs, self._at_once)


def fitted(batch: Batch, inputs: Sequence[Input], at_once: int | None) -> dict[str, Array]:
    """What fits the model, in a number that it takes."""
    free = [i.name for i in inputs if not i.is_known]
    found = common.fitted(batch, inputs, free=free, hint=", and images have their channels last")
    rows = {len(array) for array in found.values() if array.ndim}
    if at_once is not None and any(n % at_once for n in rows):
        raise MismatchError(
            f"the batch has {max(rows)} samples, the model takes {at_once} at a time. Give a multiple of that."
        )
    return found


def _samples_at_once(*engines: Engine) -> int | None:
    found = {n for engine in engines if (n := engine.most_samples()) is not None}
    if len(found) > 1:
        raise MismatchError(
            f"one model takes {min(found)} samples at a time, the other {max(found)}; expected the same number. Export "
            "both with the same batch size, or with any."
        )
    return next(iter(found), None)


def _last_axis(array: Array) -> int | None:
    return array.ndim - 1 if array.ndim > 1 else None


def _channel_axes(graph: Graph) -> dict[str, int]:
    """At the end, except behind ops that work with the channels first."""
    axes: dict[str, int] = {}
    for step in graph.steps:
        before = next((axes[v] for v in step.values if v in axes), -1)
        keeps = step.type in ACTIVATIONS or step.type in AFFINE
        for out in step.outputs:
            axes[out] = before if keeps else step.axis
    return axes


def _layers(graph: Graph) -> dict[str, str]:
    """By op, the Keras layer that it is in, where the graph was made of layers.

    Each call of a layer has a scope of its own, which has the layer's name or that and a number: `conv_1` is the layer
    `conv_1` only where there is a scope `conv` beside it.
    """
    layers = graph.layers if isinstance(graph, FrozenGraph) else frozenset()
    scopes = {step.name.rpartition("/")[0] for step in graph.steps} if layers else set()
    scopes |= {"/".join(parts[:n]) for parts in [s.split("/") for s in scopes] for n in range(1, len(parts))}
    found = {"": ""}
    for scope in sorted(scopes - {""}):
        above, _, part = scope.rpartition("/")
        plain = re.sub(r"_\d+$", "", part)
        is_call = plain in layers and plain != part and scope.removesuffix(part) + plain not in scopes
        layer = plain if is_call else next((n for n in (part, plain) if n in layers), "")
        found[scope] = "/".join(n for n in (found[above], layer) if n)
    return {step.name: found.get(step.name.rpartition("/")[0], "") for step in graph.steps}
