"""A model that tells its calls while it runs: as it is, or where it has a graph, as a copy of that."""

from __future__ import annotations

from torch import fx, nn

from inc_tb.frameworks.torch.eager import EagerRunner
from inc_tb.frameworks.torch.graph_runner import GraphRunner

Runner = EagerRunner | GraphRunner


def open_runner(model: nn.Module, leaves: set[str] | None = None) -> Runner:
    """`leaves` are the ops of another model, which are ops here, too, whatever is inside."""
    return GraphRunner(model, leaves) if isinstance(model, fx.GraphModule) else EagerRunner(model, leaves)
