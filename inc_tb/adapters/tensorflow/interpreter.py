"""Runs a TFLite file, as it is or cut into its ops."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from math import prod
from os import cpu_count
from typing import Any

import numpy as np
from tensorflow.lite.tools import flatbuffer_utils

from inc_tb.adapters.tensorflow.library import tf
from inc_tb.adapters.tensorflow.lite import DAMAGED, LiteGraph
from inc_tb.adapters.tensorflow.quiet import quiet
from inc_tb.adapters.tensorflow.source import first_line
from inc_tb.capture import Array, Batch
from inc_tb.errors import MismatchError, ModelError
from inc_tb.rounding import dequantize, quantize, rounded


class LiteEngine:
    """Fulfils graph.Engine.

    Every value is made a result of the model. So the kernels that ship, most of them XNNPACK's, compute what they
    compute in use, and hand over the values in between, which they would keep to themselves otherwise.
    """

    def __init__(self, graph: LiteGraph) -> None:
        self.graph = graph
        self._whole = _Interpreter(self._watched(), graph.name)
        self._pieces: tuple[frozenset[str], _Interpreter, dict[str, int]] | None = None

    def most_samples(self) -> int | None:
        firsts = [i.shape[0] for i in self.graph.inputs if i.shape]
        return next((n for n in firsts if n is not None), None)

    def bytes_by_root(self) -> Mapping[str, int]:
        return {root: 4 * prod(self.graph.shape(root)) for root in self.graph.values}

    def run(self, feeds: Batch, roots: Sequence[str]) -> dict[str, Array]:
        reads = {root: int(self.graph.values[root].read) for root in roots}
        made = self._whole.run(self._given(feeds), list(reads.values()))
        return {
            root: self._as_read(root, array, reads[root] != int(root)) for root, array in zip(reads, made, strict=True)
        }

    def _given(self, feeds: Batch) -> dict[int, Array]:
        roots = self.graph.input_roots
        return {int(roots[name]): stored(self.graph, roots[name], array) for name, array in feeds.items()}

    def _as_read(self, root: str, array: Array, is_final: bool) -> Array:
        quantization = self.graph.values[root].quantization
        if array.dtype.kind in "iu":
            return dequantize(array, quantization) if quantization is not None else array
        return array if is_final or quantization is None else rounded(array, quantization)

    def run_isolated(self, feeds: Batch, given: Mapping[str, Array], roots: Sequence[str]) -> dict[str, Array]:
        cut = frozenset(root for root in given if root in self.graph.producer)
        if self._pieces is None or self._pieces[0] != cut:
            content, places = self._cut_out(cut)
            self._pieces = cut, _Interpreter(content, self.graph.name), places
        _, interpreter, places = self._pieces
        arrays = {place: stored(self.graph, root, given[root]) for root, place in places.items()}
        made = interpreter.run({**self._given(feeds), **arrays}, [int(root) for root in roots])
        return {root: self._as_read(root, array, False) for root, array in zip(roots, made, strict=True)}

    def _watched(self) -> bytes:
        model, main = self._copied()
        # What is quantized behind an op is read there, too.
        places = [int(i) for root in self.graph.producer for i in (root, self.graph.values[root].read)]
        places += [int(value.read) for value in self.graph.values.values() if value.read != value.root]
        main.outputs = np.array(list(dict.fromkeys([*main.outputs, *places])), np.int32)
        return bytes(flatbuffer_utils.convert_object_to_bytearray(model))

    def _copied(self) -> tuple[Any, Any]:
        model, main = copy.copy(self.graph.model), copy.copy(self.graph.main)
        model.subgraphs = [main, *self.graph.model.subgraphs[1:]]
        model.signatureDefs = None
        return model, main

    def _cut_out(self, cut: frozenset[str]) -> tuple[bytes, dict[str, int]]:
        """The file with an input of its own wherever one of these values is read."""
        model, main = self._copied()
        main.tensors = list(main.tensors)
        read = {str(i) for op in main.operators for i in op.inputs}
        places: dict[str, int] = {}
        for root in sorted(cut & read, key=int):
            tensor = copy.copy(main.tensors[int(root)])
            tensor.buffer, tensor.name = 0, f"inc_tb_cut_{root}".encode()
            places[root] = len(main.tensors)
            main.tensors.append(tensor)
        main.operators = [self._reading(op, places) for op in main.operators]
        main.inputs = np.array([*main.inputs, *places.values()], np.int32)
        main.outputs = np.array(list(dict.fromkeys([*main.outputs, *map(int, self.graph.producer)])), np.int32)
        return bytes(flatbuffer_utils.convert_object_to_bytearray(model)), places

    def _reading(self, op: Any, places: Mapping[str, int]) -> Any:
        if not any(str(i) in places for i in op.inputs):
            return op
        changed = copy.copy(op)
        changed.inputs = np.array([places.get(str(i), i) for i in op.inputs], np.int32)
        return changed


class _Interpreter:
    def __init__(self, content: bytes, name: str) -> None:
        self._content, self._name = content, name
        self._shapes: dict[int, tuple[int, ...]] = {}
        self._interpreter = opened(content, name)
        self._is_plain = False

    def run(self, given: Mapping[int, Array], wanted: Sequence[int]) -> list[Array]:
        try:
            return self._run(given, wanted)
        except (ValueError, RuntimeError) as error:
            self._shapes = {}
            if not self._is_plain:  # a delegate may refuse what TFLite's own kernels take
                self._is_plain, self._interpreter = True, opened(self._content, self._name, is_plain=True)
                return self.run(given, wanted)
            raise MismatchError(
                f"{self._name}: TFLite cannot run this batch ({first_line(error)}). Check that the data is what the "
                "model was made for."
            ) from error

    def _run(self, given: Mapping[int, Array], wanted: Sequence[int]) -> list[Array]:
        shapes = {place: array.shape for place, array in given.items()}
        if shapes != self._shapes:
            with quiet():
                for place, shape in shapes.items():
                    self._interpreter.resize_tensor_input(place, shape)
                self._interpreter.allocate_tensors()
            self._shapes = shapes
        for place, array in given.items():
            self._interpreter.set_tensor(place, array)
        self._interpreter.invoke()
        return [self._interpreter.get_tensor(place) for place in wanted]


def stored(graph: LiteGraph, root: str, array: Array) -> Array:
    """As the file holds it."""
    value = graph.values[root]
    if value.is_integer and value.quantization is not None and array.dtype.kind not in "iu":
        array = quantize(array, value.quantization, np.dtype(graph.dtype(root)))
    return np.ascontiguousarray(array, np.dtype(graph.dtype(root)))


def opened(content: bytes, name: str, *, is_plain: bool = False) -> Any:
    """An interpreter with the kernels that ship, or with TFLite's own alone."""
    resolver = tf.lite.experimental.OpResolverType
    try:
        with quiet():
            return tf.lite.Interpreter(
                model_content=content, num_threads=cpu_count() or 1, experimental_preserve_all_tensors=is_plain,
                experimental_op_resolver_type=resolver.BUILTIN_WITHOUT_DEFAULT_DELEGATES if is_plain else resolver.AUTO,
            )  # fmt: skip
    except (ValueError, RuntimeError) as error:
        raise ModelError(f"{name}: TFLite cannot open it: {first_line(error)}. {DAMAGED}") from error
