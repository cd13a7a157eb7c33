"""What rounded weights add to the mean of each channel, taken off the bias: the rest of their error is 0 on average."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from inc_tb.errors import ModelError
from inc_tb.frameworks.feeds import count_rows
from inc_tb.frameworks.onnx.constants import Constants
from inc_tb.frameworks.onnx.graph import Graph
from inc_tb.frameworks.onnx.model import Model, attribute
from inc_tb.frameworks.onnx.sessions import Session
from inc_tb.frameworks.onnx.steps import Step, nth_input
from inc_tb.frameworks.ops import Array, Batch
from inc_tb.frameworks.scaling import digest_of
from inc_tb.records import Rewrite, plural

_AT = 2
"""Where an op reads its bias."""
_KINDS = {"Conv", "ConvTranspose", "Gemm"}


def find_shifts(
    reference: Graph, rounded: Mapping[int, Mapping[int, Array]], batches: Sequence[Batch]
) -> list[Rewrite]:
    """One for all biases; `rounded` are the constants of steps as the quantized model has them."""
    model = reference.model
    steps = [step for step in reference.steps if step.index in rounded and _is_shifted(model, step.node)]
    if not steps:
        return []
    values = [-mean for mean in _means(model, steps, rounded, batches)]
    sizes = [float(np.abs(value).max(initial=0.0)) for value in values]
    worst = int(np.argmax(sizes))
    because = (
        f"rounded weights change the mean of a channel of {steps[worst].name} by {sizes[worst]:.3g}; the biases of "
        f"{plural(len(steps), 'op')} make up for it"
    )
    digest = digest_of(model.constant(step.node.input[_AT]) for step in steps)
    found = np.concatenate(values)
    if not np.isfinite(found).all():
        return []
    return [Rewrite("bias", [s.node.name for s in steps], because, values=found.tolist(), digest=digest)]


def shift(constants: Constants, model: Model, rewrite: Rewrite, name: str) -> None:
    """Adds to the biases, if they are those that this was found for."""
    nodes = {node.name: node for node in model.nodes}
    known = [op for op in rewrite.ops if op in nodes and _is_shifted(model, nodes[op])]
    own = [constants[op, _AT] for op in known]
    fits = known == rewrite.ops and sum(value.size for value in own) == len(rewrite.values) > 0
    if not fits or (rewrite.digest and rewrite.digest != digest_of(own)):
        raise ModelError(
            f"{name}: has no {plural(len(rewrite.ops), 'op')} with the same biases to change so (bias); expected the "
            "model that the change was found for. Give that one."
        )
    ends = np.cumsum([value.size for value in own])[:-1]
    for op, value, more in zip(known, own, np.split(np.array(rewrite.values), ends), strict=True):
        constants[op, _AT] = (value + more.reshape(value.shape)).astype(value.dtype)


def _is_shifted(model: Model, node: onnx.NodeProto) -> bool:
    """Whether it has one number for each channel that is added."""
    bias = nth_input(node, _AT)
    is_plain = attribute(node, "alpha", 1.0) == attribute(node, "beta", 1.0) == 1.0
    return node.op_type in _KINDS and bias in model.constants and is_plain and model.size(bias) > 1


def _means(
    model: Model, steps: Sequence[Step], rounded: Mapping[int, Mapping[int, Array]], batches: Sequence[Batch]
) -> Iterator[Array]:
    """What each op makes of its own inputs with nothing but the error of its weights, by channel."""
    opset = next((o.version for o in model.proto.opset_import if o.domain in ("", "ai.onnx")), 1)
    nodes, constants, names = [], {}, []
    for step in steps:
        at = list(step.node.input).index(step.weight)
        error = np.asarray(rounded[step.index][at] - model.constant(step.weight))
        weights, made, mean = (f"inc_tb_{what}_{step.index}" for what in ("error", "made", "mean"))
        constants[weights] = error
        alone = onnx.NodeProto()
        alone.CopyFrom(step.node)
        alone.name = made
        alone.input[:] = [weights if i == at else name for i, name in enumerate(step.node.input[:_AT])]
        alone.output[:] = [made]
        axes = [axis for axis in range(error.ndim) if axis != 1]
        settings: dict[str, Any] = {} if opset >= 18 else {"axes": axes}
        more = [f"{mean}_axes"] if opset >= 18 else []
        constants |= {name: np.array(axes, np.int64) for name in more}
        nodes += [alone, helper.make_node("ReduceMean", [made, *more], [mean], keepdims=0, **settings)]
        names.append(mean)
    proto = model.with_outputs(names, nodes)
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    session = Session(model, proto, arena=False)
    rows = [count_rows(batch) for batch in batches]
    runs = [session.run(batch) for batch in batches]
    for at in range(len(steps)):
        yield np.average([np.asarray(run[at], np.float64) for run in runs], axis=0, weights=rows)
