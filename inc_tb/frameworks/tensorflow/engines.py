"""The graph of a model, and what runs it."""

from __future__ import annotations

from typing import Any

from inc_tb.frameworks.tensorflow.forms import Frozen
from inc_tb.frameworks.tensorflow.frozen import FrozenGraph
from inc_tb.frameworks.tensorflow.graph import Engine
from inc_tb.frameworks.tensorflow.interpreter import LiteEngine
from inc_tb.frameworks.tensorflow.lite import LiteGraph
from inc_tb.frameworks.tensorflow.session import FrozenEngine
from inc_tb.frameworks.tensorflow.source import open_source


def open_engine(model: Any) -> Engine:
    graph = open_graph(model)
    return FrozenEngine(graph) if isinstance(graph, FrozenGraph) else LiteEngine(graph)


def open_graph(model: Any) -> FrozenGraph | LiteGraph:
    source = open_source(model)
    return FrozenGraph(source) if isinstance(source, Frozen) else LiteGraph(source)
