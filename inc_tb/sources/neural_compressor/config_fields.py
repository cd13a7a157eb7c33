"""Every field of a configuration of Neural Compressor that means something here, and what is said of the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from inc_tb.errors import UsageError
from inc_tb.sources.neural_compressor.config import TuningConfig
from inc_tb.sources.neural_compressor.snapshot import framework_named
from inc_tb.sources.neural_compressor.trials import FLOATS
from inc_tb.tuning.strategies.named import STRATEGIES

Take = Callable[[TuningConfig, str, Any], None]

_SHOWN = 60
_LEVELS = {0: "conservative", "auto": "auto"}
_OBJECTIVES = {"performance": "latency", "modelsize": "size", "footprint": "memory", "accuracy": ""}
_APPROACHES = {
    "static": False, "post_training_static_quant": False, "dynamic": True, "post_training_dynamic_quant": True,
}  # fmt: skip
_AUTO = ("auto", "post_training_auto_quant")
_ALGORITHMS = {"minmax": "minmax", "kl": "entropy", "percentile": "percentile"}
_USUAL: tuple[Any, ...] = (None, False, [], {}, "", "default", "auto", "cpu")
_ON_BY_DEFAULT = (
    "scale_propagation_max_pooling", "scale_propagation_concat", "first_conv_or_matmul_quantization",
    "last_conv_or_matmul_quantization", "pre_post_process_quantization", "gemm_to_matmul",
)  # fmt: skip


def take_over(config: TuningConfig, fields: Mapping[Any, Any]) -> None:
    """All that a configuration says: as arguments and options, or as notes."""
    labels: list[str] = []
    for path, value in _leaves(config, fields, ""):
        if path in _LABELS:
            labels.append(path)
        elif path in _TAKEN:
            _TAKEN[path](config, path, value)
        elif path in _SAID:
            config.notes.append(f"{path}: {_SAID[path]}")
        else:
            config.notes.append(f"{_told(path, value)} is not known here, and left out")
    if labels:
        has = "has" if len(labels) == 1 else "have"
        config.notes.append(f"{', '.join(labels)} {has} no effect here")
    _choose_strategy(config)


def _leaves(config: TuningConfig, fields: Mapping[Any, Any], above: str) -> Iterator[tuple[str, Any]]:
    """Only sections that we know are entered: what is in others may refer to itself."""
    for key, value in fields.items():
        path = f"{above}{str(key)[:_SHOWN]}"
        if value is None or (isinstance(value, Mapping | Sequence) and not value):
            continue  # not set
        if path not in _SECTIONS:
            yield path, value
        elif isinstance(value, Mapping):
            yield from _leaves(config, value, f"{path}.")
        elif path in _TAKEN:
            yield path, value
        else:
            raise _wrong(config, path, value, "names and values")


def _told(path: str, value: Any) -> str:
    is_short = isinstance(value, str | int | float) or (
        isinstance(value, list) and all(isinstance(item, str | int | float) for item in value)
    )
    text = " ".join(str(value).split()) if is_short else ""
    return f"{path}: {text if len(text) <= _SHOWN else text[:_SHOWN] + '…'}" if text else path


def _wrong(config: TuningConfig, path: str, value: Any, expected: str) -> UsageError:
    text = _told(path, value)
    given = text if ": " in text else f"{path}: a {type(value).__name__}"
    return UsageError(f"{config.source}: {given} was given; expected {expected}.")


def _set(config: TuningConfig, argument: str, path: str, value: Any, given: Any) -> None:
    if argument in config.arguments and config.arguments[argument] != value:
        raise UsageError(
            f"{config.source}: {_told(path, given)} was given beside {config.told[argument]}; expected one of them."
        )
    config.arguments[argument], config.told[argument] = value, _told(path, given)


def _want(config: TuningConfig, option: str, path: str, value: Any, given: Any) -> None:
    config.wanted[option], config.told[option] = value, _told(path, given)


# Values


def _number(config: TuningConfig, path: str, value: Any) -> float:
    """Also 1 %, and 1e-2, which YAML takes for a text."""
    text = value.strip() if isinstance(value, str) else value
    try:
        if isinstance(text, bool) or not isinstance(text, str | int | float):
            raise ValueError
        found = float(text[:-1]) / 100 if isinstance(text, str) and text.endswith("%") else float(text)
        if not math.isfinite(found) or found < 0:
            raise ValueError
    except (ValueError, OverflowError):
        raise _wrong(config, path, value, "a number, 0 or more") from None
    return found


def _whole(config: TuningConfig, path: str, value: Any, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise _wrong(config, path, value, f"a whole number, {least} or more")
    return value


def _flag(config: TuningConfig, path: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(config, path, value, "true or false")
    return value


def _one_of(config: TuningConfig, path: str, value: Any, known: Mapping[Any, Any] | Sequence[str]) -> Any:
    usable = isinstance(value, str | int | float) and not isinstance(value, bool)
    if not usable or value not in known:
        raise _wrong(config, path, value, " or ".join(str(name) for name in known))
    return value


def _several(value: Any) -> list[Any]:
    """A list, or "minmax, kl"."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    return list(value) if isinstance(value, list | tuple) else [value]


