"""The standard dashboards: what somebody without the Quantization tab sees of a run."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from tensorboard.compat.proto.attr_value_pb2 import AttrValue
from tensorboard.compat.proto.config_pb2 import RunMetadata
from tensorboard.compat.proto.event_pb2 import Event, TaggedRunMetadata
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.step_stats_pb2 import DeviceStepStats, NodeExecStats, StepStats
from tensorboard.compat.proto.summary_pb2 import (
    DATA_CLASS_BLOB_SEQUENCE,
    DATA_CLASS_SCALAR,
    DATA_CLASS_TENSOR,
    DataClass,
    Summary,
    SummaryMetadata,
)
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_DOUBLE, DT_FLOAT, DT_STRING

from inc_tb.diagnosis import Diagnosis
from inc_tb.histogram import SIDE, edges
from inc_tb.records import PLUGIN, HistogramRow, Trial

BUCKETS = 96
WORST_OPS = 64
"""Ops that get scalars and histograms of their own: thousands of tags make TensorBoard crawl."""
_ROLES = {"output": "activations", "weight": "weights"}


def scalar(tag: str, number: float) -> Summary.Value:
    tensor = TensorProto(dtype=DT_FLOAT, float_val=[number])
    return _value(tag, "scalars", DATA_CLASS_SCALAR, tensor)


def text(tag: str, markdown: str) -> Summary.Value:
    tensor = TensorProto(dtype=DT_STRING, string_val=[markdown.encode()], tensor_shape=_shape(1))
    return _value(tag, "text", DATA_CLASS_TENSOR, tensor)


def histogram(tag: str, buckets: npt.NDArray[np.float64]) -> Summary.Value:
    tensor = TensorProto(dtype=DT_DOUBLE, tensor_content=buckets.astype("<f8").tobytes())
    tensor.tensor_shape.CopyFrom(_shape(*buckets.shape))
    return _value(tag, "histograms", DATA_CLASS_TENSOR, tensor)


def blobs(tag: str, elements: Sequence[bytes]) -> Summary.Value:
    tensor = TensorProto(dtype=DT_STRING, string_val=elements, tensor_shape=_shape(len(elements)))
    return _value(tag, PLUGIN, DATA_CLASS_BLOB_SEQUENCE, tensor)


def scalars_of(diagnosis: Diagnosis, ops: int = WORST_OPS) -> list[Summary.Value]:
    table = diagnosis.ops
    found = []
    for row in diagnosis.worst(ops):
        name = table["name"][row].lstrip("/")
        for column in ("added_sqnr_db", "total_sqnr_db"):
            if not np.isnan(table[column][row]):
                found.append(scalar(f"{column}/{name}", table[column][row]))
    verdicts = table["verdict"].tolist()
    found += [scalar(f"ops/{verdict}", verdicts.count(verdict)) for verdict in ("bad", "watch", "ok")]
    totals = table["total_sqnr_db"][~np.isnan(table["total_sqnr_db"])]
    if totals.size:
        found.append(scalar("output/sqnr_db", totals[-1]))
    return found


def histograms_of(diagnosis: Diagnosis, side: str, ops: int = WORST_OPS, tag: str = "{}") -> list[Summary.Value]:
    """`side` is reference or quantized; both have the same buckets, so that they can be laid over each other."""
    wanted = {diagnosis.ops["name"][row] for row in diagnosis.worst(ops)}
    return [
        histogram(f"{tag.format(_ROLES[row.role])}/{row.op.lstrip('/')}", buckets(row, side))
        for row in diagnosis.histograms
        if row.op in wanted and (row.reference or row.quantized)
    ]


def buckets(row: HistogramRow, side: str, count: int = BUCKETS) -> npt.NDArray[np.float64]:
    """Left edge, right edge and count of equal buckets over the range of both sides."""
    bins = edges(row.top)
    middles = (bins[:-1] + bins[1:]) / 2
    middles[SIDE] = 0.0
    used = np.array(row.reference[::2] + row.quantized[::2])
    low, high = bins[used.min()], bins[used.max() + 1]
    borders = np.linspace(low, high, count + 1)
    sparse = np.array(getattr(row, side)).reshape(-1, 2)
    counts, _ = np.histogram(middles[sparse[:, 0]], borders, weights=sparse[:, 1])
    return np.stack([borders[:-1], borders[1:], counts], axis=1)


def summary_text(diagnosis: Diagnosis, rows: int = 20) -> Summary.Value:
    lines = [f"**{diagnosis.quantized}** against **{diagnosis.reference}**, {diagnosis.samples} samples", ""]
    for s in diagnosis.suggestions:
        lines += [f"{s.rank}. **{s.rule}**: {s.because}", "", "```", s.recipe, "```", ""]
    if not diagnosis.suggestions:
        lines += ["No op stands out.", ""]
    columns = ("name", "type", "added_sqnr_db", "arrived_sqnr_db", "total_sqnr_db", "verdict")
    lines += ["| " + " | ".join(diagnosis.ops.column(c).label for c in columns) + " |", "|" + "---|" * len(columns)]
    for row in diagnosis.worst(rows):
        lines.append("| " + " | ".join(_cell(diagnosis.ops[c][row]) for c in columns) + " |")
    return text("diagnosis", "\n".join(lines + [f"* {note}" for note in diagnosis.notes]))


def trial_scalars(trial: Trial) -> list[Summary.Value]:
    found = {f"trial/{name}": value for name, value in trial.objectives.items()}
    if trial.accuracy is not None:
        found["trial/accuracy"] = trial.accuracy
        if trial.baseline is not None:
            found["trial/accuracy_drop"] = trial.baseline - trial.accuracy
    if trial.wall_s is not None:
        found["trial/wall_s"] = trial.wall_s
    found["trial/fallback_ops"] = len(trial.fallback)
    return [scalar(tag, number) for tag, number in found.items()]


def trial_hparams(trial: Trial) -> Sequence[Summary.Value]:
    from tensorboard.plugins.hparams import summary_v2

    flat: dict[str, bool | float | str] = {"fallback": ", ".join(trial.fallback) or "none"}
    for name, value in trial.config.items():
        flat[name] = value if isinstance(value, bool | int | float | str) else str(value)
    return list(summary_v2.hparams_pb(flat, trial_id=trial.name).value)


def graph_events(diagnosis: Diagnosis) -> list[Event]:
    """The model for the Graphs dashboard, and its noise as compute time, by which Graphs colours the nodes."""
    table = diagnosis.ops
    added = dict(zip(table["name"], table["added_sqnr_db"], strict=True))
    graph = GraphDef()
    stats = DeviceStepStats(device="noise added, 1 µs = 1 ppm")
    now = int(time.time() * 1e6)
    for node in diagnosis.graph:
        made = graph.node.add(name=_node_name(node.name), op=node.type, input=[_node_name(i) for i in node.inputs])
        noise = added.get(node.name, float("nan"))
        if not np.isnan(noise):
            made.attr["added_sqnr_db"].CopyFrom(AttrValue(f=noise))
            micros = max(1, int(1e6 * 10 ** (-noise / 10)))
            stats.node_stats.append(
                NodeExecStats(node_name=made.name, all_start_micros=now, op_end_rel_micros=micros, all_end_rel_micros=micros)
            )
    run = RunMetadata(step_stats=StepStats(dev_stats=[stats]))
    tagged = TaggedRunMetadata(tag="quantization noise", run_metadata=run.SerializeToString())
    return [Event(graph_def=graph.SerializeToString()), Event(tagged_run_metadata=tagged)]


def _node_name(name: str) -> str:
    return name.lstrip("/") or "_"


def _cell(value: object) -> str:
    if isinstance(value, str):
        return f"`{value}`" if "/" in value else value
    return "" if value != value else f"{value:.1f}"


def _value(tag: str, plugin: str, data_class: DataClass, tensor: TensorProto) -> Summary.Value:
    content = b'{"version":1}' if plugin == PLUGIN else b""
    metadata = SummaryMetadata(
        data_class=data_class, plugin_data=SummaryMetadata.PluginData(plugin_name=plugin, content=content)
    )
    return Summary.Value(tag=tag.encode("utf-8", "replace").decode(), metadata=metadata, tensor=tensor)


def _shape(*dims: int) -> TensorShapeProto:
    return TensorShapeProto(dim=[TensorShapeProto.Dim(size=n) for n in dims])


