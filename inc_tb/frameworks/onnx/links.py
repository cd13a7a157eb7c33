"""Ops that make channels, and all that read them through what tells no scaled channel from another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

from inc_tb.frameworks.onnx.labels import Labels, Passing, Shape, along, labels_along
from inc_tb.frameworks.onnx.model import Model, subgraphs
from inc_tb.frameworks.onnx.parts import NORMS, Part, Parts
from inc_tb.frameworks.onnx.sessions import Session
from inc_tb.frameworks.ops import Array, Batch
from inc_tb.frameworks.scaling import Numbers, Values

_CHANNELS_AT = {"MatMul": -1, "LayerNormalization": -1, "SimplifiedLayerNormalization": -1, "RMSNormalization": -1}
"""Of what an op makes; behind the samples where it is not said."""
_NO_VALUES = {"Shape", "Size"}
"""What they read is nothing to them."""
_NO_TENSORS = ("Sequence", "Optional", "SplitToSequence")


@dataclass
class Link:
    """Labels are along the features of the op's parts."""

    producer: onnx.NodeProto
    channels: int
    made: dict[str, Labels] = field(default_factory=dict)
    """Tensors whose channels are scaled."""
    shifted: dict[str, Labels] = field(default_factory=dict)
    """Ops that add something to each channel."""
    read: dict[str, Labels] = field(default_factory=dict)
    passed: list[str] = field(default_factory=list)

    @property
    def is_norm(self) -> bool:
        return self.producer.op_type in NORMS


class Links:
    def __init__(self, model: Model, shapes: Mapping[str, Shape]) -> None:
        self._model = model
        self._shapes = shapes
        self._parts = Parts(model)
        self._passing = Passing(model, shapes)

    def __iter__(self) -> Iterator[Link]:
        """In the order of the graph. What only passes channels on, such as a product with constants, starts none."""
        passed: set[str] = set()
        for node in self._model.nodes:
            link = self._begun(node) if node.name not in passed else None
            if link is not None and self._follow(link) and link.read:
                passed.update(link.passed)
                yield link

    def _begun(self, node: onnx.NodeProto) -> Link | None:
        parts, shape = self._parts.made(node), self._shapes.get(node.output[0] if node.output else "")
        if not parts or shape is None or len(shape) < 2:
            return None
        axis = parts[0].axis if node.op_type == "Mul" else _CHANNELS_AT.get(node.op_type, 1)
        if node.op_type == "MatMul" and parts[0].at == 0:
            axis = -2
        channels = self._length(node, parts[0])
        if shape[axis] != channels:
            return None
        return Link(node, channels, {node.output[0]: labels_along(axis, channels, len(shape))})

    def _length(self, node: onnx.NodeProto, part: Part) -> int:
        return part.length(self._parts.shape(node, part.at))

    def _follow(self, link: Link) -> bool:
        """False where something would see the difference."""
        waiting = list(link.made)
        while waiting:
            tensor = waiting.pop()
            if tensor in self._model.outputs:
                return False
            readers = {id(node): node for node in self._model.consumers[tensor]}
            for node in readers.values():
                more = self._behind(link, node, tensor)
                if more is None:
                    return False
                waiting += [name for name, own in more.items() if not np.array_equal(own, link.made.get(name, []))]
                link.made.update(more)
        return True

    def _behind(self, link: Link, node: onnx.NodeProto, tensor: str) -> dict[str, Labels] | None:
        if node.op_type in _NO_VALUES:
            return {}
        labels = link.made[tensor]
        scaled = [at for at, name in enumerate(node.input) if name in link.made]
        if node.op_type == "Concat":  # what is behind it is labeled again when another of its parts is
            return self._passing.joined(node, {at: link.made[node.input[at]] for at in scaled})
        if len(scaled) != 1 or subgraphs(node):
            return None
        if self._reads(link, node, labels, scaled[0]):
            return {}
        if self._shifts(link, node, labels):
            aligned = self._passing.aligned(node, labels)
            return None if aligned is None else {node.output[0]: aligned}
        found = self._passing.behind(node, scaled[0], labels)
        link.passed.append(node.name)
        return None if found is None else {out: own for out, own in found.items() if (own >= 0).any()}

    def _reads(self, link: Link, node: onnx.NodeProto, labels: Labels, at: int) -> bool:
        parts = self._parts.read(node)
        if not parts or at in (part.at for part in parts) or (node.op_type != "MatMul" and at):
            return False
        own = along(labels, channels_read(node, at)) if labels.ndim > 1 else None
        if own is None or len(own) != self._length(node, parts[0]):
            return False
        link.read[node.name] = own
        return True

    def _shifts(self, link: Link, node: onnx.NodeProto, labels: Labels) -> bool:
        parts = self._parts.shifted(node)
        if not parts or node.output[0] not in self._shapes or -parts[0].axis > labels.ndim:
            return False
        own = along(labels, parts[0].axis)
        if own is None or len(own) != self._length(node, parts[0]):
            return False
        link.shifted[node.name] = own
        return True


