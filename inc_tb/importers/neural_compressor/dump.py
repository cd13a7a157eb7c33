"""The tensors that Neural Compressor's diagnosis has dumped, paired and put right.

`inspect_saved/{fp32,quan}/inspect_result.pkl`: {"weight": {op: {tensor: array}}, "activation": [{op: {tensor: array}}]}
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from inc_tb.capture import Array, Pair, Role
from inc_tb.importers.neural_compressor.layout import Layout, activation_axis, base_name, grid_of, weight_axis
from inc_tb.importers.neural_compressor.trials import number_of, op_configs, part_of, text_of
from inc_tb.importers.pickles import read_if_there
from inc_tb.records import Quantization, listed

FOLDER = "inspect_saved"
DOUBLED_WEIGHTS = (
    "TensorFlow: the weights that Neural Compressor kept of the optimized model are 2 times too large, and so are its "
    "statistics of them; they are halved here"
)
_UNLIKE = "the dumped tensors have shapes {} and {}"
_SIDES = ("fp32", "quan")
INT8 = "_qint8_const"
_LEVELS = 256
_MANY = 0.02
"""Share of values that a ReLU has cut off; rounding and clipping cut off fewer."""
_OFF_GRID = 0.02
"""Of a step: what float32 makes of whole numbers times a scale."""
_DOUBLED = 2.0
"""TensorFlow's signed values are scaled by their whole range over 127, which is twice the step."""
_UNSIGNED = 255 / 127
"""And most unsigned ones, too, where 255 steps would be right."""


@dataclass
class Dump:
    """What could be paired, and what is to be known about it."""

    pairs: list[Pair] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    weight_ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Of fp32 weights of which nothing else was kept."""
    why_not: dict[str, str] = field(default_factory=dict)
    """Op -> why its output cannot be compared."""
    joined: dict[str, str] = field(default_factory=dict)
    """Op -> the op that it is a part of in the quantized model."""
    rows: dict[str, str] = field(default_factory=dict)
    """Row of Neural Compressor's activation table -> the op whose output it is about."""
    samples: int = 0


def read_dump(folder: Path, notes: list[str]) -> dict[str, Mapping[str, Any]]:
    """Both sides; one that is not there is empty."""
    return {side: read_if_there(folder / FOLDER / side / "inspect_result.pkl", notes) for side in _SIDES}


def read_ranges(folder: Path, notes: list[str]) -> dict[str, tuple[float, float]]:
    """What the calibration saw of each op's output."""
    found = {}
    for op, seen in read_if_there(folder / FOLDER / "activation_min_max.pkl", notes).items():
        low, high = (number_of(seen.get(name)) if isinstance(seen, dict) else None for name in ("min", "max"))
        if low is not None and high is not None:
            found[str(op)] = low, high
    return found


def pair_up(
    sides: Mapping[str, Mapping[str, Any]],
    layout: Layout,
    framework: str,
    tune_cfg: Mapping[Any, Any],
    ranges: Mapping[str, tuple[float, float]],
) -> Dump:
    """Also gives the layout's ops the grids that can be read off their values."""
    dump = Dump()
    patterns = {name: text_of(part_of(config, "pattern").get("sequence")) for name, _, config in op_configs(tune_cfg)}
    weights = _weights(sides, layout, framework, patterns, dump)
    outputs = (
        _inputs_as_outputs(sides, layout, dump)
        if framework == "onnx"
        else _outputs(sides, layout, framework, ranges, patterns, dump)
    )
    dump.pairs = [*weights, *outputs]
    for op, sequence in patterns.items():
        dump.joined.update(dict.fromkeys(layout.followers(op, sequence.split(",")[1:]), op))
    samples: dict[str, int] = defaultdict(int)
    for pair in (pair for pair in dump.pairs if pair.role == "output"):
        samples[pair.op] += len(pair.reference) if pair.reference.ndim else 1
        node = layout.node(pair.op)
        if node is not None and node.grid is None:
            node.grid = _grid_in(pair.quantized, ranges.get(pair.op))
    dump.samples = max(samples.values(), default=0)
    return dump


