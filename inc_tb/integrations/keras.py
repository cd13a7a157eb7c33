"""Diagnoses in the logs of Keras' fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import Any

import keras

from inc_tb.advise.diagnose import diagnose
from inc_tb.errors import UsageError
from inc_tb.frameworks.arrays import as_array
from inc_tb.frameworks.models import open_pair, read_inputs
from inc_tb.frameworks.registry import describe
from inc_tb.integrations.own_run import KEEP_LAST, OwnRun
from inc_tb.integrations.samples import check_data, check_samples, first_batches
from inc_tb.integrations.training import Quantize, Watch, check_writer, default_samples, new_run
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.store.thinning import check_keep_last

_BATCH_SIZE = 32
"""Of fit, unless told otherwise; callbacks do not get to know it."""


class DiagnosisCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Compares the model, layer by layer, with a quantized one, every N epochs and at evaluations.

    With `quantize`, a function that quantizes a copy of the model (in place, or returning it), that is compared with
    the model as it is: `quantize=lambda model: model.quantize("int8")`. With the TensorFlow backend it may return a
    TFLite model, as its bytes or as a path. With `reference` the model in training is compared with that one; with
    neither, the model in training has fake quantization (TensorFlow), and is compared with itself without it.
    `data` is what the model takes, or batches of it, perhaps with labels as fit takes them; `samples` of it are used,
    by default 4.

    Logs go to `writer`, which may be keras' own TensorBoard callback, so that they join its run `train`; else to a run
    `quantization` in `log_dir`. The step is the epoch, as keras' TensorBoard callback has it. Models with the torch and
    the TensorFlow backend are taken.
    A run of its own keeps the last `keep_last` diagnoses (None: all), and the scalars of all steps.
    """

    def __init__(
        self,
        *,
        data: Any,
        every: int | None = None,
        at_evaluation: bool = True,
        reference: Any = None,
        quantize: Quantize | None = None,
        samples: int | None = None,
        writer: Any = None,
        keep_last: int | None = KEEP_LAST,
        log_dir: str | PathLike[str] = "logs",
    ) -> None:
        super().__init__()
        if reference is None and quantize is None and keras.backend.backend() != "tensorflow":
            raise UsageError("nothing to compare with was given; expected quantize=…, reference=…, or both.")
        check_samples(samples)
        check_data(data)
        check_keep_last(keep_last)
        self._keep_last = keep_last
        if writer is not None and not isinstance(writer, keras.callbacks.TensorBoard):
            check_writer(writer)
        self._watch = Watch(
            every=every, at_evaluation=at_evaluation, reference=reference, quantize=quantize, copied=_copied,
            compare=_compare,
        )  # fmt: skip
        self._data, self._samples = data, samples or default_samples(_BATCH_SIZE)
        self._writer, self._log_dir = writer, Path(log_dir)
        self._own: OwnRun | None = None
        self._batches: list[Any] | None = None
        self._epoch = 0
        self._is_waiting = False

    def on_train_begin(self, logs: Any = None) -> None:
        self._batches = None
        self._is_waiting = not self.model.built  # of the user's own class: its first batch tells what it takes
        if not self._is_waiting:
            self._begin()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._begin()

    def _begin(self) -> None:
        open_pair(self.model, self.model)  # whether such models can be read at all, before they are quantized
        self._watch.begin(self.model, self._epoch)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        self._watch.is_due(epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._watch.is_due(epoch + 1):
            self._log()

    def on_test_end(self, logs: Any = None) -> None:
        if self._watch.at_evaluation:
            self._log()

    def on_train_end(self, logs: Any = None) -> None:
        self._watch.end()
        if self._own is not None:
            self._own.close()
            self._own = None

    def _log(self) -> None:
        self._watch.log(self.model, self._inputs, self._target, self._epoch)

    def _inputs(self) -> Iterable[Any]:
        """The same ones at all steps, so that steps can be compared."""
        if self._batches is None:
            self._batches = first_batches(self._data, self._samples, _named)
        return self._batches

    def _target(self) -> Any:
        if isinstance(self._writer, keras.callbacks.TensorBoard):
            return self._writer._train_writer
        if self._writer is not None:
            return self._writer
        if self._own is None:
            self._own = OwnRun(new_run(self._log_dir), self._keep_last)
        return self._own


def _copied(model: Any) -> Any:
    has_lambdas = any(isinstance(layer, keras.layers.Lambda) for layer in model._flatten_layers())
    if has_lambdas and getattr(model, "inputs", None):
        copy = keras.models.clone_model(model, clone_function=_copied_layer, recursive=True)
    else:
        copy = keras.models.clone_model(model)
    if not copy.built:
        copy.build_from_config(model.get_build_config())
    copy.set_weights(model.get_weights())
    return copy


def _copied_layer(layer: Any) -> Any:
    """Out of its config, as clone_model does it; functions of Python do not survive that."""
    if not isinstance(layer, keras.layers.Lambda):
        return type(layer).from_config(layer.get_config())
    options = {"output_shape": layer._output_shape, "mask": layer.mask, "arguments": layer.arguments}
    return keras.layers.Lambda(layer.function, **options, name=layer.name, dtype=layer.dtype_policy)


def _compare(reference: Any, quantized: Any, batches: Iterable[Any]) -> Diagnosis:
    with ExitStack() as stack:
        models = reference, quantized
        if keras.backend.backend() == "torch":
            from inc_tb.integrations.keras_torch import as_modules

            models = stack.enter_context(as_modules(reference)), stack.enter_context(as_modules(quantized))
        else:
            batches = _as_called(quantized if reference is None else reference, batches)
        found = diagnose(*models, batches, previews=False)
    if reference is not None:
        found.reference = describe(reference)
    found.quantized = describe(quantized)
    return found


def _as_called(model: Any, batches: Iterable[Any]) -> Iterable[Any]:
    """The arrays of each batch under the names of the model's inputs, where that has other names for them."""
    names = [i.name for i in read_inputs(model)]
    return (
        dict(zip(names, batch.values(), strict=True))
        if set(batch) != set(names) and len(batch) == len(names)
        else batch
        for batch in batches
    )


def _named(batch: Any) -> Mapping[str, Any]:
    """What a model takes of a batch of fit, which may be (inputs, labels) or (inputs, labels, weights)."""
    inputs = batch[0] if isinstance(batch, tuple | list) else batch
    if isinstance(inputs, Mapping):
        return {str(name): as_array(array) for name, array in inputs.items()}
    arrays = inputs if isinstance(inputs, tuple | list) else [inputs]
    return {f"input_{i}": as_array(array) for i, array in enumerate(arrays)}
