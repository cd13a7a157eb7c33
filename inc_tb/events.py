"""Diagnoses and trials into TensorBoard's event files, and back."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary

from inc_tb import dashboards, records
from inc_tb.diagnosis import Diagnosis
from inc_tb.errors import DataError, RecordError, UsageError
from inc_tb.eventfile import EventFile, event_files, read_events
from inc_tb.records import OpTable, Suggestion, Trial

REFERENCE_RUN = "fp32"


class SummaryWriter:
    """Writes one run: `logdir` is the run's folder, such as nc_workspace/trial-001.

    Everything is on disk when a call returns. Steps must grow; left out, the next one is taken. The
    reference's histograms go into the run `fp32` beside this one, so that the Histograms dashboard shows
    both under the same name; `worst_ops` limits how many ops get scalars and histograms there.
    """

    def __init__(self, logdir: str | PathLike[str], *, worst_ops: int = dashboards.WORST_OPS) -> None:
        self.logdir = Path(logdir)
        self.worst_ops = worst_ops
        self._last_step = _last_step(self.logdir)
        self._file = EventFile(self.logdir)

    def __enter__(self) -> SummaryWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def add_diagnosis(self, diagnosis: Diagnosis, step: int | None = None) -> None:
        step = self._next_step("quantization/ops", step)
        self._write(diagnosis_records(diagnosis), step)
        self._write(dashboards.scalars_of(diagnosis, self.worst_ops), step)
        self._write(dashboards.histograms_of(diagnosis, "quantized", self.worst_ops), step)
        self._write([dashboards.summary_text(diagnosis)], step)
        for event in dashboards.graph_events(diagnosis):
            event.wall_time, event.step = time.time(), step
            self._file.write(event)
        self._write_reference(diagnosis)

    def add_trial(self, trial: Trial, step: int | None = None) -> None:
        step = self._next_step("quantization/trial", step)
        self._write([dashboards.blobs("quantization/trial", records.encode_rows("trial", [trial]))], step)
        self._write(dashboards.trial_scalars(trial), step)
        self._write(dashboards.trial_hparams(trial), step)

    def _write(self, values: Sequence[Summary.Value], step: int) -> None:
        """One event, so that a reader sees all of the values or none."""
        self._file.write(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def _write_reference(self, diagnosis: Diagnosis) -> None:
        """Once for each reference, however many trials are compared with it."""
        values = dashboards.histograms_of(diagnosis, "reference", self.worst_ops)
        names = "\n".join(diagnosis.ops["name"])
        digest = hashlib.sha256(f"{diagnosis.reference}\n{names}".encode()).hexdigest()[:12]
        folder = self.logdir.parent / REFERENCE_RUN
        marker = f"inc-tb reference {digest}"
        for path in event_files(folder) if folder.is_dir() else ():
            first = next((v for e in read_events(path) for v in e.summary.value), None)
            if first is not None and first.tag == "reference":
                if first.tensor.string_val[0].decode() == marker:
                    return
                folder = self.logdir.parent / f"{REFERENCE_RUN}-{digest}"
        if folder.is_dir() and event_files(folder) and folder.name != REFERENCE_RUN:
            return
        file = EventFile(folder)
        summary = Summary(value=[dashboards.text("reference", marker), *values])
        file.write(Event(wall_time=time.time(), step=0, summary=summary))
        file.close()

    def _next_step(self, tag: str, step: int | None) -> int:
        last = self._last_step.get(tag, -1)
        if step is None:
            step = last + 1
        if step <= last:
            raise UsageError(
                f"step {step} was given after step {last}; TensorBoard drops steps that do not grow. Give a larger step."
            )
        self._last_step[tag] = step
        return step


def diagnosis_records(diagnosis: Diagnosis) -> list[Summary.Value]:
    rows: dict[records.Kind, Sequence[Any]] = {
        "histograms": diagnosis.histograms, "channels": diagnosis.channels,
        "suggestions": diagnosis.suggestions, "graph": diagnosis.graph,
    }  # fmt: skip
    table = records.encode_table(diagnosis.ops, diagnosis.meta)
    return [
        dashboards.blobs("quantization/ops", table),
        *(dashboards.blobs(f"quantization/{kind}", records.encode_rows(kind, found)) for kind, found in rows.items()),
    ]


def log_diagnosis(writer: Any, diagnosis: Diagnosis, step: int | None = None) -> None:
    """Add a diagnosis to a writer that is there already.

    Takes torch.utils.tensorboard and tensorboardX writers, writers of tf.summary, and ours. Both sides'
    histograms go into the writer's own run, the reference's under activations_fp32 and weights_fp32.
    """
    if isinstance(writer, SummaryWriter):
        writer.add_diagnosis(diagnosis, step)
        return
    add = _adder(writer)
    values = [
        *diagnosis_records(diagnosis),
        *dashboards.scalars_of(diagnosis),
        *dashboards.histograms_of(diagnosis, "quantized"),
        *dashboards.histograms_of(diagnosis, "reference", tag="{}_fp32"),
        dashboards.summary_text(diagnosis),
    ]
    add(Summary(value=values), 0 if step is None else step)


def _adder(writer: Any) -> Callable[[Summary, int], None]:
    """How a foreign writer takes a summary. Only what the user has loaded already is looked up."""
    if hasattr(writer, "_get_file_writer"):
        files = writer._get_file_writer()
        foreign = sys.modules.get("tensorboardX.proto.event_pb2")
        is_tensorboardx = type(writer).__module__.partition(".")[0] == "tensorboardX"
        event_type = foreign.Event if foreign is not None and is_tensorboardx else Event

        def add(summary: Summary, step: int) -> None:
            files.add_event(event_type.FromString(Event(summary=summary).SerializeToString()), step, time.time())
            files.flush()

        return add
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and hasattr(writer, "as_default"):

        def add_with_tensorflow(summary: Summary, step: int) -> None:
            with writer.as_default():
                tensorflow.summary.experimental.write_raw_pb(summary.SerializeToString(), step=step)
            writer.flush()

        return add_with_tensorflow
    raise UsageError(
        f"cannot log to a {type(writer).__module__}.{type(writer).__qualname__}; expected a SummaryWriter of "
        "torch.utils.tensorboard, tensorboardX or inc_tb, or a writer of tf.summary.create_file_writer."
    )


@dataclass
class Run:
    """What a run folder holds, by step; the newest is at hand directly."""

    name: str
    diagnoses: dict[int, Diagnosis] = field(default_factory=dict)
    trials: dict[int, Trial] = field(default_factory=dict)

    @property
    def diagnosis(self) -> Diagnosis:
        if not self.diagnoses:
            raise DataError(f"{self.name}: holds no diagnosis; expected a run that add_diagnosis has written.")
        return self.diagnoses[max(self.diagnoses)]

    @property
    def trial(self) -> Trial | None:
        return self.trials[max(self.trials)] if self.trials else None

    @property
    def ops(self) -> OpTable:
        return self.diagnosis.ops

    @property
    def suggestions(self) -> list[Suggestion]:
        return self.diagnosis.suggestions

    def to_pandas(self) -> Any:
        return self.diagnosis.to_pandas()

    def to_csv(self, folder: str | PathLike[str]) -> list[Path]:
        return self.diagnosis.to_csv(folder)


def load(run: str | PathLike[str]) -> Run:
    """Read a run back. A file that was cut off is read up to the last whole event."""
    folder = Path(run)
    if not folder.is_dir() or not event_files(folder):
        raise DataError(f"{folder}: no event files there; expected the folder of one run, such as nc_workspace/trial-001.")
    found = Run(str(folder))
    stored: dict[int, dict[str, list[bytes]]] = {}
    for path in event_files(folder):
        for event in read_events(path):
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == records.PLUGIN:
                    stored.setdefault(event.step, {})[value.tag] = list(value.tensor.string_val)
    for step, tags in sorted(stored.items()):
        if "quantization/ops" in tags:
            found.diagnoses[step] = _decode_diagnosis(tags)
        if "quantization/trial" in tags:
            found.trials[step] = records.decode_rows("trial", tags["quantization/trial"])[0]
    if not stored:
        raise RecordError(f"{folder}: its event files hold no quantization records; expected a run written by inc-tb.")
    return found


def _decode_diagnosis(tags: dict[str, list[bytes]]) -> Diagnosis:
    table, meta = records.decode_table(tags["quantization/ops"])
    rows: dict[str, list[Any]] = {
        kind: records.decode_rows(kind, tags[f"quantization/{kind}"])
        for kind in records.KINDS
        if kind not in ("ops", "trial") and f"quantization/{kind}" in tags
    }
    return Diagnosis(table, **rows, **meta)


def _last_step(folder: Path) -> dict[str, int]:
    """The largest step of each of our tags among the files that are there already."""
    found: dict[str, int] = {}
    for path in event_files(folder) if folder.is_dir() else ():
        for event in read_events(path):
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == records.PLUGIN:
                    found[value.tag] = max(found.get(value.tag, -1), event.step)
    return found