def _first(config: TuningConfig, path: str, value: Any) -> Any:
    """What is said of the others where a list leaves a choice; a float among them is the search's affair."""
    found = [item for item in _several(value) if not (isinstance(item, str) and item in FLOATS)]
    if len(found) > 1:
        config.notes.append(f"{_told(path, value)}: the tuning begins with the first, the others are not asked for")
    return found[0] if found else None


# Fields


def _take_loss(config: TuningConfig, path: str, value: Any) -> None:
    """`relative: 0.01` or `absolute: 0.01`."""
    kind = path.rpartition(".")[2]
    _set(config, "relative", path, kind == "relative", value)
    _set(config, "tolerance", path, _number(config, path, value), value)


def _take_tolerable(config: TuningConfig, path: str, value: Any) -> None:
    _set(config, "tolerance", path, _number(config, path, value), value)


def _take_criterion(config: TuningConfig, path: str, value: Any) -> None:
    _set(config, "relative", path, _one_of(config, path, value, ("relative", "absolute")) == "relative", value)


def _take_higher(config: TuningConfig, path: str, value: Any) -> None:
    _set(config, "higher_is_better", path, _flag(config, path, value), value)


def _take_timeout(config: TuningConfig, path: str, value: Any) -> None:
    _set(config, "timeout", path, _number(config, path, value), value)


def _take_whole(argument: str, least: int, config: TuningConfig, path: str, value: Any) -> None:
    _set(config, argument, path, _whole(config, path, value, least), value)


def _take_strategy(config: TuningConfig, path: str, value: Any) -> None:
    name = value.lower() if isinstance(value, str) else value  # no file.py:function: a configuration runs no code
    _set(config, "strategy", path, _one_of(config, path, name, STRATEGIES), value)


def _take_level(config: TuningConfig, path: str, value: Any) -> None:
    _one_of(config, path, value, {**_LEVELS, 1: ""})
    config.arguments["quant_level"], config.told["quant_level"] = value, _told(path, value)


def _choose_strategy(config: TuningConfig) -> None:
    """As Neural Compressor: a level but 1 goes before a strategy, which is basic where none is named."""
    level, told = config.arguments.pop("quant_level", None), config.told.pop("quant_level", "")
    if level is None:
        return
    named = config.arguments.get("strategy", "basic")
    chosen = _LEVELS.get(level, named)
    if chosen != named and named != "basic":
        config.notes.append(f"{told} goes before {config.told['strategy']}, as in Neural Compressor: {chosen}")
    if level != 1 or "strategy" not in config.told:
        config.told["strategy"] = told
    config.arguments["strategy"] = chosen


def _take_objective(config: TuningConfig, path: str, value: Any) -> None:
    names = value.get("objective") if isinstance(value, Mapping) else value
    if isinstance(value, Mapping) and value.get("weight"):
        config.notes.append(f"{path}: weights have no effect here; every objective is measured")
    found = [_OBJECTIVES[_one_of(config, path, name, _OBJECTIVES)] for name in _several(names)]
    _set(config, "objectives", path, tuple(name for name in found if name), names)


def _take_samples(config: TuningConfig, path: str, value: Any) -> None:
    first = _first(config, path, value)
    number = int(first) if isinstance(first, str) and first.isdecimal() else first
    _set(config, "samples", path, _whole(config, path, number, 1), value)


def _take_workspace(config: TuningConfig, path: str, value: Any) -> None:
    if not isinstance(value, str):
        raise _wrong(config, path, value, "the path of a folder")
    _set(config, "logdir", path, value, value)


def _take_framework(config: TuningConfig, path: str, value: Any) -> None:
    name = value if isinstance(value, str) else ""
    if name == "NA":
        return
    config.framework, config.told["framework"] = framework_named(name), _told(path, value)
    if not config.framework:
        raise _wrong(config, path, value, "a framework such as onnxrt_qlinearops, pytorch_fx, tensorflow or mxnet")
    if name.startswith("onnxrt_q"):
        _want(config, "format", path, "QDQ" if name == "onnxrt_qdq" else "QOperator", value)
    if name.startswith("onnxrt_integer"):
        _want(config, "dynamic", path, True, value)


def _take_approach(config: TuningConfig, path: str, value: Any) -> None:
    if value in _AUTO:
        config.notes.append(f"{_told(path, value)}: the tool's own choice is used, not the other one after it")
        return
    _want(config, "dynamic", path, _APPROACHES[_one_of(config, path, value, _APPROACHES)], value)


def _take_format(config: TuningConfig, path: str, value: Any) -> None:
    if _one_of(config, path, value, ("default", "QDQ", "QOperator")) != "default":
        _want(config, "format", path, value, value)


def _take_option(option: str, known: Mapping[Any, Any], config: TuningConfig, path: str, value: Any) -> None:
    first = _first(config, path, value)
    if first is not None:
        _want(config, option, path, known[_one_of(config, path, first, known)], value)


def _take_reduced(config: TuningConfig, path: str, value: Any) -> None:
    _want(config, "reduce-range", path, _flag(config, path, value), value)


