"""Diagnoses, trials and profiles into TensorBoard's event files."""

from __future__ import annotations

import hashlib
import operator
import platform
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary

from inc_tb.errors import UsageError
from inc_tb.frameworks.models import read_graph
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.profiling.profile import Profile
from inc_tb.profiling.traces import write_traces
from inc_tb.records import Trial
from inc_tb.store import dashboards
from inc_tb.store.encoded import diagnosis_records, profile_record, tag_of, trial_record
from inc_tb.store.eventfile import EventFile, event_files, read_events, readable_run
from inc_tb.store.hold import WRITING, Hold, held_alone, hold
from inc_tb.store.remote import Mirror, is_remote, mirror_of_run
from inc_tb.store.thinning import Thinning
from inc_tb.store.workspace import alone, make_newest, put_tables

REFERENCE_RUN = "fp32"
GRAPH_OPS = 5000
"""The Graphs dashboard has larger models in the reference's run only: TensorBoard holds the graph of every run."""

_REFERENCE_WAITS_S = 60.0
"""Trials of several processes share it."""


class SummaryWriter:
    """Writes one run: `logdir` is the run's folder, such as nc_workspace/trial-001.

    It may be an address, such as s3://bucket/logs/trial-001: every call sends what it has logged, and what cannot be
    sent is kept on this machine and sent later. Everything is on disk when a call returns. Steps must grow; left out,
    the next one is taken, also in a run that is there already: nothing in it is lost. The reference's histograms go
    into the run `fp32` beside this one (`fp32-…` for a second reference), so that the Histograms dashboard shows both
    under the same name; `worst_ops` says how many ops get scalars and histograms there: unless it is given 5 and 2, and
    squared errors only from the second diagnosis on, with that of the first. HParams takes its columns from one trial,
    so give all trials of a folder the same settings.
    The events of a run that is written `whole` appear when the writer is closed, and never if an error ends it before;
    what lies beside them, the traces of a profile and the run of the reference, is there at once.
    With `keep_last` the run holds that many diagnoses, the last ones, and the scalars of all steps: TensorBoard keeps
    in memory whatever a run holds.

    Beside the events are activations_table.csv and weights_table.csv of the newest diagnosis, with Neural Compressor's
    titles, for scripts that read its workspaces; the run that is written last is the newest folder.
    """

    def __init__(
        self,
        logdir: str | PathLike[str],
        *,
        worst_ops: int | None = None,
        whole: bool = False,
        keep_last: int | None = None,
    ) -> None:
        self._mirror: Mirror | None = None
        if isinstance(logdir, str) and is_remote(logdir):
            self._mirror, name = mirror_of_run(logdir)
            self.logdir = self._mirror.folder / name
        else:
            self.logdir = Path(logdir)
        self._is_asked = worst_ops is not None
        self.worst_ops = dashboards.WORST_OPS if worst_ops is None else worst_ops
        self._histograms = dashboards.WORST_HISTOGRAMS if worst_ops is None else worst_ops
        self._held: tuple[list[Summary.Value], int] | None = None
        self._hold: Hold | None = hold(self.logdir)
        self._last_step, self._counting = self._hold.steps, self._hold.counting
        found, self._has_graph = _found_in(self.logdir)
        with self._counting:
            self._last_step.update({tag: max(step, self._last_step.get(tag, -1)) for tag, step in found.items()})
        self._curves = set(self._last_step)
        self._whole = whole
        if whole and keep_last is not None:
            raise UsageError(
                "whole=True and keep_last were given; expected one of them. A run that goes on is not whole."
            )
        self._thinning = None if keep_last is None else Thinning(self.logdir, keep_last, merges=self._mirror is None)
        self._file = EventFile(self.logdir, whole=whole)
        self._hold.newest = self._file
        if readable_run(self.logdir.name) != self.logdir.name:
            warnings.warn(
                f"{self.logdir}: TensorBoard's fast loader cannot read runs with double quotes, backslashes or control "
                f"characters in their names. Log to {readable_run(self.logdir.name)} instead.",
                stacklevel=2,
            )
        self._graph: Event | None = None
        self._reference: tuple[Path, str] | None = None
        self._diagnosis: Diagnosis | None = None
        self._put_tables()

    def __enter__(self) -> SummaryWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._whole and error is not None:
            self._file.discard()
            self._whole = False
            self._hold = None
            with suppress(OSError):  # it holds something else
                self.logdir.rmdir()
            self._finish()
        else:
            self.close()

    def close(self) -> None:
        self._file.close()
        if self._whole:
            self._whole = False
            self._put_tables(self._diagnosis)
        self._hold = None
        self._finish()

    def _finish(self) -> None:
        if self._mirror is not None:
            self._mirror.finish()

    def _send(self) -> None:
        """Of a log that lives elsewhere what was logged last; where that cannot be now it is tried again."""
        if self._mirror is not None:
            try:
                self._mirror.push()
            except UsageError as error:
                warnings.warn(f"{error} It is tried again when more is logged.", stacklevel=3)

    def add_diagnosis(self, diagnosis: Diagnosis, step: int | None = None) -> None:
        is_first = tag_of("ops") not in self._last_step
        step = self._next_step(tag_of("ops"), step)
        diagnosis.logged = self.logdir if self._mirror is None else None
        if self._thinning is not None:
            self._begin_file(self._thinning)
        self._write(diagnosis_records(diagnosis), step)
        self._write_curves(diagnosis, step, is_single=is_first and not self._is_asked)
        self._write(dashboards.histograms_of(diagnosis, "quantized", self._histograms), step)
        self._write([dashboards.summary_text(diagnosis)], step)
        if len(diagnosis.graph) <= GRAPH_OPS:
            self._write_graph(dashboards.graph_event(diagnosis.graph, dashboards.added_noise(diagnosis)))
            self._newest_file().write(dashboards.noise_event(diagnosis, step))
        self._write_reference(diagnosis)
        self._put_tables(diagnosis)
        self._send()

    def _write_curves(self, diagnosis: Diagnosis, step: int, *, is_single: bool) -> None:
        """What only a training has is held back until there is a second step."""
        if self._held is not None:
            self._write(*self._held)
            self._held = None
        scalars = dashboards.scalars_of(diagnosis, self.worst_ops, self._curves, is_single=is_single)
        self._write(scalars, step)
        if is_single:
            held = dashboards.curves_of(diagnosis, self.worst_ops, self._curves, of_trainings=True)
            self._held = held, step
            scalars += held
        self._curves.update(value.tag for value in scalars)

    def update_diagnosis(self, diagnosis: Diagnosis, *, is_last: bool = True) -> None:
        """The op table and the suggestions anew, as a further step; everything else of the diagnosis stays.

        The files beside the events are written with the last of several updates.
        """
        step = self._next_step(tag_of("ops"), None)
        self._last_step[tag_of("suggestions")] = step
        diagnosis.logged = self.logdir if self._mirror is None else None
        self._write(diagnosis_records(diagnosis, ("ops", "suggestions")), step)
        self._write([dashboards.summary_text(diagnosis)], step)
        if is_last:
            self._put_tables(diagnosis)
        self._send()

    def add_trial(self, trial: Trial, step: int | None = None) -> None:
        step = self._next_step(tag_of("trial"), step)
        self._write([trial_record(trial)], step)
        self._write(dashboards.trial_scalars(trial), step)
        self._write(dashboards.trial_hparams(trial), step)
        self._send()

    def add_histogram(self, tag: str, values: Any, step: int | None = None) -> None:
        """Of any array or tensor, for the Histograms dashboard; of a quantized tensor what its values stand for."""
        self._write([dashboards.array_histogram(tag, values)], self._next_step(tag, step))
        self._send()

    def add_profile(self, profile: Profile, step: int | None = None) -> None:
        """Times per op, and the trace for the Profile tab as files beside the events."""
        step = self._next_step(tag_of("profile"), step)
        profile.logged = self.logdir if self._mirror is None else None
        self._write([profile_record(profile)], step)
        self._write([*dashboards.profile_scalars(profile), dashboards.profile_text(profile)], step)
        if profile.graph and len(profile.graph) <= GRAPH_OPS:
            if not self._has_graph:
                self._write_graph(dashboards.graph_event(profile.graph))
            for event in dashboards.time_events(profile, profile.graph, step):
                self._newest_file().write(event)
        session = f"{time.strftime('%Y_%m_%d_%H_%M_%S')}-{step}"
        write_traces(self.logdir, session, platform.node() or "host", profile.slices, profile.traces)
        self._send()

    def _put_tables(self, diagnosis: Diagnosis | None = None) -> None:
        """At once, or when a run that is written whole is there."""
        if self._whole:
            self._diagnosis = diagnosis or self._diagnosis
        else:
            put_tables(self.logdir, diagnosis)
            make_newest(self.logdir)

    def _write(self, values: Sequence[Summary.Value], step: int) -> None:
        """One event, so that a reader sees all of the values or none."""
        self._newest_file().write(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def _newest_file(self) -> EventFile:
        """A further one, where another writer of this process has begun one since."""
        if self._hold is not None and self._hold.newest is not self._file and not self._whole:
            if not self._file.is_closed:
                self._file.close()
                self._file = EventFile(self.logdir)
            self._hold.newest = self._file
        return self._file

    def _begin_file(self, thinning: Thinning) -> None:
        if not self._file.is_closed:
            self._file.close()
            self._file = EventFile(self.logdir)
            if self._hold is not None:
                self._hold.newest = self._file
            thinning.began(self._file.path)

    def add_graph(self, model: Any) -> None:
        """A model, by path or as an object, for the Graphs dashboard; a diagnosis brings its own."""
        self._write_graph(dashboards.graph_event(read_graph(model)))
        self._send()

    def _write_graph(self, graph: Event) -> None:
        if graph != self._graph:  # TensorBoard shows a run's newest graph, and complains about each further one
            self._graph, self._has_graph = graph, True
            self._newest_file().write(Event(wall_time=time.time(), graph_def=graph.graph_def))

    def _write_reference(self, diagnosis: Diagnosis) -> None:
        """Every op once, however many trials have it among their worst."""
        if self._reference is None:  # weights that are trained are still the same reference's
            self._reference = _reference_run(self.logdir, diagnosis)
        with held_alone(self._reference[0], WRITING, wait_s=_REFERENCE_WAITS_S):
            self._complete_reference(diagnosis, *self._reference)

    def _complete_reference(self, diagnosis: Diagnosis, folder: Path, mark: str) -> None:
        known: set[str] = set()
        has_graph = False
        for event in (event for path in event_files(folder) for event in read_events(path)):
            known.update(value.tag for value in event.summary.value)
            has_graph |= bool(event.graph_def)
        values = [
            dashboards.reference_text(diagnosis),
            *dashboards.histograms_of(diagnosis, "reference", self._histograms),
        ]
        missing = [value for value in values if value.tag not in known]
        needs_graph = len(diagnosis.graph) > GRAPH_OPS and not has_graph
        if missing or needs_graph:
            file = EventFile(folder, mark, whole=True)
            try:
                file.write(Event(wall_time=time.time(), step=0, summary=Summary(value=missing)))
                if needs_graph:
                    graph = dashboards.graph_event(diagnosis.graph).graph_def
                    file.write(Event(wall_time=time.time(), graph_def=graph))
                file.close()
            finally:
                file.discard()
            put_tables(folder, alone(diagnosis))

    def _next_step(self, tag: str, step: int | None) -> int:
        with self._counting:
            last = self._last_step.get(tag, -1)
            step = last + 1 if step is None else whole_step(step)
            if step <= last:
                raise UsageError(
                    f"step {step} was given after step {last}; TensorBoard drops steps that do not grow. "
                    f"Give a step from {last + 1} on, or none."
                )
            self._last_step[tag] = step
            return step


def whole_step(step: int) -> int:
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
