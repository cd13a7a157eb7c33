"""Neural Compressor 3.x and onnx-neural-compressor: `autotune`.

The three of them are alike: a TuningMonitor is made, a wrapper evaluates the fp32 model, the monitor is told this
baseline; then, for each trial, a function quantizes, the wrapper evaluates, and the monitor is told the result.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any

from inc_tb.frameworks.ops import Batch
from inc_tb.integrations.neural_compressor.configs import fallback_of, settings_of
from inc_tb.integrations.neural_compressor.listening import listening
from inc_tb.integrations.neural_compressor.models import first_samples
from inc_tb.integrations.neural_compressor.patches import Function, replaced
from inc_tb.integrations.neural_compressor.trial_log import TrialLog, Tuning, spared
from inc_tb.records import Trial
from inc_tb.sources.neural_compressor.trials import Goal, number_of

Logs = Callable[[], Sequence[TrialLog]]
_QUANTIZE = {
    "neural_compressor.torch.quantization.autotune": "quantize",
    "neural_compressor.tensorflow.quantization.autotune": "quantize_model",
    "onnx_neural_compressor.quantization.tuning": "_quantize",
}
"""Where each `autotune` looks up the function that quantizes, which is given the calibration data."""


@contextmanager
def watch(logs: Logs) -> Iterator[None]:
    from neural_compressor import __version__
    from neural_compressor.common import base_tuning

    with _Watch(logs, f"Neural Compressor {__version__}", first=1).on(base_tuning):
        yield


@contextmanager
def watch_onnx(logs: Logs) -> Iterator[None]:
    from onnx_neural_compressor.quantization import tuning

    with _Watch(logs, f"onnx-neural-compressor {version('onnx-neural-compressor')}", first=0).on(tuning):
        yield


@dataclass
class _Autotune:
    """One call, as far as it has come."""

    reference: Any = None
    is_evaluated: bool = False
    """Whether the fp32 model is; what comes next are the models of the trials."""
    evaluated: Any = None
    """The model of the trial that is about to end."""
    kept: list[str] | None = None
    """What this trial leaves in fp32, where that is known."""
    source: Any = None
    """A calibration dataloader or data reader."""
    heard: dict[str, list[Batch]] = field(default_factory=dict)
    """What a PyTorch model was called with by the calibration, which is a function, and by the evaluation."""


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.given: Any = None
        """The model of the `autotune` that was called last, where that is known."""
        self.autotune = _Autotune()
        """The last one that began."""


class _Watch:
    """Each method makes the function that stands in for one of Neural Compressor's."""

    def __init__(self, logs: Logs, tool: str, first: int) -> None:
        """`first` is the number that the tool gives to its first trial."""
        self._logs, self._tool, self._first = logs, tool, first
        self._thread = _OfThread()
        self._stack = ExitStack()
        self._known: set[str] = set()

    @property
    def _now(self) -> _Autotune:
        return self._thread.autotune

    @contextmanager
    def on(self, module: Any) -> Iterator[None]:
        with self._stack as stack:
            stack.enter_context(replaced(module.TuningMonitor, "__init__", self._begin))
            stack.enter_context(replaced(module.TuningMonitor, "set_baseline", self._set_baseline))
            stack.enter_context(replaced(module.TuningMonitor, "add_trial_result", self._add))
            stack.enter_context(replaced(module.EvaluationFuncWrapper, "evaluate", self._evaluate))
            if hasattr(module, "autotune"):
                stack.enter_context(replaced(module, "autotune", self._autotune))
            yield

    def _autotune(self, autotune: Function) -> Function:
        def watched(model_input: Any, *args: Any, **kwargs: Any) -> Any:
            """Of onnx-neural-compressor, which goes on with an optimized copy where ops have other names."""
            self._thread.given = model_input
            try:
                return autotune(model_input, *args, **kwargs)
            finally:
                self._thread.given = None

        return watched

    def _begin(self, begin: Function) -> Function:
        def watched(monitor: Any, *args: Any, **kwargs: Any) -> None:
            begin(monitor, *args, **kwargs)
            self._thread.autotune = _Autotune(self._thread.given)
            for log in self._logs():
                log.drop()
                log.begin()
            with spared(self._logs(), "the calibration is not seen"):
                for module in _QUANTIZE.keys() & sys.modules.keys() - self._known:  # whoever tunes has loaded one
                    self._known.add(module)
                    self._stack.enter_context(replaced(sys.modules[module], _QUANTIZE[module], self._quantize))

        return watched

    def _evaluate(self, evaluate: Function) -> Function:
        def watched(wrapper: Any, model: Any) -> Any:
            now, is_wanted = self._now, any(log.diagnose for log in self._logs())
            if now.is_evaluated:
                now.evaluated = model if is_wanted else None
                return evaluate(wrapper, model)
            now.is_evaluated = True
            if is_wanted and now.reference is None:
                now.reference = model
            with self._listening(model, "evaluation"):
                return evaluate(wrapper, model)

        return watched

    def _set_baseline(self, set_baseline: Function) -> Function:
        def watched(monitor: Any, baseline: Any) -> None:
            set_baseline(monitor, baseline)
            for log in self._logs():
                with spared([log], "a tuning was not seen"):
                    self._tuning(log, monitor).restart()

        return watched

    def _quantize(self, quantize: Function) -> Function:
        def watched(model: Any, quant_config: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("run_fn") is not None:
                kwargs["run_fn"] = self._calibrate(kwargs["run_fn"])
            self._now.source = args[0] if args else kwargs.get("calibration_data_reader")
            self._now.kept = None
            with spared(self._logs(), "what stays in fp32 is not known"):
                self._now.kept = fallback_of(quant_config, model)
            return quantize(model, quant_config, *args, **kwargs)

        return watched

    def _calibrate(self, run: Function) -> Function:
        def watched(model: Any, *args: Any) -> Any:
            with self._listening(model, "calibration"):
                return run(model, *args)

        return watched

    def _add(self, add: Function) -> Function:
        def watched(monitor: Any, trial_index: int, trial_result: Any, quant_config: Any) -> None:
            add(monitor, trial_index, trial_result, quant_config)
            for log in self._logs():
                with spared([log], "a trial was not logged"):
                    describe = partial(self._trial, monitor, trial_result, quant_config)
                    self._tuning(log, monitor).add(trial_index - self._first + 1, describe, self._now.evaluated)
            self._now.evaluated = None

        return watched

    def _tuning(self, log: TrialLog, monitor: Any) -> Tuning:
        now, reference = self._now, self._now.reference

        def batches() -> list[Batch]:
            if log.data is not None:
                return first_samples(reference, log.data, log.samples)
            heard = now.heard.get("calibration") or now.heard.get("evaluation")
            source = heard or now.source
            return first_samples(reference, _Read(source) if hasattr(source, "get_next") else source, log.samples)

        return log.tuning(monitor, lambda: Tuning(log, reference, batches))

    def _trial(self, monitor: Any, result: Any, quant_config: Any, name: str) -> Trial:
        goal = Goal(number_of(monitor.baseline), monitor.tuning_config.tolerable_loss)
        accuracy, kept = number_of(result), self._now.kept
        return Trial(
            name,
            accuracy,
            goal.baseline,
            kept or [],
            {"tool": self._tool, **settings_of(quant_config, monitor.tuning_config.config_set)},
            notes=[
                *([] if accuracy is not None else ["the evaluation gave no finite number"]),
                *([] if kept is not None else ["what stays in fp32 is not known"]),
            ],
            target=goal.target,
        )

    def _listening(self, model: Any, what: str) -> AbstractContextManager[None]:
        """The first time only."""
        if what in self._now.heard:
            return nullcontext()
        heard = self._now.heard[what] = []
        return listening(self._logs(), model, heard)


class _Read:
    """The batches of a calibration data reader of ONNX, which begins anew for the next trial, too."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def __iter__(self) -> Iterator[Any]:
        self._reader.rewind()
        while (batch := self._reader.get_next()) is not None:
            yield batch
