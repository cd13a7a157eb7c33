"""One TensorFlow model: what it gives, what it weighs, how it is stored."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from inc_tb.frameworks.feeds import split
from inc_tb.frameworks.ops import Array, Batch, Input
from inc_tb.frameworks.rounding import dequantize
from inc_tb.frameworks.tensorflow.adapter import fitted
from inc_tb.frameworks.tensorflow.engines import open_graph
from inc_tb.frameworks.tensorflow.failures import cannot_run
from inc_tb.frameworks.tensorflow.forms import Frozen
from inc_tb.frameworks.tensorflow.frozen import FrozenGraph
from inc_tb.frameworks.tensorflow.interpreter import opened, stored
from inc_tb.frameworks.tensorflow.library import tf
from inc_tb.frameworks.tensorflow.likeness import plain_name
from inc_tb.frameworks.tensorflow.lite import LiteGraph
from inc_tb.frameworks.tensorflow.quiet import quiet
from inc_tb.frameworks.tensorflow.source import open_source
from inc_tb.records import GraphNode

_Run = Callable[[Batch], list[Array]]


def read_inputs(model: Any) -> list[Input]:
    return [_any_number(i) for i in open_graph(model).inputs]


def _any_number(described: Input) -> Input:
    """Samples are handed over as many at a time as the model takes."""
    return described._replace(shape=(None, *described.shape[1:])) if described.shape else described


def open_results(model: Any) -> _Run:
    """With the kernels that ship: delegates, and whatever TensorFlow rewrites."""
    graph = open_graph(model)
    run = _run_graph(graph) if isinstance(graph, FrozenGraph) else _run_lite(graph)

    def results(batch: Batch) -> list[Array]:
        parts = [run(part) for part in fitting_parts(batch, graph.inputs)]
        if len(parts) == 1:
            return parts[0]
        return [np.concatenate(arrays) if arrays[0].ndim else arrays[0] for arrays in zip(*parts, strict=True)]

    return results


def fitting_parts(batch: Batch, inputs: Sequence[Input]) -> list[dict[str, Array]]:
    """The batch, as many samples at a time as the model takes."""
    sizes = [i.shape[0] for i in inputs if i.is_known and i.shape]
    at_once = next((n for n in sizes if n is not None), None)
    feeds = fitted(batch, [_any_number(i) for i in inputs], at_once)
    return [feeds] if at_once is None else list(split(feeds, at_once, at_once))


def fed(batch: Batch, inputs: Sequence[Input]) -> list[dict[str, Array]]:
    """The same for a batch that may be named as the inputs of the model that this one was made of."""
    plain = {plain_name(name): array for name, array in batch.items()}
    if len(inputs) == len(batch) == 1:
        batch = {inputs[0].name: next(iter(batch.values()))}
    elif {plain_name(i.name) for i in inputs} == set(plain) and len(plain) == len(batch):
        batch = {i.name: plain[plain_name(i.name)] for i in inputs}
    return fitting_parts(batch, inputs)


def _run_graph(graph: FrozenGraph) -> _Run:
    with quiet():
        session = tf.compat.v1.Session(graph=graph.tf_graph)
    tensors = [graph.tensor(tensor) for _, tensor in graph.source.outputs]
    places = {name: graph.tensor(tensor) for name, tensor in graph.source.inputs}

    def run(feeds: Batch) -> list[Array]:
        try:
            return [np.asarray(a) for a in session.run(tensors, {places[name]: a for name, a in feeds.items()})]
        except (tf.errors.OpError, ValueError, TypeError) as error:
            raise cannot_run(graph.name, "TensorFlow", error) from error

    return run


def _run_lite(graph: LiteGraph) -> _Run:
    interpreter = opened(graph.source.content, graph.name)
    shapes: dict[int, tuple[int, ...]] = {}

    def run(feeds: Batch) -> list[Array]:
        nonlocal shapes
        given = {int(graph.input_roots[n]): stored(graph, graph.input_roots[n], a) for n, a in feeds.items()}
        try:
            if {place: array.shape for place, array in given.items()} != shapes:
                with quiet():
                    for place, array in given.items():
                        interpreter.resize_tensor_input(place, array.shape)
                    interpreter.allocate_tensors()
                shapes = {place: array.shape for place, array in given.items()}
            for place, array in given.items():
                interpreter.set_tensor(place, array)
            interpreter.invoke()
            return [_real(graph, int(place), interpreter.get_tensor(int(place))) for place in graph.main.outputs]
        except (ValueError, RuntimeError) as error:
            shapes = {}
            raise cannot_run(graph.name, "TFLite", error) from error

    return run


def _real(graph: LiteGraph, place: int, array: Array) -> Array:
    quantization = graph.quantization(str(place))
    return dequantize(array, quantization) if quantization is not None else array


def digest_model(model: Any) -> str:
    source = open_source(model)
    if isinstance(source, Frozen):
        return hashlib.sha256(source.graph_def.SerializeToString(deterministic=True)).hexdigest()
    return hashlib.sha256(source.content).hexdigest()


def measure_size(model: Any) -> float:
    """Kilobytes of the file, the folder, or the frozen graph."""
    if isinstance(model, str | PathLike):
        path = Path(model)
        files = [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]
        return sum(p.stat().st_size for p in files) / 1000
    source = open_source(model)
    size = source.graph_def.ByteSize() if isinstance(source, Frozen) else len(source.content)
    return size / 1000


def save_model(model: Any, target: Path) -> None:
    """Files and folders as they are, other models as a frozen graph."""
    if isinstance(model, str | PathLike):
        copy = shutil.copytree if Path(model).is_dir() else shutil.copyfile
        copy(model, target)
        return
    source = open_source(model)
    target.write_bytes(source.graph_def.SerializeToString() if isinstance(source, Frozen) else source.content)


def read_graph(model: Any) -> list[GraphNode]:
    return open_graph(model).graph_nodes()
