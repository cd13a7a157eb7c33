"""Which dumped activations of both models are of the same tensor, and what has to be put right about them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from inc_tb.frameworks.ops import Array, Pair, Role
from inc_tb.records import listed
from inc_tb.sources.neural_compressor.dump import Dump, Sides, batches, channels, first_tensor, floats
from inc_tb.sources.neural_compressor.grids import LEVELS, step_of, too_large_by
from inc_tb.sources.neural_compressor.layout import Layout, activation_axis, base_name

_UNLIKE = "the dumped tensors have shapes {} and {}"
_MANY = 0.02
"""Share of values that a ReLU has cut off; rounding and clipping cut off fewer."""


def pair_inputs_as_outputs(sides: Sides, layout: Layout, dump: Dump) -> list[Pair]:
    """ONNX: what an op reads was dumped under its name; it is somebody's output."""
    found: dict[tuple[str, str, int], Pair] = {}
    unlike: list[str] = []
    unknown: list[str] = []
    two_inputs: list[str] = []
    for batch, (fp32, quan) in enumerate(batches(sides)):
        for op in (op for op in fp32 if op in quan):
            ours, theirs = first_tensor(fp32[op]), first_tensor(quan[op])
            if ours is None or theirs is None:
                continue
            node, end, start = layout.node(op), ours[0], base_name(theirs[0])
            if node is not None and len(layout.sources(node)) > 1:
                two_inputs.append(op)
            between, writer = layout.joined(start, end), layout.writers.get(start, "")
            if between is None:
                (unlike if op in two_inputs else unknown).append(op)
                dump.why_not[writer] = f"of what {op} reads Neural Compressor dumped another tensor in fp32"
            elif ours[1].shape != theirs[1].shape:
                dump.why_not[writer] = _UNLIKE.format(ours[1].shape, theirs[1].shape)
            else:
                dump.joined.update(dict.fromkeys(between, writer))
                dump.rows[op] = writer
                pair = _pair_of(op, writer, end, floats(ours[1], theirs[1]), layout)
                found.setdefault((pair.op, pair.role, batch), pair)
    dump.notes += _notes_on_inputs(two_inputs, unlike, unknown)
    return list(found.values())


def _pair_of(op: str, writer: str, tensor: str, arrays: tuple[Array, Array], layout: Layout) -> Pair:
    """Of what `writer` makes, or of an input of the model that `op` reads."""
    reference, quantized = arrays
    role: Role = "output" if writer else "input"
    writing = layout.node(writer)
    axis = activation_axis(writing.type if writing is not None else "", "onnx", reference.ndim)
    return Pair(writer or op, tensor, role, reference, quantized, channels(reference, axis))


def _notes_on_inputs(two_inputs: list[str], unlike: list[str], unknown: list[str]) -> list[str]:
    notes = []
    if two_inputs:
        told = f"; in {listed(unlike)} it kept different ones of the two models, which are left out" if unlike else ""
        notes.append(
            f"of an op with two inputs Neural Compressor kept one, whichever came first ({listed(two_inputs)}){told}"
        )
    if unknown:
        notes.append(f"{listed(unknown)}: nothing says which tensors of both models belong together; left out")
    return notes


def pair_outputs(
    sides: Sides,
    layout: Layout,
    framework: str,
    ranges: Mapping[str, tuple[float, float]],
    patterns: Mapping[str, str],
    dump: Dump,
) -> list[Pair]:
    """PyTorch and TensorFlow: what an op writes was dumped under its name."""
    pairs, scaled = [], []
    before_relu = _before_relu(sides) if framework == "torch" else []
    for fp32, quan in batches(sides):
        for op in dict.fromkeys([*fp32, *quan]):
            ours, theirs = first_tensor(fp32.get(op)), first_tensor(quan.get(op))
            if ours is None or theirs is None:
                there, missing = ("quantized", "fp32") if ours is None else ("fp32", "quantized")
                dump.why_not[op] = f"Neural Compressor dumped it for the {there} model, but not for the {missing} one"
                continue
            reference, quantized = floats(ours[1], theirs[1])
            if reference.shape != quantized.shape:
                dump.why_not[op] = _UNLIKE.format(reference.shape, quantized.shape)
                continue
            dump.rows[op] = op
            if op in before_relu:
                reference = np.maximum(reference, 0)
            factor = too_large_by(reference, quantized, ranges.get(op)) if framework == "tensorflow" else 1.0
            if factor != 1.0:
                scaled.append(op)
                quantized = quantized / np.float32(factor)
            node = layout.node(op)
            kind = patterns.get(op, "") or (node.type if node is not None else "")
            axis = activation_axis(kind, framework, reference.ndim)
            pairs.append(Pair(op, ours[0], "output", reference, quantized, channels(reference, axis)))
    dump.notes += _notes_on_outputs(before_relu, scaled)
    return pairs


def _notes_on_outputs(before_relu: list[str], scaled: list[str]) -> list[str]:
    notes = []
    if before_relu:
        notes.append(
            f"torch: Neural Compressor compared {listed(before_relu)} before the ReLU in fp32 with after it in int8; "
            "the ReLU is applied to both here"
        )
    if scaled:
        notes.append(
            "TensorFlow: the activations that Neural Compressor dumped of the optimized model are 2 times too large, "
            f"or 255/127 times where they are unsigned ({listed(scaled)}); they are divided by that here"
        )
    return notes


def _before_relu(sides: Sides) -> list[str]:
    """Ops of which fp32 has many values that are clearly below zero, and int8 none."""
    below: dict[str, list[float]] = defaultdict(list)
    for fp32, quan in batches(sides):
        for op in fp32:
            ours, theirs = first_tensor(fp32[op]), first_tensor(quan.get(op))
            if ours is not None and theirs is not None:
                largest = float(theirs[1].max())
                step = step_of(np.ravel(theirs[1])) or largest / LEVELS
                is_cut = theirs[1].min() >= 0 and largest > 0
                below[str(op)].append(float(np.mean(ours[1] < -step)) if is_cut else -math.inf)
    return [op for op, shares in below.items() if np.mean(shares) > _MANY]
