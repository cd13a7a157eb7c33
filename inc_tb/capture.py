"""What a framework adapter gives: ops, and pairs of arrays."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from inc_tb.errors import ModelError
from inc_tb.records import GraphNode, Op

Array = npt.NDArray[Any]
Batch = Mapping[str, Array]
Role = Literal["weight", "input", "output", "isolated"]
"""input: a quantized input of the whole model, at the first op that reads it;
isolated: the op's output when it gets the reference's inputs, which shows what the op itself adds."""


class Pair(NamedTuple):
    """The same tensor in both models, the quantized one already dequantized."""

    op: str
    tensor: str
    role: Role
    reference: Array
    quantized: Array
    channel_axis: int | None


class Input(NamedTuple):
    """An input of the model; None in the shape is any length."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]


class Adapter(Protocol):
    """One file per framework."""

    framework: str
    notes: list[str]
    """What was left out, and why; may grow while batches run."""

    def inputs(self) -> Sequence[Input]: ...

    def batch_size(self) -> int:
        """How many samples fit the memory budget at once."""
        ...

    def ops(self) -> Sequence[Op]: ...

    def weights(self) -> Iterator[Pair]: ...

    def run(self, batch: Batch) -> Iterator[Pair]: ...


def open_models(reference: Any, quantized: Any, *, memory_budget: int = 1 << 30) -> Adapter:
    """The adapter for a pair of models, given as paths or as objects."""
    if {_kind(reference), _kind(quantized)} == {"onnx"}:
        adapter: Adapter = _onnx().OnnxAdapter(reference, quantized, memory_budget=memory_budget)
        return adapter
    given = " and ".join(describe(m) for m in (reference, quantized))
    raise ModelError(f"cannot compare {given}; expected two ONNX models (.onnx files or onnx.ModelProto objects).")


def read_graph(model: Any) -> list[GraphNode]:
    """The ops of one model and what they read."""
    if _kind(model) == "onnx":
        nodes: list[GraphNode] = _onnx().read_graph(model)
        return nodes
    raise ModelError(f"cannot read {describe(model)}; expected an ONNX model (.onnx file or onnx.ModelProto object).")


def _onnx() -> ModuleType:
    try:
        return importlib.import_module("inc_tb.adapters.onnx")
    except ModuleNotFoundError as error:
        raise ModelError(
            f"reading ONNX models needs {error.name}, which is not installed: pip install 'inc-tb[onnx]'."
        ) from error


def describe(model: Any) -> str:
    return str(model) if isinstance(model, str | PathLike) else f"a {type(model).__module__}.{type(model).__qualname__}"


def _kind(model: Any) -> str:
    if isinstance(model, str | PathLike):
        path = Path(model)
        if not path.is_file():
            raise ModelError(f"{path}: no such file; expected a model file (.onnx). Check the path.")
        return {".onnx": "onnx", ".ort": "ort"}.get(path.suffix.lower(), path.suffix.lower())
    return "onnx" if type(model).__name__ == "ModelProto" else type(model).__name__
