"""Neural Compressor 2.x: `quantization.fit`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from inc_tb.frameworks.ops import Batch
from inc_tb.integrations.neural_compressor.listening import listening
from inc_tb.integrations.neural_compressor.models import first_samples
from inc_tb.integrations.neural_compressor.patches import Function, replaced
from inc_tb.integrations.neural_compressor.trial_log import TrialLog, Tuning, spared
from inc_tb.records import Trial
from inc_tb.sources.neural_compressor.snapshot import reduce_range_of
from inc_tb.sources.neural_compressor.trials import Goal, accuracy_of, as_trial

_GIVEN = "_inc_tb_given"
_HEARD = "_inc_tb_heard"
_SMOOTHED = (
    "not diagnosed: SmoothQuant has moved scales from layer to layer before it quantized them, so that they cannot be "
    "compared with those of the fp32 model"
)


@contextmanager
def watch(logs: Callable[[], Sequence[TrialLog]]) -> Iterator[None]:
    """Every strategy tells what it adds to its history: first the baseline, then each trial."""
    from neural_compressor.strategy.strategy import TuneStrategy

    watched = _Watch(logs)
    with (
        replaced(TuneStrategy, "__init__", watched.begin),
        replaced(TuneStrategy, "_eval_baseline", watched.baseline),
        replaced(TuneStrategy, "traverse", watched.traverse),
        replaced(TuneStrategy, "_add_tuning_history", watched.add),
    ):
        yield


class _Watch:
    """Each method makes the function that stands in for one of a strategy."""

    def __init__(self, logs: Callable[[], Sequence[TrialLog]]) -> None:
        self._logs = logs

    def begin(self, begin: Function) -> Function:
        def watched(strategy: Any, *args: Any, **kwargs: Any) -> None:
            begin(strategy, *args, **kwargs)
            for log in self._logs():
                log.begin()
                if log.diagnose and not hasattr(strategy, _GIVEN):
                    with spared([log], "the fp32 model was not kept"):
                        setattr(strategy, _GIVEN, _given(strategy))

        return watched

    def baseline(self, evaluate: Function) -> Function:
        def watched(strategy: Any) -> None:
            if strategy.calib_dataloader is not None or not _is_torch(strategy):
                evaluate(strategy)
                return
            heard: list[Batch] = []
            setattr(strategy, _HEARD, heard)
            with listening(self._logs(), strategy.model.model, heard):
                evaluate(strategy)

        return watched

    def traverse(self, traverse: Function) -> Function:
        def watched(strategy: Any) -> Any:
            try:
                return traverse(strategy)
            except Exception as error:
                for log in self._logs():
                    log.failed(error, strategy.trials_count)
                raise

        return watched

    def add(self, add: Function) -> Function:
        def watched(strategy: Any, tune_cfg: Any = None, tune_result: Any = None, **kwargs: Any) -> None:
            add(strategy, tune_cfg, tune_result, **kwargs)
            for log in self._logs():
                with spared([log], "a trial was not logged"):
                    # The strategies of one fit hand on their history.
                    tuning = log.tuning(strategy.tuning_history, partial(_tuning, log, strategy))
                    if tune_cfg is None:
                        tuning.restart()
                    else:
                        describe = partial(_trial, strategy, tune_cfg, tune_result, kwargs.get("q_config"))
                        quantized = None if _is_smoothed(strategy, tune_cfg) else strategy.last_qmodel
                        tuning.add(tune_cfg["trial_number"], describe, quantized)

        return watched


def _given(strategy: Any) -> Any:
    """The user's model, in a form that stays as it is while Neural Compressor works on its own."""
    wrapped = strategy.model
    if wrapped.framework() == "onnxruntime":
        return wrapped.model_path or wrapped.model
    if _is_torch(strategy):
        # Without an evaluation it quantizes the only model that there is.
        return copy.deepcopy(wrapped.model) if strategy._not_tuning else wrapped.model
    return wrapped


def _is_torch(strategy: Any) -> bool:
    return bool(strategy.model.framework().startswith("pytorch"))


def _is_smoothed(strategy: Any, tune_cfg: Any) -> bool:
    """In place, which only PyTorch's models are."""
    return _is_torch(strategy) and bool((tune_cfg.get("recipe_cfgs") or {}).get("smooth_quant"))


def _tuning(log: TrialLog, strategy: Any) -> Tuning:
    reference = getattr(strategy, _GIVEN, strategy.model)
    known = (log.data, strategy.calib_dataloader, strategy.eval_dataloader, getattr(strategy, _HEARD, None) or None)
    source = next((given for given in known if given is not None), None)
    return Tuning(log, reference, lambda: first_samples(reference, source, log.samples))


def _trial(strategy: Any, tune_cfg: Any, result: Any, q_config: Any, name: str) -> Trial:
    """As the importer makes it of the history."""
    from neural_compressor import __version__

    config, tuning, asked = strategy.config, strategy.config.tuning_criterion, strategy.config.accuracy_criterion
    baseline = accuracy_of(strategy.baseline) if strategy.baseline else None
    goal = Goal(baseline, asked.tolerable_loss, asked.criterion == "relative", asked.higher_is_better)
    objectives = tuning.objective["objective"] if isinstance(tuning.objective, dict) else tuning.objective
    whole = {
        "tool": f"Neural Compressor {__version__}", "strategy": tuning.strategy, "approach": config.approach,
        "quant_format": config.quant_format,
        **reduce_range_of({"reduce_range": config.reduce_range}), **reduce_range_of(q_config),
    }  # fmt: skip
    trial = as_trial(name, goal, result, tune_cfg, objectives, whole)
    if _is_smoothed(strategy, tune_cfg):
        trial.notes.append(_SMOOTHED)
    return trial
