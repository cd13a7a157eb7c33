"""Diagnoses in the logs of a Lightning Trainer, of the package lightning or pytorch_lightning."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from inc_tb.errors import UsageError
from inc_tb.integrations.own_run import KEEP_LAST, OwnRun
from inc_tb.integrations.samples import as_inputs, batch_size, check_data, check_samples, first_batches
from inc_tb.integrations.training import Quantize, Watch, check_writer, default_samples, new_run
from inc_tb.store.thinning import check_keep_last

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _base() -> Any:
    """The Callback of the package that is in use; they are twins, and a trainer takes either."""
    loaded = next((sys.modules[name] for name in _PACKAGES if sys.modules.get(name) is not None), None)
    if loaded is None:
        try:
            loaded = importlib.import_module(_PACKAGES[0])
        except ModuleNotFoundError:
            loaded = importlib.import_module(_PACKAGES[1])
    return loaded.Callback


class DiagnosisCallback(_base()):  # type: ignore[misc]
    """Compares the model, op by op, with what it would be without quantization, every N steps and at validations.

    A model in quantization-aware training is compared with itself without fake quantization, unless there is a
    `reference`. With `quantize`, a function that quantizes a copy of the model (in place, or returning it), that is
    compared with the model as it is. `model` is the name of the part of the LightningModule to compare, such as "net";
    by default all of it. `data` are batches, of which `samples` are used: by default those of the validation, without
    one those of the training, and an eighth of a training batch.

    Logs go to `writer`, else to the trainer's TensorBoardLogger, else to a run `quantization` in its default_root_dir.
    A run of its own keeps the last `keep_last` diagnoses (None: all), and the scalars of all steps.
    """

    def __init__(
        self,
        *,
        every: int | None = None,
        at_evaluation: bool = True,
        reference: Any = None,
        quantize: Quantize | None = None,
        model: str = "",
        data: Any = None,
        samples: int | None = None,
        writer: Any = None,
        keep_last: int | None = KEEP_LAST,
    ) -> None:
        super().__init__()
        self._watch = Watch(every=every, at_evaluation=at_evaluation, reference=reference, quantize=quantize)
        check_keep_last(keep_last)
        self._keep_last = keep_last
        check_samples(samples)
        if data is not None:
            check_data(data)
        if writer is not None:
            check_writer(writer)
        self._part = model
        self._data, self._samples, self._writer = data, samples, writer
        self._own: OwnRun | None = None
        self._batches: list[Any] | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._watch.begin(self._model(pl_module), trainer.global_step)
        self._batches = None

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any, **kwargs: Any) -> None:
        if self._watch.is_due(trainer.global_step):
            self._log(trainer, pl_module)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if self._watch.at_evaluation and not trainer.sanity_checking:
            self._log(trainer, pl_module)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._end()

    def _end(self) -> None:
        self._watch.end()
        if self._own is not None:
            self._own.close()
            self._own = None

    def _model(self, pl_module: Any) -> Any:
        try:
            return pl_module.get_submodule(self._part)
        except AttributeError as error:
            names = [name for name, _ in pl_module.named_children()]
            raise UsageError(f"model={self._part!r} was given; the LightningModule has the parts {names}.") from error

    def _log(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_global_zero and not trainer.fast_dev_run:
            model = self._model(pl_module)
            self._watch.log(
                model, lambda: self._inputs(trainer, model), lambda: self._target(trainer), trainer.global_step
            )

    def _inputs(self, trainer: Any, model: Any) -> Iterable[Any]:
        """The same ones at all steps, so that steps can be compared."""
        if self._batches is None:
            training, validation = _first_loader(trainer.train_dataloader), _first_loader(trainer.val_dataloaders)
            sources = (self._data, validation, training)
            source = next(given for given in sources if given is not None)
            samples = self._samples or default_samples(batch_size(training))
            self._batches = first_batches(source, samples, lambda batch: as_inputs(batch, model.forward))
        return self._batches

    def _target(self, trainer: Any) -> Any:
        if self._writer is not None:
            return self._writer
        theirs = next((logger for logger in trainer.loggers if _is_tensorboard(logger)), None)
        if theirs is not None:
            return theirs.experiment
        if self._own is None:
            self._own = OwnRun(new_run(Path(trainer.default_root_dir)), self._keep_last)
        return self._own


def _is_tensorboard(logger: Any) -> bool:
    return any(kind.__name__ == "TensorBoardLogger" for kind in type(logger).__mro__)


def _first_loader(loaders: Any) -> Any:
    """Trainers take several, in lists and mappings."""
    if isinstance(loaders, Mapping):
        loaders = list(loaders.values())
    if isinstance(loaders, list | tuple):
        return _first_loader(loaders[0]) if loaders else None
    return loaders
