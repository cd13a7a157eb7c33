"""The standard dashboards: what somebody without the Quantization tab sees of a run."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from tensorboard.compat.proto.attr_value_pb2 import AttrValue
from tensorboard.compat.proto.config_pb2 import RunMetadata
from tensorboard.compat.proto.event_pb2 import Event, TaggedRunMetadata
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.step_stats_pb2 import DeviceStepStats, StepStats
from tensorboard.compat.proto.summary_pb2 import Summary

from inc_tb.frameworks.arrays import as_array
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.measure.histogram import SIDE, edges
from inc_tb.profiling.profile import Profile, speedup
from inc_tb.records import GraphNode, HistogramRow, Trial, plural, storable_text
from inc_tb.store.markdown import code, plain
from inc_tb.store.summaries import histogram, scalar, text

BUCKETS = 96
WORST_OPS = 5
"""Ops that get scalars of their own unless more are asked for: so many can be read at a look."""
WORST_HISTOGRAMS = 2
"""The same for histograms, which are a card in each run."""
LONGEST_SETTING = 200


class _Curve(NamedTuple):
    """A column as scalars, a tag for each of the ops that are worst by another one."""

    tag: str
    column: str
    worst_by: str
    is_of_a_training: bool = False
    """Whether a single step of it says nothing that the tab does not say better."""


_CURVES = (
    _Curve("added_sqnr_db", "added_sqnr_db", "added_sqnr_db"),
    _Curve("total_sqnr_db", "total_sqnr_db", "added_sqnr_db"),
    _Curve("activation_mse", "a_mse", "added_sqnr_db", is_of_a_training=True),
    _Curve("weight_mse", "w_mse", "w_sqnr_db", is_of_a_training=True),
)
_ROLES = {"output": "activations", "weight": "weights"}
_VERDICTS = (
    ("bad", "named by a suggestion"), ("watch", "worse than usual"), ("ok", "with no more error than is usual"),
)  # fmt: skip
_COUNTED = "How many ops are"
_OUTPUT = "Signal to quantization noise of the last op that was compared, in the quantized model."
_VALUES = (
    "Values of {what} of `{op}`: of the fp32 model in the run fp32, of quantized ones, dequantized, in their own runs. "
    "The Quantization tab lays them over each other, for every op."
)
Side = Literal["reference", "quantized"]


def scalars_of(
    diagnosis: Diagnosis, ops: int = WORST_OPS, followed: Collection[str] = (), *, is_single: bool = False
) -> list[Summary.Value]:
    """Of the worst ops. Curves that were begun go on when others have become worse: those that are `followed`.

    Of a `single` step those are left out that are curves of a training.
    """
    table = diagnosis.ops
    found = curves_of(diagnosis, ops, followed, of_trainings=False)
    found += [] if is_single else curves_of(diagnosis, ops, followed, of_trainings=True)
    verdicts = table["verdict"].tolist()
    found += [
        scalar(f"ops/{verdict}", verdicts.count(verdict), f"{_COUNTED} {meaning}.") for verdict, meaning in _VERDICTS
    ]
    totals = table["total_sqnr_db"][~np.isnan(table["total_sqnr_db"])]
    if totals.size:
        found.append(scalar("output/sqnr_db", totals[-1], _OUTPUT))
    return found


def curves_of(diagnosis: Diagnosis, ops: int, followed: Collection[str], *, of_trainings: bool) -> list[Summary.Value]:
    """A value for each of the worst ops, of the curves that only a training has, or of the others."""
    table = diagnosis.ops
    shown = shown_names(table["name"].tolist())
    return [
        scalar(f"{curve.tag}/{shown[table['name'][row]]}", table[curve.column][row], table.column(curve.column).help)
        for curve in _CURVES
        if curve.column in table and curve.is_of_a_training == of_trainings
        for row in _rows_of(curve, diagnosis, ops, shown, followed)
    ]


def _rows_of(
    curve: _Curve, diagnosis: Diagnosis, ops: int, shown: Mapping[str, str], followed: Collection[str]
) -> list[int]:
    """The worst, and no more than as many that have a curve already."""
    table = diagnosis.ops
    by = curve.worst_by if curve.worst_by in table else curve.column
    rows = [row for row in diagnosis.worst(sort=by) if not np.isnan(table[curve.column][row])]
    begun = [row for row in rows[ops:] if f"{curve.tag}/{shown[table['name'][row]]}" in followed]
    return rows[:ops] + begun[:ops]


def histograms_of(
    diagnosis: Diagnosis, side: Side, ops: int = WORST_HISTOGRAMS, tag: str = "{}"
) -> list[Summary.Value]:
    """Both sides have the same buckets, so that they can be laid over each other."""
    shown = shown_names(diagnosis.ops["name"].tolist())
    wanted = {diagnosis.ops["name"][row] for row in diagnosis.worst(ops)}
    return [
        histogram(
            f"{tag.format(_ROLES[row.role])}/{shown[row.op]}",
            buckets(row, side),
            _VALUES.format(what=f"the {row.role}", op=storable_text(row.op)),
        )
        for row in diagnosis.histograms
        if row.op in wanted and row.role in _ROLES and (row.reference or row.quantized)
    ]


def array_histogram(tag: str, values: Any, count: int = BUCKETS) -> Summary.Value:
    """Of anything that is an array, quantized tensors too; values that are not finite are left out."""
    numbers = as_array(values).astype(np.float64).ravel()
    counts, borders = np.histogram(numbers[np.isfinite(numbers)], count)
    return histogram(tag, np.stack([borders[:-1], borders[1:], counts], axis=1))


def buckets(row: HistogramRow, side: Side, count: int = BUCKETS) -> npt.NDArray[np.float64]:
    """Left edge, right edge and count of equal buckets over the range of both sides."""
    bins = edges(row.top)
    middles = (bins[:-1] + bins[1:]) / 2
    middles[SIDE] = 0.0
    used = np.array(row.reference[::2] + row.quantized[::2])
    low, high = bins[used.min()], bins[used.max() + 1]
    borders = np.linspace(low, high, count + 1)
    sparse = np.array(getattr(row, side), np.int64).reshape(-1, 2)
    counts, _ = np.histogram(middles[sparse[:, 0]], borders, weights=sparse[:, 1])
    return np.stack([borders[:-1], borders[1:], counts], axis=1)


def shown_names(names: Sequence[str]) -> dict[str, str]:
    """Op -> its name in tags and graphs, where empty parts between slashes become groups without a name."""
    return dict(zip(names, _unique(names), strict=True))


def summary_text(diagnosis: Diagnosis, rows: int = 20) -> Summary.Value:
    samples = plural(diagnosis.samples, "sample")
    lines = [f"{code(diagnosis.quantized)} against {code(diagnosis.reference)}, {samples}", ""]
    for s in diagnosis.suggestions:
        lines += [f"#### {s.rank}. {plain(s.rule)}", "", plain(s.because), ""]
        lines += ["```", s.recipe, "```", ""] if s.recipe else []
    if not diagnosis.suggestions:
        lines += ["No op stands out.", ""]
    columns = ("name", "type", "added_sqnr_db", "arrived_sqnr_db", "total_sqnr_db", "verdict")
    lines += ["#### Ops that add the most noise", "", "| " + " | ".join(_heading(diagnosis, c) for c in columns) + " |"]
    lines.append("|" + "---|" * len(columns))
    for row in diagnosis.worst(rows):
        values = [diagnosis.ops[c][row] for c in columns]
        lines.append("| " + " | ".join([code(values[0]), *map(_cell, values[1:])]) + " |")
    lines += ["", *(f"* {plain(note)}" for note in diagnosis.notes)]
    lines += [f"* not compared: {code(name)}, {plain(reason)}" for name, reason in diagnosis.missing.items()]
    return text("diagnosis", "\n".join(lines))


def reference_text(diagnosis: Diagnosis) -> Summary.Value:
    return text("reference", f"{code(diagnosis.reference)}, with which the trials beside this run are compared")


def trial_numbers(trial: Trial) -> dict[str, float]:
    """What came of it, as far as it is known."""
    found: dict[str, float | None] = {
        "accuracy": trial.accuracy,
        "accuracy_drop": trial.drop,
        **trial.objectives,
        "fallback_ops": len(trial.fallback),
        "wall_s": trial.wall_s,
    }
    return {name: float(number) for name, number in found.items() if number is not None}


def trial_scalars(trial: Trial) -> list[Summary.Value]:
    return [scalar(f"trial/{name}", number) for name, number in trial_numbers(trial).items()]


def trial_hparams(trial: Trial) -> list[Summary.Value]:
    """The trial's settings and result. Without its own list of metrics HParams has a column for each op's scalars."""
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2, summary_v2

    settings: dict[str, bool | float | str] = {storable_text(str(k)): _setting(v) for k, v in trial.config.items()}
    settings["fallback"] = _shortened(", ".join(trial.fallback)) or "none"
    kinds = {bool: api_pb2.DATA_TYPE_BOOL, float: api_pb2.DATA_TYPE_FLOAT64, str: api_pb2.DATA_TYPE_STRING}
    tags = [value.tag for value in trial_scalars(trial)]
    experiment = api_pb2.Experiment(
        hparam_infos=[api_pb2.HParamInfo(name=name, type=kinds[type(value)]) for name, value in settings.items()],
        metric_infos=[
            api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag), display_name=tag.partition("/")[2]) for tag in tags
        ],
    )
    now = time.time()
    took = trial.wall_s if trial.wall_s is not None and 0 <= trial.wall_s < now else 0.0
    ended = plugin_data_pb2.SessionEndInfo(status=api_pb2.STATUS_SUCCESS, end_time_secs=now)
    stored = {
        metadata.EXPERIMENT_TAG: plugin_data_pb2.HParamsPluginData(experiment=experiment),
        metadata.SESSION_END_INFO_TAG: plugin_data_pb2.HParamsPluginData(session_end_info=ended),
    }
    # Without an id a trial is its run: others of that name, in other folders, are not its repetitions.
    started = summary_v2.hparams_pb(settings, trial_id="", start_time_secs=now - took)
    return [
        *started.value,
        *(
            Summary.Value(tag=tag, metadata=metadata.create_summary_metadata(data), tensor=metadata.NULL_TENSOR)
            for tag, data in stored.items()
        ),
    ]


def graph_event(nodes: Sequence[GraphNode], added: Mapping[str, float] | None = None) -> Event:
    """A model for the Graphs dashboard, with the noise that each op adds among its attributes where it is known."""
    names = _node_names(nodes)
    graph = GraphDef()
    for node in nodes:
        made = graph.node.add(name=names[node.name], op=storable_text(node.type))
        made.input.extend(names[name] for name in node.inputs if name in names)
        if added is not None and node.name in added:
            made.attr["added_sqnr_db"].CopyFrom(AttrValue(f=added[node.name]))
    return Event(graph_def=graph.SerializeToString())


def noise_event(diagnosis: Diagnosis, step: int) -> Event:
    """The noise that each op adds, as its compute time, because Graphs colors the nodes by that."""
    names = _node_names(diagnosis.graph)
    stats = DeviceStepStats(device="/device:noise:0")  # Graphs leaves out devices whose names look different
    now = int(time.time() * 1e6)
    for name, noise_db in added_noise(diagnosis).items():
        if name in names:
            parts_per_million = int(min(1e12, max(1, 1e6 * 10 ** (-noise_db / 10))))
            stats.node_stats.add(
                node_name=names[name], all_start_micros=now,
                op_end_rel_micros=parts_per_million, all_end_rel_micros=parts_per_million,
            )  # fmt: skip
    run = RunMetadata(step_stats=StepStats(dev_stats=[stats]))
    tag = f"noise at step {step} (1 µs = 1 ppm)"
    tagged = TaggedRunMetadata(tag=tag, run_metadata=run.SerializeToString())
    return Event(wall_time=time.time(), step=step, tagged_run_metadata=tagged)


def profile_scalars(profile: Profile) -> list[Summary.Value]:
    found = {
        "latency_fp32_us": profile.total.fp32_us,
        "latency_int8_us": profile.total.int8_us,
        "speedup": speedup(profile.total),
        **{f"profiler_overhead_{side}": share for side, share in profile.overhead.items()},
    }
    return [scalar(f"profile/{name}", number) for name, number in found.items() if number is not None]


def profile_text(profile: Profile, rows: int = 20) -> Summary.Value:
    """The nodes that take most time, for the Text dashboard."""
    sides = profile.sides
    totals = [f"{side} {us:.1f} µs" for side in sides if (us := getattr(profile.total, f"{side}_us")) is not None]
    lines = [f"{', '.join(totals)} a run, median of {profile.runs}" if totals else "Whole runs were not timed.", ""]
    lines.append("| op | type | " + " | ".join(f"{side} (µs)" for side in sides) + " | conversion (µs) | share |")
    lines.append("|---|---|" + "---|" * (len(sides) + 2))
    for row, share, _ in profile.by_time()[:rows]:
        times = [getattr(row, f"{side}_us") for side in sides]
        cells = [*("" if us is None else f"{us:.1f}" for us in times), f"{row.convert_us:.1f}", f"{share:.1%}"]
        name = code(row.op) if row.op else "outside of all ops"
        lines.append(f"| {name} | {plain(row.type)} | " + " | ".join(cells) + " |")
    lines += ["", *(f"* {plain(note)}" for note in profile.notes)]
    return text("profile", "\n".join(lines))


def time_events(profile: Profile, graph: Sequence[GraphNode], step: int) -> list[Event]:
    """Compute times, by which Graphs colors the model: one tag for each model."""
    names = _node_names(graph)
    now = int(time.time() * 1e6)
    found = []
    for side in ("fp32", "int8"):
        stats = DeviceStepStats(device=f"/device:{side}:0")
        for row in profile.rows:
            us = getattr(row, f"{side}_us")
            if us is not None and row.op in names:
                took = max(1, round(us + (row.convert_us if side == "int8" else 0.0)))
                stats.node_stats.add(
                    node_name=names[row.op], all_start_micros=now, op_end_rel_micros=took, all_end_rel_micros=took
                )
        if stats.node_stats:
            run = RunMetadata(step_stats=StepStats(dev_stats=[stats]))
            tagged = TaggedRunMetadata(tag=f"time in {side} at step {step}", run_metadata=run.SerializeToString())
            found.append(Event(wall_time=time.time(), step=step, tagged_run_metadata=tagged))
    return found


def added_noise(diagnosis: Diagnosis) -> dict[str, float]:
    columns = zip(diagnosis.ops["name"], diagnosis.ops["added_sqnr_db"], strict=True)
    return {name: float(noise) for name, noise in columns if not np.isnan(noise)}


def _node_names(nodes: Sequence[GraphNode]) -> Mapping[str, str]:
    """Graphs takes what follows a colon for an output's number, and a leading ^ for a mark of its own."""
    plain = [re.sub(r"[:^]", "_", node.name) for node in nodes]
    return {n.name: shown for n, shown in zip(nodes, _unique(plain), strict=True)}


