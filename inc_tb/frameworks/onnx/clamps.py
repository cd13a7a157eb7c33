"""Constants that only have to be larger than anything else: of an attention mask, say.

-3.4e38 is what a softmax takes for nothing at all, and so is a number that is a little below all others. The first
leaves all others no room in a range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx

from inc_tb.frameworks.onnx.labels import FLOATS
from inc_tb.frameworks.onnx.model import Model, attribute
from inc_tb.frameworks.onnx.sessions import Session
from inc_tb.frameworks.ops import Array, Batch
from inc_tb.frameworks.scaling import digest_of
from inc_tb.records import Rewrite, listed

_FAR = 1e3
"""Numbers beyond are no scores."""
_BEHIND = 24.0
"""What a score must lie behind the others, so that it gets less than a float can tell of a sum of 1: e^-24 = 4e-11."""
_PASSES = {
    "Add", "Sub", "Mul", "Where", "Expand", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Identity",
    "Cast", "Concat", "Max", "Min",
}  # fmt: skip
_MOST_READ = 1 << 26
"""Numbers of scores that are looked at."""


def find_clamps(model: Model, batches: Sequence[Batch]) -> list[Rewrite]:
    """The largest of a mask that is behind all scores, as a power of two."""
    places = list(_far_places(model))
    if not places:
        return []
    behind = sorted({softmax.input[0] for _, _, ends in places for softmax in ends})
    session = Session(model, model.with_outputs(behind), arena=False)
    widths = dict.fromkeys(behind, 0.0)
    for name, scores in zip(behind, session.run(batches[0]), strict=True):
        widths[name] = _width(scores) if scores.size <= _MOST_READ else np.inf
    return [
        _told(model, constant, nodes, limit)
        for constant, nodes, ends in places
        if np.isfinite(limit := _limit([widths[end.input[0]] for end in ends]))
    ]


def clamped(model: Model, rewrite: Rewrite) -> list[tuple[str, int]]:
    """The inputs of ops that are changed."""
    nodes = [node for node in model.nodes if node.name in set(rewrite.ops)]
    return [
        (node.name, at) for node in nodes
        for at, name in enumerate(node.input) if name == rewrite.tensor and name in model.constants
    ]  # fmt: skip


def clamped_at(values: Array, limit: float) -> Array:
    """What is beyond numbers of scores, at the limit."""
    found = np.where(np.abs(values) > _FAR, np.sign(values) * limit, values)
    return np.asarray(found, values.dtype)


def _told(model: Model, constant: str, nodes: Sequence[onnx.NodeProto], limit: float) -> Rewrite:
    values = model.constant(constant)
    far = float(values.reshape(-1)[np.argmax(np.abs(values))])
    ops = [node.name for node in nodes]
    because = (
        f"{listed(ops)} reads a constant of {far:.3g}, which leaves no room for the scores in one range; a softmax "
        f"cannot tell it from {np.sign(far) * limit:g}, at which it is clamped"
    )
    return Rewrite("clamp", ops, because, constant, [limit], digest_of(values for _ in ops))


def _limit(widths: Sequence[float]) -> float:
    return float(2 ** np.ceil(np.log2(max(widths) + _BEHIND)))


def _width(scores: Array) -> float:
    """From the lowest to the highest in any row, but for what a mask hides."""
    values = np.asarray(scores, np.float64)
    is_far = np.abs(values) > _FAR
    high, low = (end.max(axis=-1) for end in (np.where(is_far, -np.inf, values), np.where(is_far, -np.inf, -values)))
    seen = np.isfinite(high)
    return float((high + low)[seen].max()) if seen.any() else np.inf


def _far_places(model: Model) -> Iterator[tuple[str, list[onnx.NodeProto], list[onnx.NodeProto]]]:
    """Constants with such numbers, the ops that read them, and the softmaxes behind these, if there is nothing else."""
    for name in sorted(model.constants):
        nodes = [n for n in model.consumers[name] if n.op_type in _PASSES and set(n.output) - model.constants]
        if not nodes or len(nodes) < len(model.consumers[name]) or not _is_far(model, name):
            continue
        ends = _ends(model, nodes)
        if ends:
            yield name, nodes, ends


def _is_far(model: Model, name: str) -> bool:
    if model.elem_type(name) not in ("float", "float16", "double"):
        return False
    values = model.constant(name)
    return bool(values.size and np.abs(values).max() > _FAR and not np.isnan(values).any())


def _ends(model: Model, nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Nothing where anything else sees the numbers."""
    waiting, seen, found = list(nodes), set(), []
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node.op_type == "Softmax":
            found.append(node)
        elif not _passes(node) or set(node.output) & set(model.outputs):
            return []
        else:
            waiting += [reader for out in node.output for reader in model.consumers[out]]
    return found


def _passes(node: onnx.NodeProto) -> bool:
    return node.op_type in _PASSES and (node.op_type != "Cast" or attribute(node, "to", 0) in FLOATS)
