"""The time of every op of a TFLite file, each run alone: the interpreter that ships with TensorFlow has no profiler."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cached_property
from math import ceil
from typing import Any

import numpy as np
from tensorflow.lite.tools import flatbuffer_utils

from inc_tb.errors import ModelError
from inc_tb.frameworks.ops import Array, Batch
from inc_tb.frameworks.protocols import Execution, Recorded
from inc_tb.frameworks.tensorflow.failures import cannot_run
from inc_tb.frameworks.tensorflow.interpreter import Interpreter, copied, stored
from inc_tb.frameworks.tensorflow.kernels import noticed
from inc_tb.frameworks.tensorflow.lite import LiteGraph
from inc_tb.frameworks.tensorflow.model import fed
from inc_tb.frameworks.tensorflow.pieces import Piece, find_pieces, write_piece
from inc_tb.frameworks.traces import Slice
from inc_tb.records import listed

_LONG_US, _LONG_WITH_THREADS_US = 100, 300
"""What the copies of an op take together: much longer than an interpreter takes to start, or other threads to wake."""
_MOST_COPIES = 16
_TRIES = 4
_MANY = 5


class LiteTimer:
    resolution_us = 0.1

    def __init__(self, graph: LiteGraph, threads: int | None = None) -> None:
        self.is_quantized = graph.is_quantized
        self.traces: dict[str, bytes] = {}
        self.notes = [
            "TFLite's interpreter in Python has no profiler: each op was timed alone, with the values of the batch; "
            "what the runtime saves or loses between ops is not in the times per op"
        ]
        self._graph, self._threads = graph, threads or 1  # what the interpreter has unless it is told
        self._whole = Interpreter(graph.source.content, {}, graph.name, self._threads)
        self._pieces = find_pieces(graph)
        self._alone: dict[int, _Alone] = {}
        self._failed: dict[int, str] = {}
        self._runs: list[Recorded] = []
        self._values: tuple[Any, dict[int, Array]] = (None, {})

    def prepare(self, batch: Batch) -> list[dict[int, Array]]:
        roots = self._graph.input_roots
        return [
            {int(roots[name]): stored(self._graph, roots[name], array) for name, array in part.items()}
            for part in fed(batch, self._graph.inputs)
        ]

    def run(self, prepared: Any) -> float:
        try:
            self._whole.feed(prepared[0])  # shapes that are new take time once
            start = time.perf_counter()
            for given in prepared:
                self._whole.feed(given)
                self._whole.invoke()
            return time.perf_counter() - start
        except (ValueError, RuntimeError) as error:
            raise cannot_run(self._graph.name, "TFLite", error) from error

    def run_profiled(self, prepared: Any) -> float:
        start_us = 1e6 * time.perf_counter()
        took = self.run(prepared)
        values = self._values_for(prepared)
        executions: list[Execution] = []
        slices: list[Slice] = []
        for at, piece in enumerate(self._pieces):
            duration_us = len(prepared) * self._time(at, values)
            if at not in self._failed:
                executions.append(Execution(piece.kernel, "ops alone", start_us, duration_us))
                details = {"type": piece.kernel.type}
                slices.append(Slice("", "ops alone", piece.kernel.name, start_us, duration_us, details))
                start_us += duration_us
        self._runs.append(Recorded(executions, slices))
        self.run(prepared)  # or the next run would find its threads asleep and its weights out of the caches
        return took

    def _values_for(self, prepared: Any) -> dict[int, Array]:
        """What ops read in the first part of a batch; other parts are as long."""
        if self._values[0] is not prepared:
            watched, wanted = self._watched
            made = dict(zip(wanted, watched.run(prepared[0], wanted), strict=True))
            self._values = prepared, {**prepared[0], **made}
        return self._values[1]

    @cached_property
    def _watched(self) -> tuple[Interpreter, list[int]]:
        """The file with everything that ops read from others as a result."""
        read = {i for piece in self._pieces if piece.can_be_alone for i in piece.reads}
        wanted = sorted(read - {int(i) for i in self._graph.main.inputs})
        model, main = copied(self._graph)
        main.outputs = np.array(wanted or list(main.outputs), np.int32)
        content = bytes(flatbuffer_utils.convert_object_to_bytearray(model))
        return Interpreter(content, {}, self._graph.name, self._threads), wanted

    def _time(self, at: int, values: Mapping[int, Array]) -> float:
        """Of one piece in µs; 0 where it cannot be run alone."""
        piece = self._pieces[at]
        if at in self._failed:
            return 0.0
        try:
            if not piece.can_be_alone:
                raise ValueError("it has a body of its own, or reads what is no array")
            if at not in self._alone:
                self._alone[at] = _Alone(self._graph, piece, self._threads)
            return self._alone[at].time([values[place] for place in piece.reads])
        except (ValueError, RuntimeError, ModelError):
            self._failed[at] = f"{piece.kernel.name} ({piece.kernel.type})"
            return 0.0

    def close(self) -> list[Recorded]:
        if self._failed:
            names = listed(self._failed.values(), _MANY)
            self.notes.append(f"no time of its own, as it cannot be run alone: {names}")
        return noticed(self._runs)


class _Alone:
    """One piece in a file of its own, as often as is needed to be timed."""

    def __init__(self, graph: LiteGraph, piece: Piece, threads: int) -> None:
        self._graph, self._piece, self._threads = graph, piece, threads
        self._shapes: list[tuple[int, ...]] | None = None

    def time(self, given: list[Array]) -> float:
        """In µs; its inputs are as fresh in the caches as if the op before had just written them."""
        shapes = [array.shape for array in given]
        if shapes != self._shapes:
            self._open(1, given)
            long_us = _LONG_US if self._threads == 1 else _LONG_WITH_THREADS_US
            self._open(min(_MOST_COPIES, ceil(long_us / max(self._tried(given), 1.0))), given)
            self._tried(given)
            self._shapes = shapes
        return self._invoked(given) / self._copies

    def _open(self, copies: int, given: list[Array]) -> None:
        content, self._places = write_piece(self._graph, self._piece, copies)
        self._copies = copies
        self._interpreter = Interpreter(content, {}, self._graph.name, self._threads)

    def _tried(self, given: list[Array]) -> float:
        """The least of some, as the first ones take longer."""
        return min(self._invoked(given) for _ in range(_TRIES))

    def _invoked(self, given: list[Array]) -> float:
        self._interpreter.feed(dict(zip(self._places, given, strict=True)))
        start = time.perf_counter()
        self._interpreter.invoke()
        return 1e6 * (time.perf_counter() - start)
