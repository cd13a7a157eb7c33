"""Where the channels of a tensor are in what ops make of it.

Labels say for each number of a tensor which channel it belongs to, NONE for those of others. They have the tensor's
rank, and length 1 along the axes on which it does not depend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from inc_tb.frameworks.onnx.model import Model, attribute
from inc_tb.frameworks.onnx.steps import nth_input

Labels = npt.NDArray[np.int32]
Shape = tuple[int, ...]

NONE = -1
_MOST = 1 << 24
"""Numbers of a tensor; larger ones are not followed through a change of their shape."""
_ALIKE = {
    "Relu", "LeakyRelu", "PRelu", "Identity", "Dropout", "Neg", "Abs", "MaxPool", "AveragePool", "LpPool",
    "GlobalAveragePool", "GlobalMaxPool", "Resize", "Upsample", "Clip", "Pad", "Mul", "Div", "Cast", "Expand",
}  # fmt: skip
"""What makes twice as much of twice as much, channel by channel, and leaves the channels where they are."""
_RESHAPES = {"Reshape", "Flatten", "Squeeze", "Unsqueeze"}
_REDUCES = {"ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2"}
FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16}


class Passing:
    """Ops behind which a channel that was scaled is scaled by as much, whatever the data."""

    def __init__(self, model: Model, shapes: Mapping[str, Shape]) -> None:
        self._model = model
        self._shapes = shapes
        ways: dict[str, Callable[[onnx.NodeProto, int, Labels], dict[str, Labels] | None]] = {
            **dict.fromkeys(_ALIKE, self._alike), **dict.fromkeys(_RESHAPES, self._reshaped),
            **dict.fromkeys(_REDUCES, self._reduced), "Transpose": self._transposed, "MatMul": self._mixed,
            "Split": self._split, "Slice": self._sliced, "Gather": self._gathered,
        }  # fmt: skip
        self._ways = ways

    def behind(self, node: onnx.NodeProto, at: int, labels: Labels) -> dict[str, Labels] | None:
        """The labels of its outputs where its input `at` has these; None where scaled channels would not stay so."""
        way = self._ways.get(node.op_type)
        is_known = way is not None and node.domain in ("", "ai.onnx") and node.output[0] in self._shapes
        return way(node, at, labels) if way is not None and is_known else None

    def joined(self, node: onnx.NodeProto, parts: Mapping[int, Labels]) -> dict[str, Labels] | None:
        """As `behind`, of a Concat of which several parts may be scaled."""
        if any(name not in self._shapes for name in (*node.input, *node.output)):
            return None
        rank = len(self._shapes[node.output[0]])
        axis = attribute(node, "axis", 0) % rank
        wide = [max(labels.shape[i] for labels in parts.values()) for i in range(rank)]
        found = []
        for at, name in enumerate(node.input):
            shape = [self._shapes[name][i] if i == axis else length for i, length in enumerate(wide)]
            found.append(np.broadcast_to(parts.get(at, np.int32(NONE)), shape))
        return {node.output[0]: shortened(np.concatenate(found, axis))}

    def aligned(self, node: onnx.NodeProto, labels: Labels) -> Labels | None:
        """In the rank of what an elementwise op makes of them; None where they do not fit that."""
        shape = self._shapes[node.output[0]]
        if len(shape) < labels.ndim:
            return None
        found = labels.reshape([1] * (len(shape) - labels.ndim) + list(labels.shape))
        fits = all(mine in (1, length) for mine, length in zip(found.shape, shape, strict=True))
        return found if fits else None

    def constants(self, node: onnx.NodeProto, at: int) -> list[Any] | None:
        """The numbers of an input, if they are constant."""
        name = nth_input(node, at)
        return self._model.constant(name).ravel().tolist() if name in self._model.constants else None

    def _alike(self, node: onnx.NodeProto, at: int, labels: Labels) -> dict[str, Labels] | None:
        is_second = at > 0 and node.op_type != "Mul"  # a slope, a divisor
        if is_second or (node.op_type == "Clip" and not self._is_relu(node)):
            return None
        if node.op_type == "Cast" and attribute(node, "to", 0) not in FLOATS:
            return None
        found = self.aligned(node, labels)
        return None if found is None else {node.output[0]: found}

    def _is_relu(self, node: onnx.NodeProto) -> bool:
        """No bound but one at 0."""
        low, high = (self._bound(node, at) for at in (1, 2))
        return low in (0.0, -np.inf) and high in (0.0, np.inf)

    def _bound(self, node: onnx.NodeProto, at: int) -> float:
        """Of a Clip, an attribute before opset 11; NaN where it is not constant."""
        none = (-np.inf, np.inf)[at - 1]
        found = attribute(node, ("min", "max")[at - 1], none)
        if nth_input(node, at):
            found = (self.constants(node, at) or [np.nan])[0]
        return none if abs(found) >= np.finfo(np.float32).max else float(found)

    def _reshaped(self, node: onnx.NodeProto, at: int, labels: Labels) -> dict[str, Labels] | None:
        before, after = self._shapes[node.input[0]], self._shapes[node.output[0]]
        if at or np.prod(before) != np.prod(after) or np.prod(before) > _MOST:
            return None
        return {node.output[0]: shortened(np.broadcast_to(labels, before).reshape(after))}

    def _reduced(self, node: onnx.NodeProto, at: int, labels: Labels) -> dict[str, Labels] | None:
        axes = attribute(node, "axes", None) or self.constants(node, 1) or list(range(labels.ndim))
        if at or any(labels.shape[axis] > 1 for axis in axes):
            return None
        kept = bool(attribute(node, "keepdims", 1))
        return {node.output[0]: labels if kept else labels.squeeze(tuple(axes))}

    def _transposed(self, node: onnx.NodeProto, at: int, labels: Labels) -> dict[str, Labels]:
        return {node.output[0]: labels.transpose(attribute(node, "perm", None))}

    def _mixed(self, node: onnx.NodeProto, at: int, labels: Labels) -> dict[str, Labels] | None:
        """A product sums over one axis; what is scaled along others stays so."""
        rank = len(self._shapes[node.output[0]])
        summed = -1 if at == 0 else -2
        if labels.ndim < 2 or labels.shape[summed] > 1 or len(self._shapes[node.input[1 - at]]) < 2:
            return None
        found = labels.reshape([1] * (rank - labels.ndim) + list(labels.shape))
        return {node.output[0]: found}

    def _split(self, node: onnx.NodeProto, at: int, labels: Labels) -> dict[str, Labels] | None:
        axis = attribute(node, "axis", 0)
        if at or any(out not in self._shapes for out in node.output if out):
            return None
        if labels.shape[axis] == 1:
            return {out: labels for out in node.output if out}
        ends = np.cumsum([self._shapes[out][axis] for out in node.output])
        return dict(zip(node.output, np.split(labels, ends[:-1], axis), strict=True))

    def _sliced(self, node: onnx.NodeProto, at: int, labels: Labels) -> dict[str, Labels] | None:
        starts, ends, axes = (
            attribute(node, name, None) or self.constants(node, i)
            for i, name in enumerate(("starts", "ends", "axes"), 1)
        )
        steps = self.constants(node, 4)
        if at or starts is None or ends is None:
            return None
        found = labels
        for i, axis in enumerate(axes if axes is not None else range(len(starts))):
            if labels.shape[axis] > 1:
                cut = slice(starts[i], ends[i], steps[i] if steps else 1)
                found = found[(slice(None),) * (axis % labels.ndim) + (cut,)]
        return {node.output[0]: found} if found.size else None

    def _gathered(self, node: onnx.NodeProto, at: int, labels: Labels) -> dict[str, Labels] | None:
        axis, chosen = attribute(node, "axis", 0), nth_input(node, 1)
        if at or chosen not in self._model.constants:
            return None
        places = self._model.constant(chosen).astype(np.int64)
        if labels.shape[axis] == 1:
            places = np.zeros(places.shape, np.int64)
        return {node.output[0]: shortened(np.take(labels, places, axis))}


def labels_along(axis: int, channels: int, rank: int) -> Labels:
    shape = [1] * rank
    shape[axis] = channels
    return np.arange(channels, dtype=np.int32).reshape(shape)


def along(labels: Labels, axis: int) -> Labels | None:
    """Those along one axis; None where they depend on another."""
    place = axis % labels.ndim
    others: Sequence[int] = [length for i, length in enumerate(labels.shape) if i != place]
    return labels.reshape(-1) if all(length == 1 for length in others) else None


def shortened(labels: Labels) -> Labels:
    """With length 1 along the axes on which they do not depend."""
    for axis in range(labels.ndim):
        first = labels.take([0], axis)
        if labels.shape[axis] > 1 and np.array_equal(np.broadcast_to(first, labels.shape), labels):
            labels = first
    return labels
