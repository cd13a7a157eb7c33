"""What the callbacks have in common: when to diagnose, what to compare, and that training never suffers from it."""

from __future__ import annotations

import copy
import itertools
import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from inc_tb.advise.diagnose import diagnose
from inc_tb.errors import IncTbError, UsageError
from inc_tb.frameworks.models import open_pair
from inc_tb.integrations.writers import log_diagnosis
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.store.writer import SummaryWriter

Quantize = Callable[[Any], Any]
Compare = Callable[[Any, Any, Iterable[Any]], Diagnosis]
_SHARE = 8
"""A diagnosis runs the model three times and a bit, and takes statistics of every value: with an eighth of a training
batch that costs less than a forward pass of all of it. What is left, in small networks most of it, is the same for any
number of samples: some milliseconds an op."""


def default_samples(batch_size: Any) -> int:
    return max(1, batch_size // _SHARE) if isinstance(batch_size, int) else 1


def evaluated_copy(model: Any) -> Any:
    """For functions that quantize in place; those of torch want a model in evaluation mode."""
    return copy.deepcopy(model).eval()


class Watch:
    """Diagnoses a model in training now and then.

    Configuration that cannot work raises when training begins. What goes wrong later is a warning, once for each
    reason, and training goes on.
    """

    def __init__(
        self,
        *,
        every: int | None,
        at_evaluation: bool,
        reference: Any,
        quantize: Quantize | None,
        copied: Callable[[Any], Any] = evaluated_copy,
        compare: Compare = diagnose,
    ) -> None:
        if every is not None and (not isinstance(every, int) or isinstance(every, bool) or every < 1):
            raise UsageError(f"every={every!r} was given; expected a whole number from 1 on, or None.")
        if every is None and not at_evaluation:
            raise UsageError("nothing would be diagnosed; expected every=N, at_evaluation=True, or both.")
        if quantize is not None and not callable(quantize):
            raise UsageError(
                f"quantize={quantize!r} was given; expected a function that takes the model and quantizes it."
            )
        self.at_evaluation = at_evaluation
        self._every = every
        self._reference = reference
        self._quantize = quantize
        self._copied, self._compare = copied, compare
        self._is_training = False
        self._done = 0
        self._step: int | None = None
        self._last: dict[Any, int] = {}
        self._warned: set[str] = set()

    def begin(self, model: Any, done: int = 0) -> None:
        """Raise unless there is something to compare; `done` is how many steps were made before."""
        self._warned.clear()
        self._done, self._step = done, None
        _refuse_shards(model)
        with undisturbed():
            try:
                open_pair(*self._pair(model))
            except IncTbError:
                raise
            except Exception as error:  # the user's own model may raise anything
                raise UsageError(f"the model cannot be diagnosed: {reason_of(error)}") from error
        self._is_training = True

    def end(self) -> None:
        self._is_training = False

    def is_due(self, done: int) -> bool:
        """Whether a multiple of `every` was reached since it was asked last; a step may count for several."""
        before, self._done = self._done, done
        return self._every is not None and done // self._every > before // self._every

    def log(self, model: Any, batches: Callable[[], Iterable[Any]], writer: Callable[[], Any], step: int) -> None:
        """Diagnose and log, unless that was done at this step; nothing is raised, and no run is begun for nothing."""
        if not self._is_training or step == self._step:
            return
        self._step = step
        try:
            with undisturbed():
                found = self._compare(*self._pair(model), batches())
                target = writer()
                if self._is_next(target, step):
                    log_diagnosis(target, found, step)
        except Exception as error:  # noqa: BLE001  days of training are worth more than a diagnosis
            self._warn(f"no quantization diagnosis, training goes on: {reason_of(error)}")

    def _pair(self, model: Any) -> tuple[Any, Any]:
        if self._quantize is None:
            return self._reference, model
        return model if self._reference is None else self._reference, self._quantized(model, self._quantize)

    def _quantized(self, model: Any, quantize: Quantize) -> Any:
        try:
            given = self._copied(model)
        except Exception as error:
            raise UsageError(
                f"the model cannot be copied: {reason_of(error).rstrip('.')}; expected a model that can, as quantize=… "
                "gets a copy. Keras models of your own class need a get_config, others deepcopy."
            ) from error
        try:
            made = quantize(given)
        except Exception as error:
            raise UsageError(
                f"quantize={quantize!r} failed: {reason_of(error)}; expected a function that takes a copy of the model "
                "and returns it quantized, or changes it in place."
            ) from error
        return given if made is None else made

    def _is_next(self, writer: Any, step: int) -> bool:
        place = _place(writer)
        last = self._last.get(place, -1)
        if step < last:
            self._warn(f"step {step} comes after step {last} in {place}; give every training a writer of its own.")
        if step <= last:
            return False
        self._last[place] = step
        return True

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, RuntimeWarning, stacklevel=2)


def check_writer(writer: Any) -> None:
    """Raise unless log_diagnosis will take it."""
    if not isinstance(writer, SummaryWriter) and not any(
        hasattr(writer, n) for n in ("_get_file_writer", "as_default")
    ):
        raise UsageError(
            f"writer={writer!r} was given; expected a SummaryWriter of torch.utils.tensorboard, tensorboardX or "
            "inc_tb, or a writer of tf.summary.create_file_writer."
        )


def new_run(parent: Path) -> Path:
    """A folder that no other training writes to."""
    for count in itertools.count(1):
        folder = parent / ("quantization" if count == 1 else f"quantization-{count}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise AssertionError


@contextmanager
def undisturbed() -> Iterator[None]:
    """Random numbers go on afterwards as if nothing had happened; torch's inference mode, which loops put around an
    evaluation, does not reach inside.
    """
    torch = sys.modules.get("torch")  # whoever trains with it has loaded it
    own, theirs = random.getstate(), np.random.get_state()
    with ExitStack() as stack:
        if torch is not None:
            devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
            stack.enter_context(torch.random.fork_rng(devices=devices))
            stack.enter_context(torch.inference_mode(False))
        try:
            yield
        finally:
            random.setstate(own)
            np.random.set_state(theirs)


def _place(writer: Any) -> Any:
    """Where a writer writes: two writers of one folder must not log the same step."""
    if isinstance(writer, SummaryWriter):
        return str(writer.logdir)
    known = (getattr(writer, name, None) for name in ("log_dir", "logdir"))
    return next((found for found in known if isinstance(found, str)), repr(writer))


def _refuse_shards(model: Any) -> None:
    """One process alone cannot run a model whose parameters are spread over all; the others would not answer."""
    modules = getattr(model, "modules", tuple)
    parameters = getattr(model, "parameters", tuple)
    if any(type(m).__name__ == "FullyShardedDataParallel" for m in modules()) or any(
        hasattr(p, "ds_id") or hasattr(p, "placements") for p in parameters()
    ):
        raise UsageError(
            "the model's parameters are spread over several processes (FSDP, DeepSpeed ZeRO-3 or tensor parallel); "
            "expected a whole model in each. Train with DDP, or diagnose saved checkpoints with inc_tb.diagnose."
        )


def reason_of(error: Exception) -> str:
    """In one line."""
    lines = str(error).strip().splitlines()
    first = lines[0] if lines else ""
    return first if isinstance(error, IncTbError) else f"{type(error).__name__}: {first}"
