"""Runs both models over a batch, in as many passes as the memory budget asks for."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper

from inc_tb.errors import MismatchError, ModelError
from inc_tb.frameworks.describe import misfit
from inc_tb.frameworks.heap import Heap
from inc_tb.frameworks.memory import Parts
from inc_tb.frameworks.onnx.graph import Graph
from inc_tb.frameworks.onnx.isolate import isolated_model
from inc_tb.frameworks.onnx.lean import make_lean, weights_of
from inc_tb.frameworks.onnx.plan import Planner
from inc_tb.frameworks.onnx.sessions import SIDE_BY_SIDE, Session
from inc_tb.frameworks.ops import Array, Batch, Role

_OPS_CUT_OUT = 256
"""In one session: ONNX Runtime's time to open a model grows with the square of its inputs."""
_QUICK_S = 0.002
_Later = Callable[[], list[Array]]


class Result(NamedTuple):
    """A tensor of the reference, and what the quantized model has in its place."""

    tensor: str
    role: Role
    reference: Array
    quantized: Array


class _Pieces(NamedTuple):
    """Some ops cut out of the quantized model, each to be fed with the reference's values."""

    tensors: list[str]
    session: Session
    fed: dict[str, str]
    """Input of the session -> the tensor whose reference value it takes."""


@dataclass
class _Pass:
    """Part of the tensors, small enough that all arrays of one batch fit the budget."""

    tensors: list[str]
    inputs: list[str]
    """Inputs of the model whose quantized form is fetched too."""
    reference: Session
    quantized: Session
    """Its outputs: `tensors`, `inputs`, then the shapes of `told`."""
    told: list[str]
    pieces: list[_Pieces]


