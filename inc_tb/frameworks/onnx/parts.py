"""The constants of an op that are scaled with the channels that it makes, or reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx

from inc_tb.frameworks.onnx.model import Model, attribute
from inc_tb.frameworks.onnx.steps import nth_input
from inc_tb.frameworks.ops import Array

_FLOATS = ("float", "float16", "double")
NORMS = {"LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization", "InstanceNormalization", "Mul"}
"""Mul: what a norm that is written out ends with."""
_SHIFTS = {"Add", "Sub"}


class Part(NamedTuple):
    """A constant, by the input that it is."""

    at: int
    axis: int
    """The features that are channels, or parts of one, are along this."""
    power: int
    """Of the factor of a channel: scaled by it, or divided."""
    groups: int = 1
    """Of a convolution: its channels are in groups, of which each weight reads one."""

    def length(self, shape: Sequence[int]) -> int:
        """How many features."""
        return shape[self.axis] * self.groups if -len(shape) <= self.axis < len(shape) else 0

    def rows(self, value: Array) -> Array:
        """One a feature."""
        if self.groups > 1:
            grouped = value.reshape(self.groups, -1, *value.shape[1:])
            return np.asarray(np.moveaxis(grouped, 2, 1).reshape(self.length(value.shape), -1))
        return np.asarray(np.moveaxis(value, self.axis, 0).reshape(self.length(value.shape), -1))

    def scaled(self, value: Array, factors: Array) -> Array:
        """With one factor a feature."""
        by = np.power(np.asarray(factors, np.float64), self.power)
        shape = [1] * value.ndim
        shape[self.axis] = -1
        if self.groups > 1:
            shape[0] = len(value)
            by = np.repeat(by.reshape(self.groups, -1), len(value) // self.groups, axis=0)
        return (value * by.reshape(shape)).astype(value.dtype)


class Parts:
    """Which they are in the ops of one model, and what they hold."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._real: dict[str, bool] = {}

    def made(self, node: onnx.NodeProto) -> list[Part]:
        """Of an op that makes channels; nothing of any other."""
        kind = node.op_type
        if kind == "Conv" or kind in ("BatchNormalization", "InstanceNormalization"):
            return self._known(node, [Part(1, 0, -1), Part(2, 0, -1)])
        if kind == "ConvTranspose" and attribute(node, "group", 1) == 1:
            return self._known(node, [Part(1, 1, -1), Part(2, 0, -1)])
        if kind == "Gemm":
            return self._known(node, [Part(1, 0 if attribute(node, "transB", 0) else 1, -1), Part(2, -1, -1)])
        if kind == "MatMul":
            at = self._constant(node)
            return self._known(node, [Part(at, -1 if at else -2, -1)]) if at is not None else []
        if kind in NORMS - {"Mul"} and attribute(node, "axis", -1) == -1:
            return self._known(node, [Part(1, 0, -1), Part(2, 0, -1)])
        return self._vector(node) if kind == "Mul" else []

    def shifted(self, node: onnx.NodeProto) -> list[Part]:
        """Of an op that adds something to each channel."""
        return self._vector(node) if node.op_type in _SHIFTS else []

    def read(self, node: onnx.NodeProto) -> list[Part]:
        """Of an op that sums over the channels that it reads, or scales them; its weights are first."""
        if node.op_type == "Conv":
            return self._known(node, [Part(1, 1, 1, attribute(node, "group", 1))])
        if node.op_type == "ConvTranspose":
            return self._known(node, [Part(1, 0, 1)])
        if node.op_type == "BatchNormalization":
            return self._known(node, [Part(1, 0, 1), Part(3, 0, -1)])
        if node.op_type == "Gemm" and not attribute(node, "transA", 0):
            return self._known(node, [Part(1, 1 if attribute(node, "transB", 0) else 0, 1)])
        if node.op_type == "MatMul":
            at = self._constant(node)
            return self._known(node, [Part(at, -2 if at else -1, 1)]) if at is not None else []
        return []

    def of(self, node: onnx.NodeProto, *, is_first: bool) -> list[Part]:
        """By its place in a Rewrite."""
        return self.made(node) if is_first else self.shifted(node) or self.read(node)

    def value(self, node: onnx.NodeProto, part: Part) -> Array:
        return self._model.constant(node.input[part.at])

    def _constant(self, node: onnx.NodeProto) -> int | None:
        """Which of two inputs is constant."""
        found = [at for at in (0, 1) if nth_input(node, at) in self._model.constants]
        return found[0] if len(found) == 1 else None

    def _vector(self, node: onnx.NodeProto) -> list[Part]:
        """One number a channel."""
        at = self._constant(node)
        shape = self.shape(node, at) if at is not None and self._is_real(node, at) else ()
        axes = [axis for axis, length in enumerate(shape) if length > 1]
        return [Part(at, axes[0] - len(shape), -1)] if at is not None and len(axes) == 1 else []

    def _known(self, node: onnx.NodeProto, parts: Sequence[Part]) -> list[Part]:
        """Those that are there; nothing where one is no constant, or weights that others read as well."""
        found = [part for part in parts if nth_input(node, part.at)]
        if not found or found[0] != parts[0] or not all(self._is_real(node, part.at) for part in found):
            return []
        weights, *more = (self.shape(node, part.at) for part in found)
        is_shared = len(weights) > 1 and len(self._model.consumers[node.input[found[0].at]]) > 1
        length = found[0].length(weights)
        fits = all(part.length(shape) == length for part, shape in zip(found[1:], more, strict=True))
        return found if length > 1 and fits and not is_shared else []

    def shape(self, node: onnx.NodeProto, at: int) -> tuple[int, ...]:
        name = node.input[at]
        if name not in self._shapes:
            stored = self._model.initializers.get(name)
            self._shapes[name] = tuple(stored.dims) if stored is not None else self._model.constant(name).shape
        return self._shapes[name]

    def _is_real(self, node: onnx.NodeProto, at: int) -> bool:
        name = node.input[at]
        if name not in self._real:
            self._real[name] = name in self._model.constants and self._model.elem_type(name) in _FLOATS
        return self._real[name]
