"""Diagnoses in the logs of a transformers Trainer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback
from transformers.integrations import TensorBoardCallback

from inc_tb.errors import UsageError
from inc_tb.integrations.own_run import KEEP_LAST, OwnRun
from inc_tb.integrations.samples import as_inputs, check_data, check_samples, first_batches
from inc_tb.integrations.training import Quantize, Watch, check_writer, default_samples, new_run
from inc_tb.store.thinning import check_keep_last


class DiagnosisCallback(TrainerCallback):  # type: ignore[misc]
    """Compares the model, op by op, with what it would be without quantization, every N steps and at evaluations.

    A model in quantization-aware training is compared with itself without fake quantization, unless there is a
    `reference`. With `quantize`, a function that quantizes a copy of the model (in place, or returning it), that is
    compared with the model as it is. `data` are batches, of which `samples` are used: by default those of the
    evaluation, before the first evaluation those of the training, and an eighth of a training batch.

    Logs go to `writer`, which may be a TensorBoardCallback; else to the run of `trainer`'s TensorBoardCallback; else
    to a run `quantization` in the folder of the logs. A callback cannot find its trainer by itself:
    `trainer.add_callback(DiagnosisCallback(every=100, trainer=trainer))`.
    A run of its own keeps the last `keep_last` diagnoses (None: all), and the scalars of all steps.
    """

    def __init__(
        self,
        *,
        every: int | None = None,
        at_evaluation: bool = True,
        reference: Any = None,
        quantize: Quantize | None = None,
        data: Any = None,
        samples: int | None = None,
        writer: Any = None,
        keep_last: int | None = KEEP_LAST,
        trainer: Trainer | None = None,
    ) -> None:
        self._watch = Watch(every=every, at_evaluation=at_evaluation, reference=reference, quantize=quantize)
        check_keep_last(keep_last)
        self._keep_last = keep_last
        check_samples(samples)
        if data is not None:
            check_data(data)
        if writer is not None and not isinstance(writer, TensorBoardCallback):
            check_writer(writer)
        if trainer is not None and not hasattr(trainer, "callback_handler"):
            raise UsageError(f"trainer={trainer!r} was given; expected the transformers.Trainer that is trained with.")
        self._data, self._samples = data, samples
        self._writer, self._trainer = writer, trainer
        self._own: OwnRun | None = None
        self._batches: list[Any] | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self._watch.begin(model, state.global_step)
        self._batches = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._watch.is_due(state.global_step):
            self._log(args, state, **kwargs)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._watch.at_evaluation:
            self._log(args, state, **kwargs)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._watch.end()
        if self._own is not None:
            self._own.close()
            self._own = None

    def _log(
        self,
        args: Any,
        state: Any,
        model: Any,
        train_dataloader: Any = None,
        eval_dataloader: Any = None,
        **kwargs: Any,
    ) -> None:
        if state.is_world_process_zero:
            loader = train_dataloader if eval_dataloader is None else eval_dataloader
            self._watch.log(
                model, lambda: self._inputs(args, model, loader), lambda: self._target(args, state), state.global_step
            )

    def _inputs(self, args: Any, model: Any, loader: Any) -> Iterable[Any]:
        """The same ones at all steps, so that steps can be compared."""
        if self._batches is None:
            source = loader if self._data is None else self._data
            samples = self._samples or default_samples(args.per_device_train_batch_size)
            labels = args.label_names or ()
            self._batches = first_batches(
                source, samples, lambda batch: as_inputs(_shifted(batch, model), model.forward, labels)
            )
        return self._batches

    def _target(self, args: Any, state: Any) -> Any:
        theirs = self._writer
        if theirs is None and self._trainer is not None:
            callbacks = self._trainer.callback_handler.callbacks
            theirs = next((c for c in callbacks if isinstance(c, TensorBoardCallback)), None)
        if isinstance(theirs, TensorBoardCallback):
            theirs = theirs.tb_writer
        if theirs is not None:
            return theirs
        if self._own is None:
            self._own = OwnRun(new_run(_folder(args, state)), self._keep_last)
        return self._own


def _folder(args: Any, state: Any) -> Path:
    """Where TensorBoardCallback makes its runs."""
    told = getattr(args, "logging_dir", None) or os.environ.get("TENSORBOARD_LOGGING_DIR")
    folder = Path(told).expanduser() if told else Path(args.output_dir, "runs")
    return folder / state.trial_name if state.is_hyper_param_search and state.trial_name else folder


def _shifted(batch: Any, model: Any) -> Any:
    """Models that translate make their decoder's input from the labels, which are left out."""
    shift = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if shift is None or not isinstance(batch, Mapping) or batch.get("decoder_input_ids") is not None:
        return batch
    return {**batch, "decoder_input_ids": shift(labels=batch["labels"])} if "labels" in batch else batch
