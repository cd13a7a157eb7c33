"""Two TensorFlow models as ops and pairs of arrays."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import Any

import numpy as np

from inc_tb.errors import MismatchError
from inc_tb.frameworks import feeds as model_feeds
from inc_tb.frameworks.channels import input_axis
from inc_tb.frameworks.describe import misfit
from inc_tb.frameworks.feeds import split
from inc_tb.frameworks.graph_adapter import GraphAdapter
from inc_tb.frameworks.memory import Parts, SampleSizes
from inc_tb.frameworks.ops import Array, Batch, Input, Pair
from inc_tb.frameworks.protocols import MOST_SAMPLES
from inc_tb.frameworks.tensorflow.engines import open_engine
from inc_tb.frameworks.tensorflow.frozen import FrozenGraph
from inc_tb.frameworks.tensorflow.graph import Engine, Graph, Step
from inc_tb.frameworks.tensorflow.grids import unknown_grid
from inc_tb.frameworks.tensorflow.kinds import ACTIVATIONS, AFFINE
from inc_tb.frameworks.tensorflow.match import Matching
from inc_tb.frameworks.tensorflow.source import as_reference, open_source
from inc_tb.records import plural

_LARGEST = 24 << 20
"""Bytes of an array that the C library's heap still takes back and gives out again, without asking for fresh memory."""


_COPIES = 6
"""Each of them as TensorFlow's array and as numpy's."""


class TensorFlowAdapter(GraphAdapter[Step]):
    framework = "tensorflow"
    dynamic = unknown_grid("int8")

    def __init__(self, reference: Any, quantized: Any, *, memory_budget: int = 1 << 30) -> None:
        self.notes: list[str] = []
        self._budget = memory_budget
        source = open_source(quantized)
        self._mine = open_engine(as_reference(source) if reference is None else reference)
        self._theirs = open_engine(source)
        self._at_once = _samples_at_once(self._mine, self._theirs)
        graph = self._mine.graph
        self._whole = {graph.input_roots[i.name] for i in graph.inputs if i.dtype.kind != "f"}
        self._layers = _layers(graph)
        super().__init__(Matching(graph, self._theirs.graph))
        self._inputs = [i if not i.shape else i._replace(shape=(None, *i.shape[1:])) for i in graph.inputs]
        self._pool = ThreadPoolExecutor(1)
        self._sizes = SampleSizes(self._measure)
        self._samples = Parts(self.notes)

    def inputs(self) -> Sequence[Input]:
        return self._inputs

    def batch_size(self) -> int:
        if self._at_once is not None:
            return self._at_once * max(1, MOST_SAMPLES // self._at_once)
        sizes = self._mine.bytes_by_root()
        return self._fitting([sizes.get(root, 0) for root in self._points])

    def _fitting(self, sizes: Sequence[int]) -> int:
        """How many samples fit the memory: of each value the reference's array, the quantized one, and the isolated."""
        own = sum(sizes), max(sizes, default=0)
        return max(1, min(MOST_SAMPLES, self._budget // (_COPIES * own[0] + 1), _LARGEST // (own[1] + 1)))

    def run(self, batch: Batch) -> Iterator[Pair]:
        feeds = self._fitted(batch)
        most = self._at_once or self.samples_at_once or self._fitting(self._sizes.of_one(feeds))
        yield from self._samples.run(self._run_part, feeds, most, lambda given, rows: split(given, self._at_once, rows))

    def _measure(self, one: Batch) -> list[int]:
        """What the file tells of the shapes, or else what one sample has."""
        sizes = self._mine.bytes_by_root()
        graph = self._mine.graph
        if all(i.is_known and None not in i.shape[1:] for i in graph.inputs) and all(map(sizes.get, self._points)):
            return [sizes[root] for root in self._points]
        return [array.nbytes for array in self._mine.run(one, list(self._points)).values()]

    def _run_part(self, feeds: Batch) -> Iterator[Pair]:
        """The quantized model beside the reference, then its ops one by one beside the use of what came out."""
        theirs_fed = {self.matching.input_names[name]: array for name, array in feeds.items()}
        roots = {r: q for r, q in self._points.items() if r not in self._misfits}
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
            axis = input_axis(array.ndim, channels_last=True)
            yield Pair(op, name, "input", array, theirs[self._points[root]].reshape(array.shape), axis)
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
                self._misfits[root] = misfit(mine[root].shape, theirs[other].shape)
        return {r: q for r, q in roots.items() if r not in self._misfits}

    # what there is

    def _is_real(self, root: str) -> bool:
        return root not in self._whole

    def _joins(self, step: Step) -> bool:
        return step.type in ACTIVATIONS or (step.type in AFFINE and bool(step.constants))

    def _channel_axis(self, step: Step, before: int) -> int:
        """At the end, except behind ops that work with the channels first."""
        return before if step.type in ACTIVATIONS or step.type in AFFINE else step.axis

    def _block(self, step: Step) -> str:
        return step.name.rpartition("/")[0]

    def _module(self, step: Step) -> str:
        return self._layers[step.name]

    def _params(self, step: Step) -> int:
        return prod(self._mine.graph.weight_shape(step))

    # data

    def _fitted(self, batch: Batch) -> dict[str, Array]:
        return fitted(batch, self._inputs, self._at_once)


def fitted(batch: Batch, inputs: Sequence[Input], at_once: int | None) -> dict[str, Array]:
    """What fits the model, in a number that it takes."""
    free = [i.name for i in inputs if not i.is_known]
    found = model_feeds.fitted(batch, inputs, free=free, hint=", and images have their channels last")
    rows = {len(array) for array in found.values() if array.ndim}
    if at_once is not None and any(n % at_once for n in rows):
        samples = plural(max(rows), "sample")
        raise MismatchError(f"the batch has {samples}, the model takes {at_once} at a time. Give a multiple of that.")
    return found


def _samples_at_once(*engines: Engine) -> int | None:
    found = {n for engine in engines if (n := engine.most_samples()) is not None}
    if len(found) > 1:
        fewest = plural(min(found), "sample")
        raise MismatchError(
            f"one model takes {fewest} at a time, the other {max(found)}; expected the same number. Export "
            "both with the same batch size, or with any."
        )
    return next(iter(found), None)


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
