"""The engine for a model."""

from __future__ import annotations

from typing import Any

from inc_tb.adapters.tensorflow.frozen import FrozenGraph
from inc_tb.adapters.tensorflow.graph import Engine
from inc_tb.adapters.tensorflow.lite import LiteEngine, LiteGraph
from inc_tb.adapters.tensorflow.session import FrozenEngine
from inc_tb.adapters.tensorflow.source import Frozen, open_source


def open_engine(model: Any) -> Engine:
    source = open_source(model)
    return FrozenEngine(FrozenGraph(source)) if isinstance(source, Frozen) else LiteEngine(LiteGraph(source))
