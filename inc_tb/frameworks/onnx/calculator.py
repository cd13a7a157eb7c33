"""What a few steps give for given numbers, in numpy."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

from inc_tb.frameworks.onnx.functions import ERF
from inc_tb.frameworks.onnx.graph import INTEGER_OPS, Graph
from inc_tb.frameworks.onnx.model import attribute
from inc_tb.frameworks.onnx.steps import Step, nth_input
from inc_tb.frameworks.ops import Array
from inc_tb.frameworks.rounding import dequantize

_LARGEST = 1 << 14
"""Constants with more numbers are no scale and no bias."""
_MOST_NUMBERS = 1 << 15
_LENGTHS = (6, 3, 4, 5, 2)
"""Of dimensions of which nothing is known."""
_OPS: Mapping[str, Callable[..., Array]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power, "Max": np.maximum,
    "Min": np.minimum, "Sqrt": np.sqrt, "Reciprocal": np.reciprocal, "Exp": np.exp, "Log": np.log, "Neg": np.negative,
    "Abs": np.abs, "Tanh": np.tanh, "Erf": ERF, "Relu": lambda x: np.maximum(x, 0),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)), "Softplus": lambda x: np.logaddexp(x, 0),
}  # fmt: skip
_REDUCTIONS: Mapping[str, Callable[..., Array]] = {
    "ReduceMean": np.mean, "ReduceSum": np.sum, "ReduceMax": np.max,
    "ReduceSumSquare": lambda x, **more: np.sum(x * x, **more),
    "ReduceL2": lambda x, **more: np.sqrt(np.sum(x * x, **more)),
}  # fmt: skip
REDUCTIONS = set(_REDUCTIONS)
COMPUTABLE = {*_OPS, *REDUCTIONS, "Clip", "HardSigmoid"}


class Calculator:
    """Knows the constants of one graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._known: dict[tuple[str, str], Array] = {}
        self._cutting: dict[str, bool] = {}
        self._keys: dict[int, tuple[Hashable, list[Hashable]]] = {}

    def operands(self, step: Step) -> list[str | Array | None]:
        """What a step computes with, in the order of its kind: roots, and the values of constants that are small."""
        found = INTEGER_OPS.get(step.node.op_type, ((), None))[0]
        places = found or [(i, -1, -1) for i in range(len(step.node.input))]
        return [self._operand(step, *place) for place in places]

    def made_of(self, entry: str, steps: Sequence[Step]) -> Hashable:
        """Equal for pieces that compute the same function of what they read."""
        places: dict[Hashable, int] = {entry: -1}
        told = []
        for step in steps:
            alone, operands = self._key(step)
            told.append((alone, *(places.get(operand, operand) for operand in operands)))
            places[step.outputs[0]] = len(places)
        return tuple(self._graph.shapes.get(entry) or ()), entry in self._graph.shapes, tuple(told)

    def _key(self, step: Step) -> tuple[Hashable, list[Hashable]]:
        """Of the step by itself, and what it computes with: roots, and constants by their values."""
        if step.index not in self._keys:
            operands = [_digest(o) if isinstance(o, np.ndarray) else o for o in self.operands(step)]
            quantization = self._graph.tensors[step.outputs[0]].quantization
            limits = None if quantization is None else quantization.limits
            attributes = tuple(a.SerializeToString() for a in step.node.attribute)
            alone = step.type, attributes, None if limits is None else tuple(map(_digest, limits))
            self._keys[step.index] = alone, operands
        return self._keys[step.index]

    def _operand(self, step: Step, at: int, scale_at: int, zero_at: int) -> str | Array | None:
        model, name = self._graph.model, nth_input(step.node, at)
        scale = nth_input(step.node, scale_at) if scale_at >= 0 else ""
        if name in self._graph.root:
            return self._graph.root[name]
        if name not in model.constants or model.size(name) > _LARGEST:
            return None
        if (name, scale) not in self._known:
            values = model.constant(name)
            if scale in model.constants and values.dtype.kind in "iu":
                zero_point = nth_input(step.node, zero_at)
                values = dequantize(values, model.parameters(scale, zero_point, model.elem_type(name)))
            self._known[name, scale] = values
        return self._known[name, scale]

    def compute(self, steps: Sequence[Step], known: Mapping[str, Array], *, cut: bool = False) -> Array | None:
        """What the last of these steps gives, where all that they read is known or constant.

        With `cut` a range that ends at 0 cuts off like a Relu, as quantizers use it; what is above a range is NaN.
        """
        values = dict(known)
        for step in steps:
            given = [values.get(o) if isinstance(o, str) else o for o in self.operands(step)]
            with np.errstate(all="ignore"):
                found = _computed(step, given) if given and given[0] is not None else None
            if found is None or not (cut or np.all(np.isfinite(found))):
                return None
            values[step.outputs[0]] = self._cut(step.outputs[0], found) if cut else found
        return values[steps[-1].outputs[0]]

    def cuts(self, root: str) -> bool:
        """Whether a tensor is rounded to numbers of which none is below 0."""
        if root not in self._cutting:
            quantization = self._graph.tensors[root].quantization
            limits = None if quantization is None else quantization.limits
            self._cutting[root] = limits is not None and float(limits[0].min()) >= 0
        return self._cutting[root]

    def _cut(self, root: str, values: Array) -> Array:
        quantization = self._graph.tensors[root].quantization
        if quantization is None or quantization.limits is None or not self.cuts(root):
            return values
        return np.where(values > float(quantization.limits[1].max()), np.nan, np.maximum(values, 0))

    def example(self, root: str, steps: Sequence[Step]) -> Array | None:
        """Numbers to try the steps on, in a shape that their constants fit."""
        shape = self._graph.shapes.get(root)
        is_told = shape is not None and any(step.type in REDUCTIONS for step in steps)
        operands = [o for step in steps if step.type not in REDUCTIONS for o in self.operands(step)]
        constants = [o.shape for o in operands if o is not None and not isinstance(o, str)]
        rank = len(shape) if shape is not None else max([3, *map(_least_rank, steps)])
        try:
            fixed = np.broadcast_shapes(*constants)
        except ValueError:
            return None
        if len(fixed) > rank or not rank:
            return None
        lengths = [_LENGTHS[min(i, len(_LENGTHS) - 1)] for i in range(rank)]
        for at in range(rank):
            own = fixed[at - rank + len(fixed)] if at >= rank - len(fixed) else 1
            told = shape[at] if is_told and shape is not None and at else None
            if own > 1:
                lengths[at] = own
            elif told and told * np.prod(lengths) // lengths[at] <= _MOST_NUMBERS:
                lengths[at] = told
        if np.prod(lengths) > 32 * _MOST_NUMBERS:
            return None
        rng = np.random.default_rng(0)
        # Each row has a middle of its own, or a norm could not be told from one that does not take the mean away.
        return rng.normal(size=lengths) * 2 + rng.normal(size=[lengths[0], *[1] * (rank - 1)])