def _unique(names: Iterable[str]) -> list[str]:
    found: dict[str, None] = {}
    for name in names:
        plain = "/".join(filter(None, storable_text(name).split("/"))) or "unnamed"
        shown, copy = plain, 1
        while shown in found:
            copy += 1
            shown = f"{plain}_{copy}"
        found[shown] = None
    return list(found)


def _setting(value: Any) -> bool | float | str:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float) and abs(value) < 1e300 and math.isfinite(value):
        return float(value)
    if isinstance(value, list) and value and all(isinstance(some, dict) and "kind" in some for some in value):
        value = ", ".join(some["kind"] for some in value)  # of rewrites, without the numbers that redo them
    return _shortened(value if isinstance(value, str) else str(value))


def _shortened(words: str) -> str:
    """HParams shows a setting in one cell and offers every value as a filter."""
    kept = storable_text(words)
    return kept if len(kept) <= LONGEST_SETTING else kept[: LONGEST_SETTING - 1] + "…"


def _heading(diagnosis: Diagnosis, column: str) -> str:
    found = diagnosis.ops.column(column)
    return f"{found.label} ({found.unit})" if found.unit else found.label


def _cell(value: object) -> str:
    return plain(value) if isinstance(value, str) else "" if value != value else f"{value:.1f}"