def _take_recipes(config: TuningConfig, path: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise _wrong(config, path, value, "names and values")
    for name, wanted in value.items():
        if (wanted is not True if name in _ON_BY_DEFAULT else wanted not in _USUAL) and wanted is not None:
            config.notes.append(f"{_told(f'{path}.{str(name)[:_SHOWN]}', wanted)} is a recipe that is not carried out")


def _say_unusual(sentence: str, config: TuningConfig, path: str, value: Any) -> None:
    if value not in _USUAL:
        config.notes.append(f"{_told(path, value)}: {sentence}")


def _both(names: Sequence[str], take: Take) -> dict[str, Take]:
    return dict.fromkeys(names, take)


_ONLY_CPU = "models are quantized and evaluated by the runtime as it is installed; left out"
_TAKEN: Mapping[str, Take] = {
    **_both(("tuning.accuracy_criterion.relative", "tuning.accuracy_criterion.absolute",
             "accuracy_criterion.relative", "accuracy_criterion.absolute"), _take_loss),
    **_both(("tuning.accuracy_criterion.higher_is_better", "accuracy_criterion.higher_is_better"), _take_higher),
    "accuracy_criterion.criterion": _take_criterion,
    "accuracy_criterion.tolerable_loss": _take_tolerable,
    **_both(("tuning.exit_policy.timeout", "tuning_criterion.timeout"), _take_timeout),
    **_both(("tuning.exit_policy.max_trials", "tuning_criterion.max_trials"), partial(_take_whole, "max_trials", 1)),
    **_both(("tuning.strategy.name", "tuning_criterion.strategy"), _take_strategy),
    **_both(("quantization.quant_level", "quant_level"), _take_level),
    **_both(("tuning.objective", "tuning_criterion.objective", "tuning.multi_objectives"), _take_objective),
    **_both(("tuning.random_seed", "random_seed"), partial(_take_whole, "random_seed", 0)),
    **_both(("quantization.calibration.sampling_size", "calibration_sampling_size"), _take_samples),
    **_both(("tuning.workspace.path", "workspace", "workspace.path"), _take_workspace),
    **_both(("model.framework", "framework"), _take_framework),
    **_both(("quantization.approach", "approach"), _take_approach),
    "quant_format": _take_format,
    "reduce_range": _take_reduced,
    **_both(("quantization.recipes", "recipes"), _take_recipes),
    "quantization.model_wise.weight.granularity":
        partial(_take_option, "per-channel", {"per_channel": True, "per_tensor": False}),
    "quantization.model_wise.weight.dtype": partial(_take_option, "weight-type", {"int8": "int8", "uint8": "uint8"}),
    "quantization.model_wise.weight.bit": partial(_take_option, "reduce-range", {7: True, 8: False}),
    "quantization.model_wise.activation.scheme": partial(_take_option, "symmetric", {"sym": True, "asym": False}),
    "quantization.model_wise.activation.dtype":
        partial(_take_option, "activation-type", {"int8": "int8", "uint8": "uint8"}),
    "quantization.model_wise.activation.algorithm": partial(_take_option, "calibrator", _ALGORITHMS),
    **_both(("device", "backend"), partial(_say_unusual, _ONLY_CPU)),
    "tuning.exit_policy.performance_only":
        partial(_say_unusual, "every trial is evaluated, and the search goes on until the criterion holds"),
    "tuning.workspace.resume": partial(
        _say_unusual, "a snapshot of Neural Compressor cannot be gone on with; --resume goes on with a tuning of ours"
    ),
    "excluded_precisions": lambda config, path, value: None,  # there is no precision but int8 and fp32 here
    "use_bf16": lambda config, path, value: None,
}  # fmt: skip
_OPS = "settings of single ops are not taken over; the search decides which ops stay in fp32"
_NOT_DONE = "is not carried out; only quantization after training is"
_SAID: Mapping[str, str] = {
    "evaluation": "datasets and metrics that a file names are not built; the accuracy is what --eval returns",
    "quantization.calibration.dataloader": "is not built; what is calibrated with is what --data gives",
    "quantization.op_wise": _OPS, "quantization.optype_wise": _OPS, "op_name_dict": _OPS, "op_type_dict": _OPS,
    "quantization.train": _NOT_DONE, "quantization.advance": _NOT_DONE, "mixed_precision": _NOT_DONE,
    "graph_optimization": _NOT_DONE, "model_conversion": _NOT_DONE, "pruning": _NOT_DONE, "distillation": _NOT_DONE,
    "nas": _NOT_DONE, "train": _NOT_DONE,
    "tuning_criterion.strategy_kwargs": "strategies take no arguments here; left out",
}  # fmt: skip
_LABELS = (
    "version", "model.name", "model_name", "model.inputs", "model.outputs", "inputs", "outputs", "domain",
    "example_inputs", "tuning.tensorboard", "tuning.diagnosis", "diagnosis", "ni_workload_name",
)  # fmt: skip
_SECTIONS = {path[:at] for path in (*_TAKEN, *_SAID, *_LABELS) for at, sign in enumerate(path) if sign == "."}