def _digest(values: Array) -> Hashable:
    return values.shape, str(values.dtype), hashlib.blake2b(values.tobytes(), digest_size=16).digest()


def _computed(step: Step, given: Sequence[Array | None]) -> Array | None:
    x = given[0]
    if step.type in _REDUCTIONS:
        return _reduced(step, given)
    if step.type == "HardSigmoid" and x is not None:
        line = x * attribute(step.node, "alpha", 0.2) + attribute(step.node, "beta", 0.5)
        return np.asarray(np.clip(line, 0, 1))
    if step.type == "Clip" and x is not None:
        return np.clip(x, _bound(step, given, 1), _bound(step, given, 2))
    if step.type not in _OPS or any(value is None for value in given):
        return None
    try:
        return np.asarray(_OPS[step.type](*given))
    except (TypeError, ValueError):  # three operands, or shapes that do not fit
        return None


def _bound(step: Step, given: Sequence[Array | None], at: int) -> float:
    """Of a Clip, an attribute before opset 11."""
    found = given[at] if at < len(given) else None
    if found is not None:
        return float(found.reshape(-1)[0])
    return float(attribute(step.node, ("min", "max")[at - 1], (-np.inf, np.inf)[at - 1]))


def _reduced(step: Step, given: Sequence[Array | None]) -> Array | None:
    x, named = given[0], given[1] if len(given) > 1 else None
    axes = tuple(named.astype(int).tolist()) if named is not None else tuple(attribute(step.node, "axes", ()))
    if x is None or not axes or any(not -x.ndim <= axis < x.ndim for axis in axes):
        return None
    return np.asarray(_REDUCTIONS[step.type](x, axis=axes, keepdims=bool(attribute(step.node, "keepdims", 1))))


def _least_rank(step: Step) -> int:
    return max((axis + 1 for axis in attribute(step.node, "axes", ())), default=0) if step.type in REDUCTIONS else 0
