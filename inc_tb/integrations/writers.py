"""Diagnoses into writers that are there already: torch.utils.tensorboard, tensorboardX and tf.summary."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary

from inc_tb.errors import UsageError
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.store import dashboards
from inc_tb.store.encoded import diagnosis_records
from inc_tb.store.writer import SummaryWriter, whole_step

_curves: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
"""Writer -> tags of the scalars that it was given."""


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
    begun = _begun(writer)
    scalars = dashboards.scalars_of(diagnosis, followed=begun)
    begun.update(value.tag for value in scalars)
    values = [
        *diagnosis_records(diagnosis),
        *scalars,
        *dashboards.histograms_of(diagnosis, "quantized"),
        *dashboards.histograms_of(diagnosis, "reference", tag="{}_fp32"),
        dashboards.summary_text(diagnosis),
    ]
    add(Summary(value=values), 0 if step is None else whole_step(step))


def log_histogram(writer: Any, tag: str, values: Any, step: int | None = None) -> None:
    """Add a histogram to a writer as `log_diagnosis` does; unlike torch's own, quantized tensors are taken."""
    if isinstance(writer, SummaryWriter):
        writer.add_histogram(tag, values, step)
        return
    summary = Summary(value=[dashboards.array_histogram(tag, values)])
    _adder(writer)(summary, 0 if step is None else whole_step(step))


def _begun(writer: Any) -> set[str]:
    try:
        return _curves.setdefault(writer, set())
    except TypeError:  # a writer that has no hash, or that nothing can refer to weakly
        return set()


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
