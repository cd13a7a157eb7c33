"""Diagnoses and trials into TensorBoard's event files, and back."""

from __future__ import annotations

import hashlib
import operator
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary

from inc_tb import dashboards, records, timing
from inc_tb.capture import read_graph
from inc_tb.diagnosis import Diagnosis
from inc_tb.errors import DataError, RecordError, UsageError
from inc_tb.eventfile import EventFile, event_files, read_events
from inc_tb.recipes import recipes_for
from inc_tb.records import OpTable, Suggestion, Trial
from inc_tb.timing import Profile
from inc_tb.traces import write_traces

REFERENCE_RUN = "fp32"
GRAPH_OPS = 5000
"""The Graphs dashboard has larger models in the reference's run only: TensorBoard holds the graph of every run."""


class SummaryWriter:
    """Writes one run: `logdir` is the run's folder, such as nc_workspace/trial-001.

    Everything is on disk when a call returns. Steps must grow; left out, the next one is taken. The
    reference's histograms go into the run `fp32` beside this one (`fp32-…` for a second reference), so that the
    Histograms dashboard shows both under the same name; `worst_ops` limits how many ops get scalars and
    histograms there. HParams takes its columns from one trial, so give all trials of a folder the same settings.
    The events of a run that is written `whole` appear when the writer is closed, and never if an error ends it before;
    what lies beside them, the traces of a profile and the run of the reference, is there at once.
    """

    def __init__(
        self, logdir: str | PathLike[str], *, worst_ops: int = dashboards.WORST_OPS, whole: bool = False
    ) -> None:
        self.logdir = Path(logdir)
        self.worst_ops = worst_ops
        self._last_step, self._has_graph = _found_in(self.logdir)
        self._whole = whole
        self._file = EventFile(self.logdir, whole=whole)
        self._graph: Event | None = None
        self._reference: tuple[Path, str] | None = None

    def __enter__(self) -> SummaryWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._whole and error is not None:
            self._file.discard()
        else:
            self.close()

    def close(self) -> None:
        self._file.close()

    def add_diagnosis(self, diagnosis: Diagnosis, step: int | None = None) -> None:
        step = self._next_step("quantization/ops", step)
        self._write(diagnosis_records(diagnosis), step)
        self._write(dashboards.scalars_of(diagnosis, self.worst_ops), step)
        self._write(dashboards.histograms_of(diagnosis, "quantized", self.worst_ops), step)
        self._write([dashboards.summary_text(diagnosis)], step)
        if len(diagnosis.graph) <= GRAPH_OPS:
            self._write_graph(dashboards.graph_event(diagnosis.graph, dashboards.added_noise(diagnosis)))
            self._file.write(dashboards.noise_event(diagnosis, step))
        self._write_reference(diagnosis)

    def update_diagnosis(self, diagnosis: Diagnosis) -> None:
        """The op table and the suggestions anew, as a further step; everything else of the diagnosis stays."""
        step = self._next_step("quantization/ops", None)
        self._last_step["quantization/suggestions"] = step
        kept = ("quantization/ops", "quantization/suggestions")
        self._write([value for value in diagnosis_records(diagnosis) if value.tag in kept], step)
        self._write([dashboards.summary_text(diagnosis)], step)

    def add_trial(self, trial: Trial, step: int | None = None) -> None:
        step = self._next_step("quantization/trial", step)
        self._write([dashboards.blobs("quantization/trial", records.encode_rows("trial", [trial]))], step)
        self._write(dashboards.trial_scalars(trial), step)
        self._write(dashboards.trial_hparams(trial), step)

    def add_histogram(self, tag: str, values: Any, step: int | None = None) -> None:
        """Of any array or tensor, for the Histograms dashboard; of a quantized tensor what its values stand for."""
        self._write([dashboards.array_histogram(tag, values)], self._next_step(tag, step))

    def add_profile(self, profile: Profile, step: int | None = None) -> None:
        """Times per op, and the trace for the Profile tab as files beside the events."""
        step = self._next_step("quantization/profile", step)
        stored = records.encode_rows("profile", profile.rows, profile.meta)
        self._write([dashboards.blobs("quantization/profile", stored)], step)
        self._write([*dashboards.profile_scalars(profile), dashboards.profile_text(profile)], step)
        if profile.graph and len(profile.graph) <= GRAPH_OPS:
            if not self._has_graph:
                self._write_graph(dashboards.graph_event(profile.graph))
            for event in dashboards.time_events(profile, profile.graph, step):
                self._file.write(event)
        session = f"{time.strftime('%Y_%m_%d_%H_%M_%S')}-{step}"
        write_traces(self.logdir, session, platform.node() or "host", profile.slices, profile.traces)

    def _write(self, values: Sequence[Summary.Value], step: int) -> None:
        """One event, so that a reader sees all of the values or none."""
        self._file.write(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def add_graph(self, model: Any) -> None:
        """A model, by path or as an object, for the Graphs dashboard; a diagnosis brings its own."""
        self._write_graph(dashboards.graph_event(read_graph(model)))

    def _write_graph(self, graph: Event) -> None:
        if graph != self._graph:  # TensorBoard shows a run's newest graph, and complains about each further one
            self._graph, self._has_graph = graph, True
            self._file.write(Event(wall_time=time.time(), graph_def=graph.graph_def))

    def _write_reference(self, diagnosis: Diagnosis) -> None:
        """Every op once, however many trials have it among their worst."""
        if self._reference is None:  # weights that are trained are still the same reference's
            self._reference = _reference_run(self.logdir, diagnosis)
        folder, mark = self._reference
        known: set[str] = set()
        has_graph = False
        for event in (event for path in event_files(folder) for event in read_events(path)):
            known.update(value.tag for value in event.summary.value)
            has_graph |= bool(event.graph_def)
        values = [
            dashboards.reference_text(diagnosis),
            *dashboards.histograms_of(diagnosis, "reference", self.worst_ops),
        ]
        missing = [value for value in values if value.tag not in known]
        needs_graph = len(diagnosis.graph) > GRAPH_OPS and not has_graph
        if missing or needs_graph:
            file = EventFile(folder, mark)
            file.write(Event(wall_time=time.time(), step=0, summary=Summary(value=missing)))
            if needs_graph:
                graph = dashboards.graph_event(diagnosis.graph).graph_def
                file.write(Event(wall_time=time.time(), graph_def=graph))
            file.close()

    def _next_step(self, tag: str, step: int | None) -> int:
        last = self._last_step.get(tag, -1)
        step = last + 1 if step is None else _whole_step(step)
        if step <= last:
            raise UsageError(
                f"step {step} was given after step {last}; TensorBoard drops steps that do not grow. "
                f"Give a step from {last + 1} on, or none."
            )
        self._last_step[tag] = step
        return step


def _whole_step(step: int) -> int:
    try:
        whole = operator.index(step)
    except TypeError:
        whole = -1
    if not 0 <= whole < 1 << 63:
        raise UsageError(f"step {step!r} was given; expected a whole number from 0 on, or none for the next one.")
    return whole


def _reference_run(run: Path, diagnosis: Diagnosis) -> tuple[Path, str]:
    """The folder for the reference's histograms, and how the names of its event files end.

    A folder that holds anything else, such as another reference or a run of the user, is left alone.
    """
    told_by = "\n".join([diagnosis.reference, *diagnosis.ops["name"]]).encode("utf-8", "surrogatepass")
    weights = b"".join(diagnosis.ops[column].tobytes() for column in ("w_min", "w_max") if column in diagnosis.ops)
    digest = hashlib.sha256(told_by + weights).hexdigest()[:12]
    mark = f".reference-{digest}"
    shared = run.parent / REFERENCE_RUN
    if shared.resolve() != run.resolve() and all(path.name.endswith(mark) for path in event_files(shared)):
        return shared, mark
    return run.parent / f"{REFERENCE_RUN}-{digest}", mark


def _templates(diagnosis: Diagnosis) -> list[records.Recipe]:
    """For the page, which shows the first: that of the tool which all suggestions have first."""
    firsts = {next(iter(suggestion.recipes), "") for suggestion in diagnosis.suggestions}
    found = recipes_for(diagnosis.framework, diagnosis.ops)
    return sorted(found, key=lambda recipe: firsts != {recipe.tool})


def diagnosis_records(diagnosis: Diagnosis) -> list[Summary.Value]:
    rows: dict[records.RowKind, Sequence[Any]] = {
        "histograms": diagnosis.histograms, "channels": diagnosis.channels,
        "suggestions": diagnosis.suggestions, "graph": diagnosis.graph,
    }  # fmt: skip
    meta: dict[records.RowKind, Any] = {"suggestions": {"recipes": _templates(diagnosis)}}
    table = records.encode_table(diagnosis.ops, diagnosis.meta)
    return [
        dashboards.blobs("quantization/ops", table),
        *(
            dashboards.blobs(f"quantization/{kind}", records.encode_rows(kind, found, meta.get(kind)))
            for kind, found in rows.items()
        ),
    ]


def log_diagnosis(writer: Any, diagnosis: Diagnosis, step: int | None = None) -> None:
    """Add a diagnosis to a writer that is there already, at the step that the writer's other data has.

    Takes torch.utils.tensorboard and tensorboardX writers, writers of tf.summary, and ours. Both sides'
    histograms go into the writer's own run, the reference's under activations_fp32 and weights_fp32. The
    graph is left out: a run has one, which may be the user's.
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
    add(Summary(value=values), 0 if step is None else _whole_step(step))


def log_histogram(writer: Any, tag: str, values: Any, step: int | None = None) -> None:
    """Add a histogram to a writer as `log_diagnosis` does; unlike torch's own, quantized tensors are taken."""
    if isinstance(writer, SummaryWriter):
        writer.add_histogram(tag, values, step)
        return
    summary = Summary(value=[dashboards.array_histogram(tag, values)])
    _adder(writer)(summary, 0 if step is None else _whole_step(step))


def _adder(writer: Any) -> Callable[[Summary, int], None]:
    """How a foreign writer takes a summary. Only what the user has loaded already is looked up."""
    if hasattr(writer, "_get_file_writer"):
        return _add_to_file_writer(writer._get_file_writer())
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and isinstance(writer, tensorflow.summary.SummaryWriter):
        return _add_with_tensorflow(tensorflow, writer)
    raise UsageError(
        f"cannot log to a {type(writer).__module__}.{type(writer).__qualname__}; expected a SummaryWriter of "
        "torch.utils.tensorboard, tensorboardX or inc_tb, or a writer of tf.summary.create_file_writer."
    )


def _add_to_file_writer(files: Any) -> Callable[[Summary, int], None]:
    # tensorboardX has protocol buffers of its own and takes no others.
    is_tensorboardx = type(files).__module__.partition(".")[0] == "tensorboardX"
    event_type = sys.modules["tensorboardX.proto.event_pb2"].Event if is_tensorboardx else Event

    def add(summary: Summary, step: int) -> None:
        files.add_event(event_type.FromString(Event(summary=summary).SerializeToString()), step, time.time())
        files.flush()

    return add


def _add_with_tensorflow(tensorflow: Any, writer: Any) -> Callable[[Summary, int], None]:
    def add(summary: Summary, step: int) -> None:
        # Keras' callback records nothing between its steps, unless it is told to.
        with writer.as_default(), tensorflow.summary.record_if(True):
            tensorflow.summary.experimental.write_raw_pb(summary.SerializeToString(), step=step)
        writer.flush()

    return add


@dataclass
class Run:
    """What a run folder holds, by step; the newest is at hand directly."""

    name: str
    diagnoses: dict[int, Diagnosis] = field(default_factory=dict)
    trials: dict[int, Trial] = field(default_factory=dict)
    profiles: dict[int, Profile] = field(default_factory=dict)

    @property
    def diagnosis(self) -> Diagnosis:
        if not self.diagnoses:
            raise DataError(f"{self.name}: holds no diagnosis; expected a run that add_diagnosis has written.")
        return self.diagnoses[max(self.diagnoses)]

    @property
    def trial(self) -> Trial | None:
        return self.trials[max(self.trials)] if self.trials else None

    @property
    def profile(self) -> Profile | None:
        return self.profiles[max(self.profiles)] if self.profiles else None

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
    if not event_files(folder):
        raise DataError(
            f"{folder}: no event files there; expected the folder of one run, such as nc_workspace/trial-001."
        )
    found = Run(str(folder))
    stored: dict[int, dict[str, list[bytes]]] = {}
    for path in event_files(folder):
        for event in read_events(path):
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == records.PLUGIN:
                    stored.setdefault(event.step, {})[value.tag] = list(value.tensor.string_val)
    standing: dict[str, list[bytes]] = {}
    for step, tags in sorted(stored.items()):
        standing.update(tags)
        if "quantization/ops" in tags:
            found.diagnoses[step] = _decode_diagnosis(standing)
        if "quantization/trial" in tags:
            found.trials.update((step, trial) for trial in records.decode_rows("trial", tags["quantization/trial"]))
        if "quantization/profile" in tags:
            blobs = tags["quantization/profile"]
            rows = records.decode_rows("profile", blobs)
            found.profiles[step] = timing.stored(rows, records.read_header("profile", blobs[0]).meta)
    if not stored:
        raise RecordError(f"{folder}: its event files hold no quantization records; expected a run written by inc-tb.")
    return found


def _decode_diagnosis(tags: Mapping[str, Sequence[bytes]]) -> Diagnosis:
    table, meta = records.decode_table(tags["quantization/ops"])
    parts: dict[str, Any] = {
        kind: records.decode_rows(kind, tags[f"quantization/{kind}"])
        for kind in records.ROW_KINDS
        if kind not in ("trial", "profile") and f"quantization/{kind}" in tags
    }
    known = {f.name for f in fields(Diagnosis)}
    return Diagnosis(table, **parts, **{name: value for name, value in meta.items() if name in known})


def _found_in(folder: Path) -> tuple[dict[str, int], bool]:
    """The largest step of each tag among the files that are there already, and whether they hold a graph."""
    steps: dict[str, int] = {}
    has_graph = False
    for path in event_files(folder):
        for event in read_events(path):
            has_graph |= bool(event.graph_def)
            for value in event.summary.value:
                steps[value.tag] = max(steps.get(value.tag, -1), event.step)
    return steps, has_graph
