"""Live hooks: diagnoses where models are trained and quantized. Each needs its own framework, and imports it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from inc_tb.errors import UsageError


def __getattr__(name: str) -> Any:
    if name not in ("keras", "lightning", "neural_compressor", "transformers"):
        raise AttributeError(f"module 'inc_tb.integrations' has no attribute {name!r}")
    try:
        return import_module(f"inc_tb.integrations.{name}")
    except ModuleNotFoundError as error:
        raise UsageError(
            f"inc_tb.integrations.{name} needs {error.name}, which is not installed. Install it with pip."
        ) from error
