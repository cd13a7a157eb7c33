"""What a quantized model rounds, seen in the fp32 model: tensors and weights, and the ops at which that starts.

A tensor is rounded if an op at either end of it is quantized, whether the other end is or not: ONNX Runtime's
quantizer rounds what a quantized op reads and what it writes, for everybody who reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from inc_tb.frameworks.match import Match
from inc_tb.frameworks.onnx.match import Matching
from inc_tb.frameworks.onnx.model import RANGES, Model
from inc_tb.frameworks.onnx.steps import Step
from inc_tb.frameworks.ops import Array, Range, Site
from inc_tb.frameworks.weights import unfolded

FOLLOWERS = {
    "Relu", "Clip", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "MaxPool", "AveragePool", "Slice", "Pad",
    "Split", "Gather", "GatherElements", "Resize", "Identity", "Expand", "Tile", "DepthToSpace", "SpaceToDepth",
    "TopK", "Dropout",
}  # fmt: skip
"""Ops that ONNX Runtime rounds only where what they read is rounded: they pass a rounding on and start none."""
QUANTIZABLE = {
    "ArgMax", "Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Mul", "LeakyRelu", "Sigmoid", "GlobalAveragePool",
    "Concat", "Softmax", "Where", "Gather", "InstanceNormalization", "LayerNormalization", "BatchNormalization",
    "EmbedLayerNormalization", "Attention", "LSTM", "CumSum",
}  # fmt: skip
"""Ops that ONNX Runtime's quantizer starts a rounding at."""


_INTEGERS = ("int8", "uint8", "int16", "uint16")


class RoundedTo(NamedTuple):
    dtype: str
    step: float
    zero_point: int

    @property
    def range(self) -> Range:
        first, last = RANGES[self.dtype]
        return (first - self.zero_point) * self.step, (last - self.zero_point) * self.step

    def to(self, low: float, high: float) -> RoundedTo:
        """As ONNX Runtime's quantizer takes a range, which always has 0 in it."""
        first, last = RANGES[self.dtype]
        low, high = min(low, 0.0), max(high, 0.0)
        step = (high - low) / (last - first)
        return RoundedTo(self.dtype, step, round(first - low / step)) if step > 0 else self