def _batches(sides: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    both = (sides[side].get("activation") for side in _SIDES)
    lists = [found if isinstance(found, list) else [] for found in both]
    yield from ((a, b) for a, b in zip(*lists, strict=False) if isinstance(a, dict) and isinstance(b, dict))


def _first(tensors: Any) -> tuple[str, Array] | None:
    """An op's only tensor, or the first of them."""
    found = [(str(n), v) for n, v in tensors.items() if _is_tensor(v)] if isinstance(tensors, dict) else []
    return found[0] if found else None


def _is_tensor(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.size > 0


def _inputs_as_outputs(sides: Mapping[str, Mapping[str, Any]], layout: Layout, dump: Dump) -> list[Pair]:
    """ONNX: what an op reads was dumped under its name; it is somebody's output."""
    found: dict[tuple[str, str, int], Pair] = {}
    unlike: list[str] = []
    unknown: list[str] = []
    two_inputs: list[str] = []
    for batch, (fp32, quan) in enumerate(_batches(sides)):
        for op in (op for op in fp32 if op in quan):
            ours, theirs = _first(fp32[op]), _first(quan[op])
            if ours is None or theirs is None:
                continue
            node, end, start = layout.node(op), ours[0], base_name(theirs[0])
            if node is not None and len(layout.sources(node)) > 1:
                two_inputs.append(op)
            between, writer = layout.joined(start, end), layout.writers.get(start, "")
            if between is None:
                (unlike if op in two_inputs else unknown).append(op)
                dump.why_not[writer] = f"of what {op} reads Neural Compressor dumped another tensor in fp32"
                continue
            if ours[1].shape != theirs[1].shape:
                dump.why_not[writer] = _UNLIKE.format(ours[1].shape, theirs[1].shape)
                continue
            dump.joined.update(dict.fromkeys(between, writer))
            dump.rows[op] = writer
            reference, quantized = _floats(ours[1], theirs[1])
            role: Role = "output" if writer else "input"
            writing = layout.node(writer)
            axis = activation_axis(writing.type if writing is not None else "", "onnx", reference.ndim)
            pair = Pair(writer or op, end, role, reference, quantized, _channels(reference, axis))
            found.setdefault((pair.op, role, batch), pair)
    if two_inputs:
        told = f"; in {listed(unlike)} it kept different ones of the two models, which are left out" if unlike else ""
        dump.notes.append(
            f"of an op with two inputs Neural Compressor kept one, whichever came first ({listed(two_inputs)}){told}"
        )
    if unknown:
        dump.notes.append(f"{listed(unknown)}: nothing says which tensors of both models belong together; left out")
    return list(found.values())


def _outputs(
    sides: Mapping[str, Mapping[str, Any]],
    layout: Layout,
    framework: str,
    ranges: Mapping[str, tuple[float, float]],
    patterns: Mapping[str, str],
    dump: Dump,
) -> list[Pair]:
    pairs, scaled = [], []
    before_relu = _before_relu(sides) if framework == "torch" else []
    for fp32, quan in _batches(sides):
        for op in dict.fromkeys([*fp32, *quan]):
            ours, theirs = _first(fp32.get(op)), _first(quan.get(op))
            if ours is None or theirs is None:
                there, missing = ("quantized", "fp32") if ours is None else ("fp32", "quantized")
                dump.why_not[op] = f"Neural Compressor dumped it for the {there} model, but not for the {missing} one"
                continue
            reference, quantized = _floats(ours[1], theirs[1])
            if reference.shape != quantized.shape:
                dump.why_not[op] = _UNLIKE.format(reference.shape, quantized.shape)
                continue
            dump.rows[op] = op
            if op in before_relu:
                reference = np.maximum(reference, 0)
            factor = _factor(reference, quantized, ranges.get(op)) if framework == "tensorflow" else 1.0
            if factor != 1.0:
                scaled.append(op)
                quantized = quantized / np.float32(factor)
            node = layout.node(op)
            kind = patterns.get(op, "") or (node.type if node is not None else "")
            axis = activation_axis(kind, framework, reference.ndim)
            pairs.append(Pair(op, ours[0], "output", reference, quantized, _channels(reference, axis)))
    if before_relu:
        dump.notes.append(
            f"torch: Neural Compressor compared {listed(before_relu)} before the ReLU in fp32 with after it in int8; "
            "the ReLU is applied to both here"
        )
    if scaled:
        dump.notes.append(
            "TensorFlow: the activations that Neural Compressor dumped of the optimized model are 2 times too large, "
            f"or 255/127 times where they are unsigned ({listed(scaled)}); they are divided by that here"
        )
    return pairs


def _before_relu(sides: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Ops of which fp32 has many values that are clearly below zero, and int8 none."""
    below: dict[str, list[float]] = defaultdict(list)
    for fp32, quan in _batches(sides):
        for op in fp32:
            ours, theirs = _first(fp32[op]), _first(quan.get(op))
            if ours is not None and theirs is not None:
                largest = float(theirs[1].max())
                step = _step_of(np.ravel(theirs[1])) or largest / _LEVELS
                is_cut = theirs[1].min() >= 0 and largest > 0
                below[str(op)].append(float(np.mean(ours[1] < -step)) if is_cut else -math.inf)
    return [op for op, shares in below.items() if np.mean(shares) > _MANY]


def _factor(reference: Array, quantized: Array, seen: tuple[float, float] | None) -> float:
    """By which its values are too large: told by the step that the calibration gives, or else by the fp32 values.

    Not all are: what is not on a grid was a float in the quantized model, too.
    """
    step = _step_of(quantized)
    if step is None:
        return 1.0
    wrong = _UNSIGNED if quantized.min() >= 0 else _DOUBLED
    if seen is not None and max(-seen[0], seen[1]) > 0:
        ratio = step / (seen[1] / 255 if seen[0] >= 0 else max(-seen[0], seen[1]) / 127)
    else:
        ratio = float((reference * quantized).sum()) / max(float((reference * reference).sum()), 1e-30)
    return wrong if ratio > math.sqrt(wrong) else 1.0


def _weights(
    sides: Mapping[str, Mapping[str, Any]], layout: Layout, framework: str, patterns: Mapping[str, str], dump: Dump
) -> list[Pair]:
    """One tensor an op, the largest: biases are dumped beside weights."""
    fp32, quan = (found if isinstance(found := sides[side].get("weight"), dict) else {} for side in _SIDES)
    pairs, doubled, depthwise, only_ranges = [], [], [], []
    for op in fp32:
        ours = {str(n): v for n, v in fp32[op].items()} if isinstance(fp32[op], dict) else {}
        given = quan[op] if isinstance(quan.get(op), dict) else {}
        theirs = {_plain_name(n): v for n, v in given.items()}
        ranges = [_range(v) for name, v in ours.items() if name in theirs and _range(v) is not None]
        if ranges and ranges[0] is not None:
            only_ranges.append(op)
            dump.weight_ranges[str(op)] = ranges[0]
        both = [
            name
            for name, v in ours.items()
            if _is_tensor(v) and _is_tensor(theirs.get(name)) and v.shape == theirs[name].shape
        ]
        if not both:
            continue
        name = max(both, key=lambda n: ours[n].size)
        reference, quantized = _floats(ours[name], theirs[name])
        node = layout.node(op)
        kind = patterns.get(op, "").partition(",")[0] or (node.type if node else "")
        if framework == "tensorflow":
            kind = kind if "depthwise" not in str(op).lower() else "DepthwiseConv2dNative"
        if framework == "tensorflow" and f"{name}{INT8}" in given:  # not of an op that stayed in fp32
            quantized = quantized / np.float32(_DOUBLED)
            doubled.append(op)
            if "Depthwise" in kind and reference.ndim == 4 and reference.shape[2] > 1:
                depthwise.append(op)
                largest = np.abs(reference).max(axis=(0, 1, 3), keepdims=True)
                quantized = quantized * (largest / largest[:, :, :1]) if largest[0, 0, 0, 0] > 0 else quantized
        axis = _channels(reference, weight_axis(kind, framework))
        pairs.append(Pair(str(op), name, "weight", reference, quantized, axis))
    dump.notes += _notes_on_weights(doubled, depthwise, only_ranges)
    return pairs


def _notes_on_weights(doubled: list[str], depthwise: list[str], only_ranges: list[str]) -> list[str]:
    notes = []
    if doubled:
        notes.append(DOUBLED_WEIGHTS)
    if depthwise:
        notes.append(
            f"TensorFlow: all channels of the depthwise weights ({listed(depthwise)}) were scaled as channel 0; here "
            "each has the scale of its own largest value"
        )
    if only_ranges:
        notes.append(
            "Neural Compressor 2.5 and later keep only the smallest and largest value of ONNX weights, and of int8 "
            "ones without their scale, so their error is not known"
        )
    return notes


def _range(value: Any) -> tuple[float, float] | None:
    """Of [smallest, largest]."""
    numbers = [number_of(end) for end in value] if isinstance(value, list) and len(value) == 2 else []
    return (numbers[0], numbers[1]) if numbers and None not in numbers else None  # type: ignore[return-value]


def _plain_name(tensor: Any) -> str:
    return base_name(str(tensor).removesuffix(INT8))


def _floats(reference: Array, quantized: Array) -> tuple[Array, Array]:
    return np.ascontiguousarray(reference, np.float32), np.ascontiguousarray(quantized, np.float32)


def _channels(array: Array, axis: int) -> int | None:
    return axis if array.ndim > 1 else None


def _grid_in(values: Array, seen: tuple[float, float] | None) -> Quantization | None:
    """As far as the values tell: where there are negative ones, the calibration has to say where zero is."""
    step = _step_of(values)
    if step is None:
        return None
    if values.min() >= 0:
        return grid_of("uint8", step, 0)
    return grid_of("uint8", step, round(-seen[0] / step)) if seen is not None and seen[0] < 0 else None


def _step_of(values: Array) -> float | None:
    """The distance of neighbours where all values are whole multiples of it, with at most 256 in all."""
    levels = np.unique(values[np.isfinite(values)])
    if not 8 <= len(levels) <= _LEVELS:
        return None
    step = float(np.diff(levels.astype(np.float64)).min())
    counts = levels / step
    if np.ptp(counts) > _LEVELS:
        return None
    whole = np.abs(counts) >= 1
    step *= float(np.median(counts[whole] / np.round(counts[whole])))  # the smallest difference is rough
    off = np.abs(levels / step - np.round(levels / step)).max()
    return step if off < _OFF_GRID else None