def channels_read(node: onnx.NodeProto, at: int) -> int:
    """The axis of what a reader sums over."""
    if node.op_type == "MatMul":
        return -1 if at == 0 else -2
    return -1 if node.op_type == "Gemm" else 1


def shapes_of(model: Model, batch: Batch) -> dict[str, Shape]:
    """Of all tensors that depend on the input, in the main graph."""
    names = [
        out for node in model.nodes if not node.op_type.startswith(_NO_TENSORS)
        for out in node.output if out and out not in model.constants
    ]  # fmt: skip
    told = [f"{name}/inc_tb_shape" for name in names]
    nodes = [helper.make_node("Shape", [name], [shape]) for name, shape in zip(names, told, strict=True)]
    found = Session(model, model.with_outputs(told, nodes), arena=False).run(batch)
    given = {name: tuple(np.shape(array)) for name, array in batch.items()}
    return {**given, **{name: tuple(shape.tolist()) for name, shape in zip(names, found, strict=True)}}


class Sizes:
    """Of what is read, by the features along one axis: reduced where it is computed, so that nothing large is kept."""

    def __init__(self, model: Model, wanted: Iterable[tuple[str, int, int]], batches: Iterable[Batch]) -> None:
        """`wanted` are tensors, the axis that is kept, and their rank."""
        self._places = list(dict.fromkeys((name, axis % rank, rank) for name, axis, rank in wanted))
        opset = next((o.version for o in model.proto.opset_import if o.domain in ("", "ai.onnx")), 1)
        nodes, names, axes = [], [], {}
        for i, (name, axis, rank) in enumerate(self._places):
            others = [other for other in range(rank) if other != axis]
            axes[f"inc_tb_axes_{i}"] = np.array(others, np.int64)
            real, square = f"inc_tb_real_{i}", f"inc_tb_square_{i}"
            nodes += [
                helper.make_node("Cast", [name], [real], to=onnx.TensorProto.FLOAT),
                helper.make_node("Mul", [real, real], [square]),
            ]
            for kind, source in (("ReduceMin", real), ("ReduceMax", real), ("ReduceMean", square)):
                names.append(f"inc_tb_{kind}_{i}")
                by_input = opset >= 18
                given = [source, f"inc_tb_axes_{i}"] if by_input else [source]
                settings: dict[str, Any] = {} if by_input else {"axes": others}
                nodes.append(helper.make_node(kind, given, [names[-1]], keepdims=0, **settings))
        proto = model.with_outputs(names, nodes)
        proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in axes.items())
        session = Session(model, proto, arena=False) if names else None
        self._runs: list[list[Array]] = [session.run(batch) for batch in batches] if session is not None else []

    def values(self, tensor: str, axis: int, rank: int, labels: Labels, channels: int) -> Values | None:
        """Each channel's of all its features; None where they are beyond numbers."""
        at = 3 * self._places.index((tensor, axis % rank, rank))
        low = np.min([run[at] for run in self._runs], axis=0).astype(np.float64)
        high = np.max([run[at + 1] for run in self._runs], axis=0).astype(np.float64)
        energy = np.mean([run[at + 2] for run in self._runs], axis=0).astype(np.float64)
        if not (np.isfinite(low).all() and np.isfinite(high).all() and np.isfinite(energy).all()):
            return None
        features = np.bincount(labels[labels >= 0], minlength=channels)
        return Values(
            gathered(np.minimum, low, labels, channels), gathered(np.maximum, high, labels, channels),
            gathered(np.add, energy, labels, channels) / np.maximum(features, 1),
        )  # fmt: skip


def gathered(join: np.ufunc, features: Numbers, labels: Labels, channels: int) -> Numbers:
    """Numbers of features as those of their channels; 0 for a channel that has none."""
    found = np.zeros(channels)
    is_one = labels >= 0
    join.at(found, labels[is_one], features[is_one])
    return found
