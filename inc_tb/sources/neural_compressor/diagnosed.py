"""From a config, and what was dumped with it, to a diagnosis with our columns and suggestions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from inc_tb.advise.configs import is_setting
from inc_tb.advise.judge import judge
from inc_tb.frameworks.describe import as_part_of
from inc_tb.frameworks.ops import Op
from inc_tb.measure.collect import by_op
from inc_tb.measure.details import details_of
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.measure.op_table import op_table
from inc_tb.measure.shards import Key
from inc_tb.measure.stats import PairStats
from inc_tb.records import Cell, GraphNode, OpTable
from inc_tb.sources.neural_compressor.added import estimate_added
from inc_tb.sources.neural_compressor.dump import Dump, read_dump, read_ranges
from inc_tb.sources.neural_compressor.layout import Layout, as_ops, config_columns, layout_of
from inc_tb.sources.neural_compressor.pairing import pair_up
from inc_tb.sources.neural_compressor.tables import Row, read_tables
from inc_tb.sources.neural_compressor.trials import fallback_of
from inc_tb.sources.neural_compressor.weights import DOUBLED_WEIGHTS

_MSE = (
    "MSE (INC) is Neural Compressor's own measure: each tensor scaled to 0…1 by its own range first, and in its "
    "activation table of the first sample only. It hides outliers, so do not rank by it"
)
_INPUTS = (
    "ONNX: the tensor and the MSE in a row of Neural Compressor's activation table are those of the op's input, its "
    "range is that of the output; here each is with the op that writes it"
)
_ADDED = (
    "'added here' is an estimate from the dumped tensors: what rounding the op's output, its weights and its input "
    "does to the correct values; a diagnosis of the two models measures it"
)
_CHAIN = (
    "the workspace does not say which op reads which, so they are taken as a chain in the order of the config; with "
    "--model and the fp32 model the edges are the real ones"
)
_NO_TENSORS = "Neural Compressor kept no tensors of this trial"
_NOT_DUMPED = "Neural Compressor has not dumped it"
_NO_STEP = "Neural Compressor did not keep the step of its weights"


class Files(NamedTuple):
    """What a diagnosis has left in a workspace."""

    sides: Mapping[str, Mapping[str, Any]]
    ranges: Mapping[str, tuple[float, float]]
    activations: Mapping[str, Row]
    weights: Mapping[str, Row]

    @property
    def is_empty(self) -> bool:
        has_tensors = any(side.get("weight") or any(side.get("activation") or ()) for side in self.sides.values())
        return not (has_tensors or self.activations or self.weights)

    @property
    def ops(self) -> list[str]:
        """Every op that is named anywhere."""
        dumped = [
            batch for side in self.sides.values() for batch in side.get("activation") or () if isinstance(batch, dict)
        ]
        dumped += [found for side in self.sides.values() if isinstance(found := side.get("weight"), dict)]
        tables = (self.ranges, self.activations, self.weights)
        return list(dict.fromkeys(str(op) for names in (*dumped, *tables) for op in names))


NOTHING = Files({"fp32": {}, "quan": {}}, {}, {}, {})


def read_files(folder: Path, notes: list[str]) -> Files:
    """`notes` get what cannot be read."""
    return Files(read_dump(folder, notes), read_ranges(folder, notes), *read_tables(folder))


def as_diagnosis(
    tune_cfg: Mapping[Any, Any],
    q_config: Mapping[Any, Any],
    files: Files,
    framework: str,
    graph: Sequence[GraphNode] = (),
    names: tuple[str, str] = ("", ""),
) -> Diagnosis | None:
    """None where not even the ops are known."""
    known = tune_cfg if tune_cfg.get("op") or graph else {"op": {(op, ""): {} for op in files.ops}}
    layout = layout_of(known, q_config, graph, framework, files.ranges)
    dump = pair_up(files.sides, layout, framework, tune_cfg, files.ranges)
    ops = as_ops(layout, tune_cfg, framework)
    if not ops:
        return None
    collected = _collect(ops, dump, framework)
    sizes = {pair.op: pair.reference.size for pair in dump.pairs if pair.role == "weight"}
    ops = [replace(_told(op, collected, dump, files.is_empty), params=sizes.get(op.name, 0)) for op in ops]
    measurements = by_op(ops, collected)
    suggestions, verdicts = judge(measurements, framework)
    table = _with_their_numbers(op_table(measurements, verdicts), layout, dump, files, framework, fallback_of(tune_cfg))
    table = table.replaced(config_columns(ops, tune_cfg)) if tune_cfg.get("op") else table
    for suggestion in suggestions:  # of what keeps ops in fp32 the tool that they have comes first
        if not is_setting(framework, table, suggestion):
            suggestion.recipes = dict(sorted(suggestion.recipes.items(), key=lambda item: item[0] != "inc"))
    return Diagnosis(
        table,
        suggestions,
        *details_of(ops, collected),
        *names,
        framework,
        dump.samples,
        _notes(dump, files, collected, framework, is_guess=layout.is_guess and len(ops) > 1),
    )


def _collect(ops: Sequence[Op], dump: Dump, framework: str) -> dict[Key, PairStats]:
    by_name = {op.name: op for op in ops}
    found: dict[Key, PairStats] = {}
    for pair in (pair for pair in dump.pairs if pair.op in by_name):
        op = by_name[pair.op]
        grid = op.activation if pair.role == "output" else None
        key: Key = pair.op, pair.role
        if key not in found:
            found[key] = PairStats(pair.channel_axis, grid.limits if grid is not None else None)
        found[key].update(pair.reference, pair.quantized)
    return found | estimate_added(ops, dump, found, framework)


def _told(op: Op, collected: Mapping[Key, PairStats], dump: Dump, has_nothing: bool) -> Op:
    """With what is known once all tensors have been seen."""
    head = dump.joined.get(op.name)
    if (op.name, "output") in collected:
        return replace(op, compared_at=op.name)
    if head is not None and (head, "output") in collected:
        return as_part_of(replace(op, activation=None), head, head)
    note = _NO_TENSORS if has_nothing else dump.why_not.get(op.name, _NOT_DUMPED)
    return replace(op, compared_at=op.name, note=note)  # it still is one end of an edge


def _with_their_numbers(
    table: OpTable, layout: Layout, dump: Dump, files: Files, framework: str, kept: Collection[str]
) -> OpTable:
    """Their MSE with the tensor that it is about, and whatever only their files know."""
    cells: dict[str, dict[str, float]] = defaultdict(dict)
    for op, row in files.activations.items():
        cells["a_inc_mse"][_about(op, layout, dump, framework)] = row.get("a_inc_mse", np.nan)
        for column in ("a_min", "a_max"):
            cells[column][op] = row.get(column, np.nan)
    for op, (low, high) in files.ranges.items():
        cells["a_min"][op], cells["a_max"][op] = low, high
    for op, row in files.weights.items():
        for column, value in (_halved(op, row) if framework == "tensorflow" and op not in kept else row).items():
            cells[column][op] = value
    for op, (low, high) in dump.weight_ranges.items():
        cells["w_min"][op], cells["w_max"][op] = low, high
    changed: dict[str, list[Cell]] = {}
    for column, found in cells.items():
        is_theirs = column.endswith("_inc_mse")
        changed[column] = [
            found[name]
            if not np.isnan(found.get(name, np.nan)) and (is_theirs or np.isnan(number))
            else _kept(table, column, row)
            for row, (name, number) in enumerate(zip(table["name"].tolist(), table[column], strict=True))
        ]
    changed["w_rmse_lsb"] = [
        _NO_STEP if dtype else _kept(table, "w_rmse_lsb", row)
        for row, dtype in enumerate(table["weight_dtype"].tolist())
    ]
    return _with_ranges(table.replaced(changed))


def _with_ranges(table: OpTable) -> OpTable:
    """Of what only their files tell the smallest and the largest value of."""
    ranges: dict[str, list[Cell]] = {}
    for column, low, high in (("w_range", "w_min", "w_max"), ("a_range", "a_min", "a_max")):
        ranges[column] = [
            table.why_null(low, row) or table.why_null(high, row) or float(largest - smallest)
            for row, (smallest, largest) in enumerate(zip(table[low], table[high], strict=True))
        ]
    return table.replaced(ranges)


def _about(op: str, layout: Layout, dump: Dump, framework: str) -> str:
    """The op whose output a row of their activation table speaks of; "" where it is none, or cannot be told."""
    if op in dump.rows or framework != "onnx":
        return dump.rows.get(op, op)
    node = layout.node(op)
    sources = layout.sources(node) if node is not None and not layout.is_guess else []
    return sources[0] if len(sources) == 1 else ""


def _halved(op: str, row: Row) -> Row:
    """TensorFlow's optimized weights, which are twice too large; those of depthwise ones cannot be put right."""
    sound = {name: value for name, value in row.items() if not name.startswith("w_q_")}
    if "depthwise" in op.lower():
        return sound
    return sound | {name: value / (4 if name == "w_q_var" else 2) for name, value in row.items() if name not in sound}


def _kept(table: OpTable, column: str, row: int) -> Cell:
    return table.why_null(column, row) or float(table[column][row])


def _notes(
    dump: Dump, files: Files, collected: Mapping[Key, PairStats], framework: str, *, is_guess: bool
) -> list[str]:
    notes = [_MSE] if files.activations or files.weights else []
    notes += [_INPUTS] if framework == "onnx" and (files.activations or dump.rows) else []
    notes += dump.notes
    if framework == "tensorflow" and files.weights and not any(role == "weight" for _, role in collected):
        notes.append(DOUBLED_WEIGHTS)
    notes += [_ADDED] if any(role == "isolated" for _, role in collected) else []
    return [*notes, _CHAIN] if is_guess and collected else notes
