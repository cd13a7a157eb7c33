"""From what was dumped to pairs of arrays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from inc_tb.sources.neural_compressor.dump import Dump, Sides
from inc_tb.sources.neural_compressor.grids import grid_in
from inc_tb.sources.neural_compressor.layout import Layout
from inc_tb.sources.neural_compressor.outputs import pair_inputs_as_outputs, pair_outputs
from inc_tb.sources.neural_compressor.trials import op_configs, part_of, text_of
from inc_tb.sources.neural_compressor.weights import pair_weights


def pair_up(
    sides: Sides,
    layout: Layout,
    framework: str,
    tune_cfg: Mapping[Any, Any],
    ranges: Mapping[str, tuple[float, float]],
) -> Dump:
    """Also gives the layout's ops the grids that can be read off their values."""
    dump = Dump()
    patterns = {name: text_of(part_of(config, "pattern").get("sequence")) for name, _, config in op_configs(tune_cfg)}
    weights = pair_weights(sides, layout, framework, patterns, dump)
    outputs = (
        pair_inputs_as_outputs(sides, layout, dump)
        if framework == "onnx"
        else pair_outputs(sides, layout, framework, ranges, patterns, dump)
    )
    dump.pairs = [*weights, *outputs]
    for op, sequence in patterns.items():
        dump.joined.update(dict.fromkeys(layout.followers(op, sequence.split(",")[1:]), op))
    samples: dict[str, int] = defaultdict(int)
    for pair in (pair for pair in dump.pairs if pair.role == "output"):
        samples[pair.op] += len(pair.reference) if pair.reference.ndim else 1
        node = layout.node(pair.op)
        if node is not None and node.grid is None:
            node.grid = grid_in(pair.quantized, ranges.get(pair.op))
    dump.samples = max(samples.values(), default=0)
    return dump
