"""What the rest of the product asks about one network."""

from __future__ import annotations

import hashlib
import shutil
from collections import OrderedDict
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from inc_tb.frameworks.feeds import fitted
from inc_tb.frameworks.mxnet.graph import Graph
from inc_tb.frameworks.mxnet.network import find_files, open_network, write_files
from inc_tb.frameworks.mxnet.runtime import Executor, fused, keep, shapes_of
from inc_tb.frameworks.ops import Array, Batch, Input
from inc_tb.records import GraphNode


def read_inputs(model: Any) -> list[Input]:
    return Graph(model).described_inputs()


def open_results(model: Any) -> Callable[[Batch], list[Array]]:
    graph = Graph(model)
    network = fused(graph.network)
    opened: OrderedDict[Any, Executor] = OrderedDict()

    def results(batch: Batch) -> list[Array]:
        feeds = fed(graph, batch)
        key = shapes_of(feeds)
        if key not in opened:
            keep(opened, key, Executor(network, feeds))
        opened[key].feed(feeds)
        return [np.asarray(a.asnumpy()) for a in opened[key].run()]

    return results


def fed(graph: Graph, batch: Batch) -> dict[str, Array]:
    """As the network takes it; only running it shows whether the shapes fit."""
    return fitted(batch, graph.described_inputs(), free=graph.inputs)


def digest_model(model: Any) -> str:
    network = open_network(model)
    found = hashlib.sha256(network.symbol.tojson().encode())
    for name, array in sorted([*network.args.items(), *network.aux.items()]):
        found.update(name.encode())
        found.update(np.ascontiguousarray(array.asnumpy()).tobytes())
    return found.hexdigest()


def measure_size(model: Any) -> float:
    """Kilobytes of both files, or of what they would hold."""
    if isinstance(model, str | PathLike):
        return sum(p.stat().st_size for p in find_files(Path(model)) if p is not None) / 1000
    network = open_network(model)
    arrays: int = sum(a.size * np.dtype(a.dtype).itemsize for a in (*network.args.values(), *network.aux.values()))
    return (len(network.symbol.tojson()) + arrays) / 1000


def save_model(model: Any, target: Path) -> None:
    """A folder with both files."""
    if isinstance(model, str | PathLike) and Path(model).is_dir():
        shutil.copytree(model, target)
    else:
        write_files(open_network(model), target)


def read_graph(model: Any) -> list[GraphNode]:
    graph = Graph(model)
    names = {step.index: step.name for step in graph.steps}
    return [
        GraphNode(s.name, s.type, list(dict.fromkeys(names[e.node] for e in s.inputs if e.node in names)))
        for s in graph.steps
    ]
