"""A TFLite file taken apart: files with one op each, as XNNPACK runs it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tensorflow.lite.python import schema_py_generated as schema
from tensorflow.lite.tools import flatbuffer_utils

from inc_tb.frameworks.kernels import on_account
from inc_tb.frameworks.protocols import Kernel
from inc_tb.frameworks.tensorflow.interpreter import copied
from inc_tb.frameworks.tensorflow.lite import LiteGraph

_PADDED = {"CONV_2D", "DEPTHWISE_CONV_2D"}
_CONVERSIONS = {"QUANTIZE", "DEQUANTIZE"}
_WITH_BODIES = {"WHILE", "IF", "CALL", "CALL_ONCE", "STABLEHLO_WHILE", "STABLEHLO_REDUCE", "STABLEHLO_COMPOSITE"}
_NO_DATA = {schema.TensorType.STRING, schema.TensorType.RESOURCE, schema.TensorType.VARIANT}


@dataclass
class Piece:
    """Operators that run as one, and what makes their constants."""

    operators: list[Any]
    makers: list[Any]
    reads: list[int]
    """Tensors that it is to be fed."""
    kernel: Kernel
    can_be_alone: bool


def find_pieces(graph: LiteGraph) -> list[Piece]:
    """In the order of the file. XNNPACK makes zeros around an input the business of the convolution that reads it."""
    operators = list(graph.main.operators)
    makers = {int(out): op for op in operators if _is_maker(graph, op) for out in op.outputs}
    groups: list[list[Any]] = []
    waiting: dict[int, Any] = {}
    for op in operators:
        if _is_maker(graph, op):
            continue
        if _kind(graph, op) == "PAD" and _only_reader(graph, op) in _PADDED:
            waiting[int(op.outputs[0])] = op
            continue
        groups.append([*(waiting[i] for i in _inputs(op) if i in waiting), op])
    writer = {int(out): at for at, group in enumerate(groups) for op in group for out in op.outputs}
    before = [
        [writer[i] for op in group for i in _inputs(op) if writer.get(i, at) != at] for at, group in enumerate(groups)
    ]
    for_reader = {at for at, group in enumerate(groups) if _kind(graph, group[-1]) == "QUANTIZE"}
    kernels = on_account([_kernel(graph, group) for group in groups], before, for_reader)
    return [_piece(graph, group, makers, kernel) for group, kernel in zip(groups, kernels, strict=True)]


def _kind(graph: LiteGraph, op: Any) -> str:
    return str(flatbuffer_utils.opcode_to_name(graph.model, op.opcodeIndex))


def _inputs(op: Any) -> list[int]:
    return [int(i) for i in op.inputs if i >= 0]


def _is_maker(graph: LiteGraph, op: Any) -> bool:
    """It makes constants of constants, which kernels do once."""
    return all(str(out) in graph.constants for out in op.outputs) and bool(len(op.outputs))


def _only_reader(graph: LiteGraph, op: Any) -> str:
    """The kind of the op that is all that reads the result."""
    place = int(op.outputs[0])
    readers = [other for other in graph.main.operators if place in other.inputs]
    is_alone = len(readers) == 1 and place not in graph.main.outputs and int(readers[0].inputs[0]) == place
    return _kind(graph, readers[0]) if is_alone else ""


def _kernel(graph: LiteGraph, group: Sequence[Any]) -> Kernel:
    op, kind = group[-1], _kind(graph, group[-1])
    steps = [graph.producer[str(out)] for op in reversed(group) for out in op.outputs if str(out) in graph.producer]
    if steps and kind not in _CONVERSIONS:
        return Kernel(steps[0].name, kind, tuple(dict.fromkeys(step.name for step in steps)))
    name = graph.label(str(op.outputs[0])) if len(op.outputs) else kind
    return Kernel(name, kind, (), kind in _CONVERSIONS)


def _piece(graph: LiteGraph, group: list[Any], makers: dict[int, Any], kernel: Kernel) -> Piece:
    needed = list(_made_before(group, makers))
    made = {int(out) for op in (*needed, *group) for out in op.outputs}
    read = dict.fromkeys(i for op in group for i in _inputs(op) if i not in made and str(i) not in graph.constants)
    tensors = [graph.main.tensors[i] for op in group for i in (*_inputs(op), *op.outputs)]
    can_be_alone = not any(t.type in _NO_DATA for t in tensors) and not any(
        _kind(graph, op) in _WITH_BODIES for op in group
    )
    return Piece(group, needed, [i for i in read if not graph.main.tensors[i].isVariable], kernel, can_be_alone)


def _made_before(group: Iterable[Any], makers: dict[int, Any]) -> Iterator[Any]:
    """What makes the constants that these read, in order."""
    for op in group:
        for place in _inputs(op):
            if place in makers:
                yield from _made_before([makers[place]], makers)
                yield makers[place]


def write_piece(graph: LiteGraph, piece: Piece, copies: int) -> tuple[bytes, list[int]]:
    """A file with so many copies of it side by side, and where its inputs are in that."""
    model, main = copied(graph)
    model.subgraphs, model.buffers = [main], [schema.BufferT()]
    model.metadata = model.metadataBuffer = None
    main.tensors, main.operators = [], []
    places: dict[int, int] = {}
    for op in dict.fromkeys(piece.makers):
        main.operators.append(_moved(graph, model, main, op, places))
    for place in piece.reads:
        _place(graph, model, main, place, places)
    own = {int(out) for op in piece.operators for out in op.outputs}
    results = own - {i for op in piece.operators for i in _inputs(op)}
    main.outputs = []
    for _ in range(copies):
        shared = {place: at for place, at in places.items() if place not in own}
        for op in piece.operators:
            main.operators.append(_moved(graph, model, main, op, shared))
        main.outputs += [shared[place] for place in sorted(results)]
        places = shared
    main.inputs = np.array([places[place] for place in piece.reads], np.int32)
    main.outputs = np.array(main.outputs, np.int32)
    return bytes(flatbuffer_utils.convert_object_to_bytearray(model)), [places[place] for place in piece.reads]


def _moved(graph: LiteGraph, model: Any, main: Any, op: Any, places: dict[int, int]) -> Any:
    moved = copy.copy(op)
    moved.inputs = np.array([_place(graph, model, main, int(i), places) for i in op.inputs], np.int32)
    moved.outputs = np.array([_place(graph, model, main, int(i), places) for i in op.outputs], np.int32)
    moved.intermediates = None
    return moved


def _place(graph: LiteGraph, model: Any, main: Any, tensor: int, places: dict[int, int]) -> int:
    """Where a tensor of the file is in the new one; it is put there where it is not yet."""
    if tensor < 0:
        return tensor
    if tensor not in places:
        places[tensor] = len(main.tensors)
        made = copy.copy(graph.main.tensors[tensor])
        buffer = graph.model.buffers[made.buffer]
        made.buffer = 0
        if buffer.data is not None and len(buffer.data):
            made.buffer = len(model.buffers)
            model.buffers.append(buffer)
        main.tensors.append(made)
    return places[tensor]
