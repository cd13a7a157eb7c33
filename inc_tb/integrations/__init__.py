"""Live hooks: diagnoses where models are trained and quantized. Each needs its own framework, and imports it."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name in ("keras", "lightning", "neural_compressor", "transformers"):
        return import_module(f"inc_tb.integrations.{name}")
    raise AttributeError(f"module 'inc_tb.integrations' has no attribute {name!r}")
