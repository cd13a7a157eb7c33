"""Runs a TFLite file, as it is or cut into its ops."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from math import prod
from os import cpu_count
from typing import Any

import numpy as np
from tensorflow.lite.python import schema_py_generated as schema
from tensorflow.lite.tools import flatbuffer_utils

from inc_tb.errors import ModelError
from inc_tb.frameworks.ops import Array, Batch
from inc_tb.frameworks.rounding import dequantize, quantize, rounded
from inc_tb.frameworks.tensorflow.failures import cannot_run
from inc_tb.frameworks.tensorflow.forms import first_line
from inc_tb.frameworks.tensorflow.library import tf
from inc_tb.frameworks.tensorflow.lite import DAMAGED, LiteGraph
from inc_tb.frameworks.tensorflow.quiet import quiet


class LiteEngine:
    """Fulfils graph.Engine.

    Every value is made a result of the model. So the kernels that ship, most of them XNNPACK's, compute what they
    compute in use, and hand over the values in between, which they would keep to themselves otherwise.
    """

    def __init__(self, graph: LiteGraph) -> None:
        self.graph = graph
        self._whole = Interpreter(*self._watched(), graph.name)
        self._pieces: tuple[frozenset[str], Interpreter, dict[str, int]] | None = None

    def most_samples(self) -> int | None:
        firsts = [i.shape[0] for i in self.graph.inputs if i.shape]
        return next((n for n in firsts if n is not None), None)

    def bytes_by_root(self) -> Mapping[str, int]:
        return {root: 4 * prod(self.graph.shape(root)) for root in self.graph.tensors}

    def run(self, feeds: Batch, roots: Sequence[str]) -> dict[str, Array]:
        reads = {root: int(self.graph.tensors[root].read) for root in roots}
        made = self._whole.run(self._given(feeds), list(reads.values()))
        return {
            root: self._as_read(root, array, reads[root] != int(root)) for root, array in zip(reads, made, strict=True)
        }

    def _given(self, feeds: Batch) -> dict[int, Array]:
        roots = self.graph.input_roots
        return {int(roots[name]): stored(self.graph, roots[name], array) for name, array in feeds.items()}

    def _as_read(self, root: str, array: Array, is_final: bool) -> Array:
        value = self.graph.tensors[root]
        if array.dtype.kind in "iu":
            return dequantize(array, value.quantization) if value.quantization is not None else array
        is_done = is_final or value.is_integer or value.quantization is None
        return array if is_done or value.quantization is None else rounded(array, value.quantization)

    def run_isolated(self, feeds: Batch, given: Mapping[str, Array], roots: Sequence[str]) -> dict[str, Array]:
        cut = frozenset(root for root in given if root in self.graph.producer)
        if self._pieces is None or self._pieces[0] != cut:
            content, floats, places = self._cut_out(cut)
            self._pieces = cut, Interpreter(content, floats, self.graph.name), places
        _, interpreter, places = self._pieces
        arrays = {place: stored(self.graph, root, given[root]) for root, place in places.items()}
        made = interpreter.run({**self._given(feeds), **arrays}, [int(root) for root in roots])
        return {root: self._as_read(root, array, False) for root, array in zip(roots, made, strict=True)}

    def _watched(self) -> tuple[bytes, dict[int, int]]:
        model, main = copied(self.graph)
        # What is quantized behind an op is read there, too.
        places = [int(i) for root in self.graph.producer for i in (root, self.graph.tensors[root].read)]
        places += [int(value.read) for value in self.graph.tensors.values() if value.read != value.root]
        return self._with_results(model, main, places)

    def _with_results(self, model: Any, main: Any, places: Sequence[int]) -> tuple[bytes, dict[int, int]]:
        """With these results, whole numbers dequantized by the kernels that ship: -> where each of them is."""
        floats = {}
        model.operatorCodes = [*model.operatorCodes, _dequantize_code()]
        for place in dict.fromkeys(places):
            if self.graph.dtype(str(place)) == "int8" and self.graph.quantization(str(place)) is not None:
                floats[place] = len(main.tensors)
                tensor = copy.copy(main.tensors[place])
                tensor.type, tensor.quantization, tensor.buffer = schema.TensorType.FLOAT32, None, 0
                tensor.name = f"inc_tb_float_{place}".encode()
                main.tensors.append(tensor)
                main.operators.append(_dequantizer(len(model.operatorCodes) - 1, place, floats[place]))
        results = [floats.get(place, place) for place in dict.fromkeys(places)]
        main.outputs = np.array(list(dict.fromkeys([*main.outputs, *results])), np.int32)
        return bytes(flatbuffer_utils.convert_object_to_bytearray(model)), floats

    def _cut_out(self, cut: frozenset[str]) -> tuple[bytes, dict[int, int], dict[str, int]]:
        """The file with an input of its own wherever one of these values is read."""
        model, main = copied(self.graph)
        read = {str(i) for op in main.operators for i in op.inputs}
        places: dict[str, int] = {}
        for root in sorted(cut & read, key=int):
            tensor = copy.copy(main.tensors[int(root)])
            tensor.buffer, tensor.name = 0, f"inc_tb_cut_{root}".encode()
            places[root] = len(main.tensors)
            main.tensors.append(tensor)
        main.operators = [self._reading(op, places) for op in main.operators]
        main.inputs = np.array([*main.inputs, *places.values()], np.int32)
        content, floats = self._with_results(model, main, list(map(int, self.graph.producer)))
        return content, floats, places

    def _reading(self, op: Any, places: Mapping[str, int]) -> Any:
        if not any(str(i) in places for i in op.inputs):
            return op
        changed = copy.copy(op)
        changed.inputs = np.array([places.get(str(i), i) for i in op.inputs], np.int32)
        return changed


class Interpreter:
    """`floats` tells where the dequantized form of a result is."""

    def __init__(self, content: bytes, floats: Mapping[int, int], name: str, threads: int | None = None) -> None:
        self._content, self._floats, self._name = content, floats, name
        self._shapes: dict[int, tuple[int, ...]] | None = None
        self._interpreter = opened(content, name, threads=threads)
        self._is_plain = False

    def run(self, given: Mapping[int, Array], wanted: Sequence[int]) -> list[Array]:
        try:
            return self._run(given, wanted)
        except (ValueError, RuntimeError) as error:
            self._shapes = None
            if not self._is_plain:  # a delegate may refuse what TFLite's own kernels take
                self._is_plain, self._interpreter = True, opened(self._content, self._name, is_plain=True)
                return self.run(given, wanted)
            raise cannot_run(self._name, "TFLite", error) from error

    def _run(self, given: Mapping[int, Array], wanted: Sequence[int]) -> list[Array]:
        self.feed(given)
        self.invoke()
        return [self._interpreter.get_tensor(self._floats.get(place, place)) for place in wanted]

    def feed(self, given: Mapping[int, Array]) -> None:
        """By the places of the inputs; ValueError or RuntimeError where it does not take them."""
        shapes = {place: array.shape for place, array in given.items()}
        if shapes != self._shapes:
            with quiet():
                for place, shape in shapes.items():
                    self._interpreter.resize_tensor_input(place, shape)
                self._interpreter.allocate_tensors()
            self._shapes = shapes
        for place, array in given.items():
            self._interpreter.set_tensor(place, array)

    def invoke(self) -> None:
        self._interpreter.invoke()


def copied(graph: LiteGraph) -> tuple[Any, Any]:
    """The file and its main part, to be changed."""
    model, main = copy.copy(graph.model), copy.copy(graph.main)
    model.subgraphs = [main, *graph.model.subgraphs[1:]]
    model.signatureDefs = None
    main.tensors, main.operators = list(main.tensors), list(main.operators)
    return model, main


def _dequantize_code() -> Any:
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.DEQUANTIZE
    code.version = 2  # the first with int8
    return code


def _dequantizer(code: int, place: int, target: int) -> Any:
    op = schema.OperatorT()
    op.opcodeIndex, op.inputs, op.outputs = code, np.array([place], np.int32), np.array([target], np.int32)
    op.builtinOptionsType, op.builtinOptions = schema.BuiltinOptions.DequantizeOptions, schema.DequantizeOptionsT()
    return op


def stored(graph: LiteGraph, root: str, array: Array) -> Array:
    """As the file holds it."""
    value = graph.tensors[root]
    if value.is_integer and value.quantization is not None and array.dtype.kind not in "iu":
        array = quantize(array, value.quantization, np.dtype(graph.dtype(root)))
    return np.ascontiguousarray(array, np.dtype(graph.dtype(root)))


def opened(content: bytes, name: str, *, is_plain: bool = False, threads: int | None = None) -> Any:
    """An interpreter with the kernels that ship, or with TFLite's own alone; on all cores unless told otherwise."""
    resolver = tf.lite.experimental.OpResolverType
    try:
        with quiet():
            return tf.lite.Interpreter(
                model_content=content, num_threads=threads or cpu_count() or 1,
                experimental_preserve_all_tensors=is_plain,
                experimental_op_resolver_type=resolver.BUILTIN_WITHOUT_DEFAULT_DELEGATES if is_plain else resolver.AUTO,
            )  # fmt: skip
    except (ValueError, RuntimeError) as error:
        raise ModelError(f"{name}: TFLite cannot open it: {first_line(error)}. {DAMAGED}") from error
