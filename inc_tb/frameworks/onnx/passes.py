"""Runs both models over a batch, in as many passes as the memory budget asks for."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import cpu_count
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper

from inc_tb.errors import MismatchError, ModelError
from inc_tb.frameworks.describe import misfit
from inc_tb.frameworks.onnx.graph import Graph
from inc_tb.frameworks.onnx.isolate import isolated_model
from inc_tb.frameworks.onnx.model import Model, first_line, with_shapes
from inc_tb.frameworks.ops import Array, Batch, Role

_OPS_CUT_OUT = 256
"""In one session: ONNX Runtime's time to open a model grows with the square of its inputs."""
_QUICK_S = 0.002
_SIDE_BY_SIDE = 2
"""Sessions that run at the same time, each with its share of the cores: small ops do not parallelise inside."""
_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}
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
    session: _Session
    fed: dict[str, str]
    """Input of the session -> the tensor whose reference value it takes."""


@dataclass
class _Pass:
    """Part of the tensors, small enough that all arrays of one batch fit the budget."""

    tensors: list[str]
    inputs: list[str]
    """Inputs of the model whose quantized form is fetched too."""
    reference: _Session
    quantized: _Session
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
        budget: int,
    ) -> None:
        self.misfits: dict[str, str] = {}
        """Tensors that turned out to have another shape in the quantized model, with the reason."""
        self.notes: list[str] = []
        self._reference = reference
        self._quantized = quantized
        self._points = dict(points)
        self._tensors = list(tensors)
        self._inputs = list(inputs)
        self._budget = budget
        self._parts: list[list[str]] = []
        self._largest: dict[str, int] = {}
        self._open: dict[int, _Pass] = {}
        self._pool = ThreadPoolExecutor(_SIDE_BY_SIDE)
        self._is_quick = False

    def bytes_needed(self, feeds: Batch) -> int:
        """For one pass over everything."""
        return sum(self._bytes_by_tensor(feeds).values())

    def run(self, feeds: Batch) -> Iterator[Result]:
        self._plan(feeds)
        for i in range(len(self._parts)):
            yield from self._run_pass(i, feeds)

    def _run_pass(self, i: int, feeds: Batch) -> Iterator[Result]:
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
        return self._pool.submit(work, *arguments).result

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

    def _plan(self, feeds: Batch) -> None:
        """Cuts the tensors into passes, again when a larger batch comes."""
        if self._parts and all(array.size <= self._largest[name] for name, array in feeds.items()):
            return
        self._largest = {name: max(array.size, self._largest.get(name, 0)) for name, array in feeds.items()}
        parts: list[list[str]] = [[]]
        used = 0
        for tensor, size in self._bytes_by_tensor(feeds).items():
            if parts[-1] and used + size > self._budget:
                parts.append([])
                used = 0
            parts[-1].append(tensor)
            used += size
        if parts != self._parts:
            self._parts = parts
            self._open.clear()

    def _bytes_by_tensor(self, feeds: Batch) -> dict[str, int]:
        """The reference's array, the quantized model's, and the isolated one."""
        sizes = value_bytes(self._reference, feeds)
        return {tensor: 3 * sizes.get(tensor, 0) for tensor in self._tensors}

    def _session(self, i: int) -> _Pass:
        """The sessions of a pass. They hold the weights, so they stay open only where that fits the budget too."""
        if i not in self._open:
            held = len(self._parts) * (self._reference.model.weight_bytes() + 2 * self._quantized.model.weight_bytes())
            if len(self._parts) > 1 and held > self._budget:
                self._open.clear()
            self._open[i] = self._open_pass(self._parts[i], self._inputs if i == 0 else [])
        return self._open[i]

    def _open_pass(self, tensors: list[str], inputs: list[str]) -> _Pass:
        mine, theirs = self._reference.model, self._quantized.model
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
            tensors, inputs, _Session(mine, mine.with_outputs(needed)),
            _Session(theirs, theirs.with_outputs(reads, appended)), list(told.values()), pieces,
        )  # fmt: skip

    def _open_pieces(self, tensors: list[str]) -> _Pieces | None:
        """Nothing where ONNX Runtime does not take the pieces, which must not stop the rest."""
        source = {root: tensor for tensor, root in reversed(self._points.items())}
        proto, feeds = isolated_model(self._quantized, self._points.values(), [self._points[t] for t in tensors])
        try:
            session = _Session(self._quantized.model, proto)
        except ModelError as error:
            self._note(f"what some ops add by themselves is not measured: {error}")
            return None
        return _Pieces(tensors, session, {name: source[root] for name, root in feeds.items()})

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


class _Session:
    """A model that is open, with the names of what it takes and gives."""

    def __init__(self, model: Model, proto: onnx.ModelProto) -> None:
        self.outputs = [output.name for output in proto.graph.output]
        self._model = model
        self._session = model.session(proto, threads=max(1, (cpu_count() or 1) // _SIDE_BY_SIDE))
        self._inputs = {i.name: _TYPES.get(i.type) for i in self._session.get_inputs()}

    def run(self, feeds: Batch) -> list[Array]:
        """All outputs, for those of the feeds that the model asks for."""
        with np.errstate(over="ignore"):
            given = {name: np.asarray(feeds[name], dtype=dtype) for name, dtype in self._inputs.items()}
        try:
            return list(self._session.run(None, given))
        except Exception as error:  # onnxruntime raises many unrelated classes
            raise MismatchError(
                f"{self._model.name}: ONNX Runtime cannot run this batch ({first_line(error)}). "
                "Check that the data is what the model was made for."
            ) from error


def value_bytes(graph: Graph, feeds: Batch) -> dict[str, int]:
    """Bytes of each float value for a batch of these shapes, as float32."""
    light = graph.without_weights()
    for info in light.graph.input:
        if info.name in feeds:
            for dim, length in zip(info.type.tensor_type.shape.dim, feeds[info.name].shape, strict=False):
                dim.dim_value = length
    inferred = with_shapes(light)
    found: dict[str, int] = {}
    for info in [*inferred.graph.value_info, *inferred.graph.output]:
        tensor = info.type.tensor_type
        if info.name in graph.types and tensor.HasField("shape"):
            dims = [d.dim_value for d in tensor.shape.dim if d.HasField("dim_value")]
            if len(dims) == len(tensor.shape.dim):
                found[info.name] = 4 * int(np.prod(dims))
    typical = int(np.mean(list(found.values()))) if found else 0
    return {root: found.get(root, typical) for root in graph.types}
