"""Weights of an op and of its twin, and what a converter has worked into them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from inc_tb.frameworks.arrays import alike
from inc_tb.frameworks.match import Weights
from inc_tb.frameworks.ops import Array, Quantization
from inc_tb.frameworks.tensorflow.graph import Graph, Step
from inc_tb.frameworks.tensorflow.grids import grid
from inc_tb.frameworks.tensorflow.kinds import AFFINE


@dataclass
class Affine:
    """Weights and bias of an op, and what follows it worked in."""

    weight: Array
    bias: Array

    def distance(self, weight: Array, bias: Array | None) -> float:
        found = _relative(self.weight, weight)
        return found + _relative(self.bias, bias) if bias is not None else found


class WeightPairs:
    """`chain` gives the affine steps of the reference that follow a step one by one."""

    def __init__(self, reference: Graph, quantized: Graph, chain: Callable[[Step], list[Step]]) -> None:
        self._reference = reference
        self._quantized = quantized
        self._chain = chain

    def both(self, step: Step, twin: Step) -> Weights | None:
        if not step.weight or not twin.weight:
            return None
        mine, theirs = self._reference.weight(step), self._quantized.weight(twin)
        if mine.dtype.kind != "f" or theirs.dtype.kind != "f" or mine.size != theirs.size:
            return None
        if mine.shape != theirs.shape:
            turned = theirs.swapaxes(-1, -2)
            theirs = turned if turned.shape == mine.shape else theirs.reshape(mine.shape)
        return Weights(np.asarray(mine, np.float32), np.asarray(theirs, np.float32), mine.ndim - 1)

    def likeness(self, step: Step, twin: Step) -> float:
        """Of the weights, with as much of what follows worked in as fits best."""
        found = self.both(step, twin)
        if found is None:
            return -1.0
        scores = [alike(affine.weight, found.quantized) for affine in self.affines(step, found.reference)]
        return max(scores)

    def affines(self, step: Step, weight: Array) -> list[Affine]:
        """Weights and bias as they are, and with one, two, ... of the following steps worked in."""
        own = self._reference.bias(step)
        found = [Affine(weight, np.zeros(1, np.float32) if own is None else own)]
        for following in self._chain(step):
            made = self.worked_in(found[-1], following)
            if made is None:
                break
            found.append(made)
        return found

    def worked_in(self, affine: Affine, step: Step) -> Affine | None:
        if step.type not in AFFINE:
            return affine
        constants = [np.asarray(self._reference.constant(name)) for name in step.constants]
        if any(c.dtype.kind != "f" for c in constants):
            return None
        channels = affine.weight.shape[-1]
        flat = [c.ravel().astype(np.float32) for c in constants]
        if any(c.size not in (1, channels) for c in flat):
            return None
        if step.type == "BatchNorm":
            if len(flat) < 4:
                return None
            gain, offset, mean, variance = flat[:4]
            factor = gain / np.sqrt(variance + step.settings.get("epsilon", 1e-4))
            return Affine(affine.weight * factor, (affine.bias - mean) * factor + offset)
        constant, is_second = flat[0], not step.settings.get("constant_first", False)
        if step.type == "Add":
            return Affine(affine.weight, affine.bias + constant)
        if step.type == "Mul":
            return Affine(affine.weight * constant, affine.bias * constant)
        if step.type == "Sub" and is_second:
            return Affine(affine.weight, affine.bias - constant)
        if step.type == "Div" and is_second:
            return Affine(affine.weight / constant, affine.bias / constant)
        return None

    def settle(self, step: Step, twin: Step) -> None:
        """Scales that the file has only as products follow from the weights, one op after the other."""
        before = self._known_grid(twin.reads[0]) if twin.reads else None
        if twin.factor is None or before is None or before.scale is None:
            return
        if twin.zero is None:
            twin.weight_quantization = grid("int8", twin.factor / before.scale, 0, -1)
        elif (found := self.both(step, twin)) is not None:
            reach = np.abs(self.affines(step, found.reference)[-1].weight)
            largest = reach.max(axis=tuple(range(reach.ndim - 1))) if twin.factor.size > 1 else reach.max()
            scale = np.maximum(largest, np.finfo(np.float32).tiny) / 127
            twin.weight_quantization = grid("int8", scale, 0, -1)
            result = np.median(before.scale * scale / twin.factor)
            self._quantized.tensors[twin.outputs[0]].quantization = grid("int8", result, twin.zero)

    def _known_grid(self, root: str) -> Quantization | None:
        """Also where ops that only rearrange whole numbers hand a scale on."""
        value = self._quantized.tensors[root]
        producer = self._quantized.producer.get(root)
        is_open = value.is_integer and value.quantization is not None and value.quantization.scale is None
        if is_open and producer is not None and not producer.weight and producer.reads:
            value.quantization = self._known_grid(producer.reads[0])
        return value.quantization


def _relative(a: Array, b: Array) -> float:
    """The square of the difference, as a share of both."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if a.size != b.size and 1 not in (a.size, b.size):  # those of another network
        return 1.0
    size = float((a * a).mean() + (b * b).mean())
    return float(np.square(a - b).mean()) / size if size > 0 else 0.0
