"""What a framework is to inc-tb: one package each, and what all of them share.

What the author of another one needs can be imported from here; tests/frameworks/toy_framework is an example.
"""

from __future__ import annotations

from inc_tb.frameworks.describe import described, linked, without
from inc_tb.frameworks.feeds import fitted
from inc_tb.frameworks.formats import PLAIN, Format, Settings, always
from inc_tb.frameworks.framework import Framework, Option, Tool
from inc_tb.frameworks.ops import Array, Batch, Input, Op, Pair, Quantization, Site, Unit
from inc_tb.frameworks.protocols import (
    Adapter,
    Execution,
    Kernel,
    Outputs,
    Quantizer,
    Recorded,
    Switchable,
    Timer,
)
from inc_tb.records import GraphNode, Recipe

__all__ = [
    "PLAIN", "Adapter", "Array", "Batch", "Execution", "Format", "Framework", "GraphNode", "Input", "Kernel", "Op",
    "Option", "Outputs", "Pair", "Quantization", "Quantizer", "Recipe", "Recorded", "Settings", "Site", "Switchable",
    "Timer", "Tool", "Unit", "always", "described", "fitted", "linked", "without",
]  # fmt: skip