class Sites:
    """Everything that is rounded, by whose quantization, and how."""

    def __init__(self, matching: Matching) -> None:
        self.notes: list[str] = []
        self._matching = matching
        self._reference, self._quantized = matching.reference, matching.quantized
        self._is_onnxruntimes = self._quantized.model.proto.producer_name == "onnx.quantize"
        self.grids = self._find_grids()
        """Tensor of the reference -> type, step and zero point to which the quantized model rounds it."""
        self.constants = self._find_constants()
        """Index of a step of the reference -> its constants as the quantized model has them."""
        self._is_integer = any(step.is_integer for step in self._quantized.steps)
        """Made of integer ops: each rounds what it reads for itself, where QDQ rounds a tensor for all readers."""
        self._dynamic = self._find_dynamic()
        self.starters = self._find_starters()
        """Ops whose quantization rounds something, with the ops that are part of them (batch norm, activation)."""
        self.reads = self._find_reads()
        """Index of a step -> what it reads rounded for itself, to a grid, or (None) to one found at run time."""
        tensors = {site.name: site for site in self._tensor_sites()}
        self.all = [*tensors.values(), *self._reader_sites(), *self._weight_sites(tensors)]

    def _find_grids(self) -> dict[str, RoundedTo]:
        found = {}
        for tensor, root in self._matching.points.items():
            q = self._quantized.tensors[root].quantization
            if q is None or q.scale is None or q.zero_point is None or q.axis is not None or q.block:
                continue
            if self._reference.types.get(tensor) != TensorProto.FLOAT or q.dtype not in _INTEGERS:
                self.notes.append(
                    f"the rounding of {tensor} to {q.dtype} is not simulated; only float32 to integers is"
                )
                continue
            found[tensor] = RoundedTo(q.dtype, float(q.scale.flat[0]), int(q.zero_point.flat[0]))
        return found

    def _find_constants(self) -> dict[int, dict[int, Array]]:
        found: dict[int, dict[int, Array]] = {}
        for match in self._matching.matches.values():
            if match.twin.weight_quantization is None:
                continue
            weights = self._matching.weights(match)
            if weights is None or not weights.reference.size:
                continue
            if match.is_joined:
                found.update(self._parts_of(match, weights.quantized))
                continue
            own = self._reference.weight(match.step)
            # A batch norm or a factor that is folded into the twin's weights is still an op of its own here.
            rounded = unfolded(own, weights.reference if match.folded else own, weights.quantized)
            position = list(match.step.node.input).index(match.step.weight)
            found[match.step.index] = {position: np.asarray(rounded, own.dtype), **self._rounded_bias(match)}
        return found

    def _parts_of(self, match: Match[Step], quantized: Array) -> Iterator[tuple[int, dict[int, Array]]]:
        """Of weights that stand side by side, those of each step."""
        at = 0
        for step in match.weighted:
            own = self._reference.weight(step)
            part = quantized if len(match.weighted) == 1 else quantized[..., at : at + own.shape[-1]]
            at += own.shape[-1]
            position = list(step.node.input).index(step.weight)
            yield step.index, {position: np.asarray(part, own.dtype).reshape(own.shape)}

    def _rounded_bias(self, match: Match[Step]) -> dict[int, Array]:
        if not match.step.has_bias or not match.twin.has_bias or match.folded:
            return {}
        mine, theirs = self._reference.bias(match.step), self._quantized.bias(match.twin)
        is_same = mine is not None and theirs is not None and mine.shape == theirs.shape
        return {2: np.asarray(theirs, mine.dtype)} if is_same and mine is not None else {}

    def _find_dynamic(self) -> dict[int, str]:
        found = {}
        for index, match in self._matching.matches.items():
            is_plain = match.twin.is_dynamic and match.step.type in ("MatMul", "Conv", "Gemm")
            if is_plain and match.step.reads and match.step.node.input[0] == match.step.reads[0]:
                found[index] = match.step.reads[0]
        return found

    def _find_starters(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for step in self._reference.steps:
            match = self._matching.matches.get(step.index)
            if match is not None and self._starts(step, match):
                found[step.name] = [step.name, *(folded.name for folded in match.folded)]
        return found

    def _starts(self, step: Step, match: Match[Step]) -> bool:
        if step.index in self._dynamic or any(bearer.index in self.constants for bearer in match.weighted):
            return True
        if self._is_integer:
            return match.twin.is_integer and step.type != "GlobalAveragePool"  # which only follows there
        kind = match.twin.type if match.is_joined else step.type
        if kind in FOLLOWERS or (self._is_onnxruntimes and kind not in QUANTIZABLE):
            return False
        reads = [v for v in (match.reads if match.is_joined else step.reads) if v in self._reference.types]
        is_rounded = match.end.outputs[0] in self.grids or step.type == "ArgMax"  # whose result is a whole number
        return is_rounded and all(v in self.grids for v in reads)

    def _find_reads(self) -> dict[int, dict[str, RoundedTo | None]]:
        found: dict[int, dict[str, RoundedTo | None]] = {i: {tensor: None} for i, tensor in self._dynamic.items()}
        if self._is_integer:
            for step in self._reference.steps:
                if self._before_folded(step).name in self.starters and step.index not in self._dynamic:
                    rounded: dict[str, RoundedTo | None] = {v: self.grids[v] for v in step.reads if v in self.grids}
                    if rounded or step.name in self.starters:
                        found[step.index] = rounded
        return found

    def _tensor_sites(self) -> Iterator[Site]:
        """A tensor is rounded if an op at either end of it is quantized, whether the other end is or not."""
        started: dict[str, list[str]] = {}
        order = {step.name: step.index for step in self._reference.steps}
        same_grid: dict[str, str] = {}
        for tensor in [i.name for i in self._reference.model.inputs] + [
            out for s in self._reference.steps for out in s.outputs
        ]:
            if tensor not in self.grids:
                continue
            by: dict[str, None] = {}
            producer = self._reference.producer.get(tensor)
            source = self._before_folded(producer) if producer is not None else None
            if source is not None and source.name in self.starters and source.index not in self._dynamic:
                by[source.name] = None
            for step in (producer, source):
                if step is not None and step.type in FOLLOWERS:
                    before = [v for v in step.reads if v in started]
                    # The quantizer goes through the ops in order: what a later one rounds is not rounded yet.
                    by.update((unit, None) for v in before for unit in started[v] if order[unit] < step.index)
                    same_grid.update((tensor, same_grid.get(v, v)) for v in before if self._is_same_grid(v, tensor))
            wholes = (self._before_folded(s).name for s in self._readers(tensor))
            by.update((name, None) for name in wholes if name in self.starters)
            started[tensor] = list(by)
            if by:
                yield Site(tensor, "activation", frozenset(by), same_grid.get(tensor, tensor))

    def _readers(self, tensor: str) -> list[Step]:
        """Those that have it rounded for everybody."""
        return [s for s in self._reference.consumers[tensor] if s.index not in self.reads]

    def _before_folded(self, step: Step) -> Step:
        """The op into which the quantized model has folded this one; or the op itself."""
        match = self._matching.folded_into.get(step.index)
        return match.step if match is not None else step

    def _is_same_grid(self, a: str, b: str) -> bool:
        return self.grids[a] == self.grids[b]

    def _reader_sites(self) -> Iterator[Site]:
        for step in self._reference.steps:
            for tensor, grid in self.reads.get(step.index, {}).items():
                name = f"{tensor} for {step.name}"
                units = frozenset([self._before_folded(step).name])
                yield Site(name, "activation", units, tensor if grid is not None else name)

    def _weight_sites(self, tensors: Mapping[str, Site]) -> Iterator[Site]:
        for step in self._reference.steps:
            if step.index not in self.constants:
                continue
            name, own = f"weights of {step.name}", frozenset([self._before_folded(step).name])
            around = self._rounded_around(step, tensors)
            if around and rounds_weights_again():
                ways = tuple(own | units for units in around)
                yield Site(name, "weight", own, name, f"{name} at run time", ways)
            else:
                yield Site(name, "weight", own, name)

    def _rounded_around(self, step: Step, tensors: Mapping[str, Site]) -> list[frozenset[str]]:
        """Units by which what is right before and right behind an op is rounded, if ONNX Runtime would round its float
        weights in between: the op itself or with a Relu behind it.
        """
        if step.type not in ("Conv", "ConvTranspose", "Gemm") or step.node.input[0] not in tensors:
            return []
        end = step.outputs[0]
        if self._is_integer:
            return self._rounded_around_integers(step, tensors)
        behind = [tensors[end].units] if end in tensors else []
        while len(readers := self._reference.consumers[end]) == 1 and readers[0].type in ("Relu", "Clip"):
            end = readers[0].outputs[0]
            behind += [tensors[end].units] if end in tensors else []
        return [tensors[step.node.input[0]].units, frozenset().union(*behind)] if behind else []

    def _rounded_around_integers(self, step: Step, tensors: Mapping[str, Site]) -> list[frozenset[str]]:
        """Its result must be rounded and nothing else: one reader that takes it as it is spares the weights."""
        readers = self._reference.consumers[step.outputs[0]]
        while len(readers) == 1 and readers[0].type in ("Relu", "Clip"):
            readers = self._reference.consumers[readers[0].outputs[0]]
        if not readers or any(reader.index not in self.reads for reader in readers):
            return []
        return [tensors[step.node.input[0]].units, *(frozenset([reader.name]) for reader in readers)]


@cache
def rounds_weights_again() -> bool:
    """Whether this ONNX Runtime rounds float weights between two rounded tensors when it opens a model.

    Newer ones do, with one scale for all channels: what a quantizer has left in fp32 is then int8 all the same.
    """
    weights = np.array([1000.0, 1.0], np.float32).reshape(2, 1, 1, 1)
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "scale", "zero"], ["a"]),
        helper.make_node("Conv", ["a", "w"], ["b"]),
        helper.make_node("QuantizeLinear", ["b", "scale", "zero"], ["y"]),
    ]
    constants = [
        numpy_helper.from_array(weights, "w"), helper.make_tensor("scale", TensorProto.FLOAT, [], [1.0]),
        helper.make_tensor("zero", TensorProto.INT8, [], [0]),
    ]  # fmt: skip
    x, y = (helper.make_tensor_value_info(n, TensorProto.INT8, [1, c, 1, 1]) for n, c in (("x", 1), ("y", 2)))
    graph = helper.make_graph(nodes, "again", [x], [y], constants)
    model = Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8))
    found = model.session(model.proto, optimized=True).run(None, {"x": np.full((1, 1, 1, 1), 100, np.int8)})
    return bool(np.asarray(found[0]).ravel()[1] != 100)  # 1.0 among weights up to 1000 becomes 0


def rounded_again(weights: Array) -> Array:
    """As ONNX Runtime rounds weights itself: one scale and zero point, from the smallest to the largest, and 0."""
    low, high = min(weights.min(), np.float32(0)), max(weights.max(), np.float32(0))
    scale = (high - low) / np.float32(255) or np.float32(1)
    zero = np.rint(np.clip(-128 - low / scale, -128, 127))
    return np.asarray((np.clip(np.rint(weights / scale) + zero, -128, 127) - zero) * scale, weights.dtype)