class Runner:
    """`points` maps tensors of the reference to the roots of the quantized model that hold the same value."""

    def __init__(
        self,
        reference: Graph,
        quantized: Graph,
        points: Mapping[str, str],
        tensors: Sequence[str],
        inputs: Sequence[str],
        planner: Planner,
        heap: Heap,
        notes: list[str],
    ) -> None:
        self.misfits: dict[str, str] = {}
        """Tensors that turned out to have another shape in the quantized model, with the reason."""
        self.notes = notes
        self._planner = planner
        self._heap = heap
        self._samples = Parts(notes)
        self._reference = reference
        self._quantized = quantized
        self._points = dict(points)
        self._tensors = list(tensors)
        self._inputs = list(inputs)
        self._parts: list[list[str]] = []
        self._open: dict[int, _Pass] = {}
        self._pool = ThreadPoolExecutor(SIDE_BY_SIDE)
        self._running: list[Future[list[Array]]] = []
        self._is_quick = False
        self._weights: dict[str, Array] | None = None
        """Of the quantized model in real numbers, once a session has asked for them."""

    def run(self, feeds: Batch, asked: int | None = None) -> Iterator[Result]:
        """In parts of `asked` samples, or of as many as fit; each pass goes through all of them while it is open."""
        self._plan(feeds, asked)
        for i in range(len(self._parts)):
            if self._parts[i]:
                work = partial(self._run_pass, i)
                yield from self._samples.run(work, feeds, self._planner.rows, self._planner.cut)

    def _run_pass(self, i: int, feeds: Batch) -> Iterator[Result]:
        self._heap.trim()
        try:
            yield from self._compared(i, feeds)
        finally:  # whatever has failed: what still runs takes memory
            wait(self._running)
            self._running.clear()

    def _compared(self, i: int, feeds: Batch) -> Iterator[Result]:
        """The reference and the quantized model side by side, then the pieces beside the use of what came out."""
        part = self._session(i)
        quantized = self._start(self._run_quantized, part, feeds)
        began = time.perf_counter()
        mine = self._run_reference(part, feeds)
        self._is_quick = time.perf_counter() - began < _QUICK_S
        alone = self._start_pieces(part, mine)
        theirs = quantized()
        while misfits := self._find_misfits(part, mine, theirs):
            self.misfits.update(misfits)
            self._drop(misfits)
            part = self._session(i)
            theirs = self._run_quantized(part, feeds)
            alone = self._start_pieces(part, mine)
        for tensor, array in zip(part.tensors, theirs, strict=False):
            yield Result(tensor, "output", mine[tensor], self._usual(tensor, array))
        for name, array in zip(part.inputs, theirs[len(part.tensors) :], strict=False):
            yield Result(name, "input", feeds[name], array)
        for tensors, arrays in alone:
            for tensor, array in zip(tensors, arrays(), strict=False):
                yield Result(tensor, "isolated", mine[tensor], self._usual(tensor, array))

    def _start_pieces(self, part: _Pass, mine: Mapping[str, Array]) -> list[tuple[list[str], _Later]]:
        return [(pieces.tensors, self._start(self._run_pieces, pieces, mine)) for pieces in part.pieces]

    def _start(self, work: Callable[..., list[Array]], *arguments: Any) -> _Later:
        """In another thread, or when it is asked for where handing it over would take longer than the work."""
        if self._is_quick:
            return lambda: work(*arguments)
        self._running.append(self._pool.submit(work, *arguments))
        return self._running[-1].result

    def _run_reference(self, part: _Pass, feeds: Batch) -> dict[str, Array]:
        return {**feeds, **dict(zip(part.reference.outputs, part.reference.run(feeds), strict=True))}

    def _run_quantized(self, part: _Pass, feeds: Batch) -> list[Array]:
        return part.quantized.run({self._points[name]: array for name, array in feeds.items()})

    def _run_pieces(self, pieces: _Pieces, mine: Mapping[str, Array]) -> list[Array]:
        given = {name: self._stored(tensor, mine[tensor]) for name, tensor in pieces.fed.items()}
        try:
            return pieces.session.run(given)
        except MismatchError as error:
            self._note(f"what some ops add by themselves is not measured: {error}")
            return []

    def _find_misfits(self, part: _Pass, mine: Mapping[str, Array], theirs: Sequence[Array]) -> dict[str, str]:
        shapes = {tensor: array.shape for tensor, array in zip(part.tensors, theirs, strict=False)}
        told = theirs[len(part.tensors) + len(part.inputs) :]
        shapes.update({tensor: tuple(array.tolist()) for tensor, array in zip(part.told, told, strict=True)})
        found = {}
        for tensor, shape in shapes.items():
            if self._is_channels_last(tensor) and len(shape) > 2:
                shape = (shape[0], shape[-1], *shape[1:-1])
            if shape != mine[tensor].shape:
                found[tensor] = misfit(mine[tensor].shape, shape)
        return found

    def _drop(self, tensors: Collection[str]) -> None:
        for tensor in tensors:
            del self._points[tensor]
        self._tensors = [t for t in self._tensors if t not in tensors]
        self._parts = [[t for t in part if t not in tensors] for part in self._parts]
        self._open.clear()

    def _is_channels_last(self, tensor: str) -> bool:
        return self._quantized.tensors[self._points[tensor]].channels_last

    def _usual(self, tensor: str, array: Array) -> Array:
        """An array of the quantized model in the layout of the reference."""
        return np.moveaxis(array, -1, 1) if array.ndim > 2 and self._is_channels_last(tensor) else array

    def _stored(self, tensor: str, array: Array) -> Array:
        """An array of the reference in the layout of the quantized model."""
        is_moved = array.ndim > 2 and tensor in self._points and self._is_channels_last(tensor)
        return np.moveaxis(array, 1, -1) if is_moved else array

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def _plan(self, feeds: Batch, asked: int | None) -> None:
        parts = self._planner.plan(feeds, self._tensors, asked)
        if parts != self._parts:
            self._parts = parts
            self._open.clear()

    def _session(self, i: int) -> _Pass:
        """The sessions of a pass. They hold the weights, so they stay open only where all fit beside the arrays."""
        if i not in self._open:
            if not self._planner.can_stay_open:
                self._open.clear()
            self._open[i] = self._open_pass(self._parts[i], self._inputs if i == 0 else [])
        return self._open[i]

    def _open_pass(self, tensors: list[str], inputs: list[str]) -> _Pass:
        mine, theirs, arena = self._reference.model, self._quantized.model, self._planner.has_arena
        starts = range(0, len(tensors), _OPS_CUT_OUT)
        opened = [self._open_pieces(tensors[start : start + _OPS_CUT_OUT]) for start in starts]
        pieces = [some for some in opened if some is not None]
        given = {i.name for i in mine.inputs}
        wanted = [*tensors, *(tensor for some in pieces for tensor in some.fed.values())]
        needed = list(dict.fromkeys(t for t in wanted if t not in given))
        told = {self._points[tensor]: tensor for tensor in needed if tensor not in set(tensors)}
        reads, appended = self._reads([*tensors, *inputs])
        reads += [f"{root}/inc_tb_shape" for root in told]
        appended += [helper.make_node("Shape", [root], [f"{root}/inc_tb_shape"]) for root in told]
        return _Pass(
            tensors, inputs, Session(mine, mine.with_outputs(needed), arena=arena),
            self._open_quantized(theirs.with_outputs(reads, appended)), list(told.values()), pieces,
        )  # fmt: skip

    def _open_pieces(self, tensors: list[str]) -> _Pieces | None:
        """Nothing where ONNX Runtime does not take the pieces, which must not stop the rest."""
        source = {root: tensor for tensor, root in reversed(self._points.items())}
        proto, feeds = isolated_model(self._quantized, self._points.values(), [self._points[t] for t in tensors])
        try:
            session = self._open_quantized(proto)
        except ModelError as error:
            self._note(f"what some ops add by themselves is not measured: {error}")
            return None
        return _Pieces(tensors, session, {name: source[root] for name, root in feeds.items()})

    def _open_quantized(self, proto: onnx.ModelProto) -> Session:
        """Of a model that is made of the quantized one; where memory is short each run computes its weights anew."""
        model, most = self._quantized.model, self._planner.for_weights
        if not most:
            return Session(model, proto, arena=self._planner.has_arena)
        if self._weights is None:
            self._weights = weights_of(model, most)
        return Session(model, proto, arena=self._planner.has_arena, weights=make_lean(proto, self._weights))

    def _reads(self, tensors: Sequence[str]) -> tuple[list[str], list[onnx.NodeProto]]:
        """Where the quantized model has the dequantized values, and nodes that make them where it has not."""
        names: list[str] = []
        nodes: list[onnx.NodeProto] = []
        for tensor in tensors:
            value = self._quantized.tensors[self._points[tensor]]
            is_there = value.read != value.root and not value.channels_last
            name, more = (value.read, []) if is_there else value.as_consumed(value.root)
            names.append(name)
            nodes.extend(more)
        return names, nodes
