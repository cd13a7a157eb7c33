"""What Neural Compressor has tried, in our words. Its configs are the same in memory and in its files."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from inc_tb.records import Trial

NOT_EVALUATED = -1
"""The accuracy that it writes where there was no evaluation function."""
_NOT_EVALUATED = "Neural Compressor had no evaluation function: nothing says how accurate this model is"
_OBJECTIVES = {"performance": "evaluation_s", "footprint": "python_memory_mb", "modelsize": "size_mb"}
"""Its objectives, as what it measures: the whole evaluation, not one run; allocations of Python only."""
_SETTINGS = {
    "activation": ("dtype", "quant_mode", "scheme", "granularity", "algorithm"),
    "weight": ("dtype", "scheme", "granularity", "algorithm", "bits", "group_size"),
}
FLOATS = ("fp32", "bf16", "fp16", "fp8")
_ALWAYS = tuple(
    f"{side}_{name}" for side, names in _SETTINGS.items() for name in names if name not in ("bits", "group_size")
)


class Goal(NamedTuple):
    """What the user asked of the accuracy."""

    baseline: float | None
    tolerable_loss: float = 0.01
    is_relative: bool = True
    higher_is_better: bool = True

    @property
    def target(self) -> float | None:
        if self.baseline is None:
            return None
        loss = self.tolerable_loss * (abs(self.baseline) if self.is_relative else 1)
        return self.baseline - loss if self.higher_is_better else self.baseline + loss


def as_trial(
    name: str,
    goal: Goal,
    result: Any,
    tune_cfg: Mapping[Any, Any],
    objectives: Sequence[str] = (),
    config: Mapping[str, Any] | None = None,
) -> Trial:
    """`result` is (accuracy, [objective, …]) or the accuracy alone; `config` holds settings of the whole tuning."""
    accuracy, measured, notes = _split(result)
    named = {
        _OBJECTIVES.get(kind.lower(), kind): value
        for kind, value in zip(objectives, measured, strict=False)
        if value is not None
    }
    return Trial(
        name,
        accuracy,
        goal.baseline,
        fallback_of(tune_cfg),
        {**(config or {}), **settings_of(tune_cfg)},
        named if accuracy is not None else {},
        notes=notes,
        target=goal.target,
        lower_is_better=not goal.higher_is_better,
    )


def accuracy_of(result: Any) -> float | None:
    """Of (accuracy, [objective, …]), as for a trial."""
    return _split(result)[0]


def gap_notes(number: int, place: int) -> list[str]:
    """What is worth saying where the number of a trial is not its place."""
    if number == place:
        return []
    return [
        f"trial {number} of Neural Compressor is number {place} of its history: configs that it had tried before were "
        "counted, but left out"
    ]


def fallback_of(tune_cfg: Mapping[Any, Any]) -> list[str]:
    """Ops that are not quantized, in the order of the config."""
    return [op for op, _, config in op_configs(tune_cfg) if precision_of(config) in FLOATS]


def precision_of(config: Mapping[str, Any]) -> str:
    """That of the op's activations, or of its weights where only those are quantized."""
    activation, weight = (text_of(part_of(config, side).get("dtype")) for side in ("activation", "weight"))
    if activation in FLOATS and weight and weight not in FLOATS:
        return weight
    return activation or weight


def settings_of(tune_cfg: Mapping[Any, Any]) -> dict[str, Any]:
    """One value a setting, or all that occur among quantized ops, the most frequent first; always the same names."""
    quantized = [config for _, _, config in op_configs(tune_cfg) if precision_of(config) not in FLOATS]
    found: dict[str, Any] = dict.fromkeys(_ALWAYS, "")
    for side, names in _SETTINGS.items():
        for name in names:
            counted = Counter(value for config in quantized if (value := text_of(part_of(config, side).get(name))))
            if counted:
                found[f"{side}_{name}"] = " / ".join(value for value, _ in counted.most_common())
    samples = number_of(tune_cfg.get("calib_sampling_size"))
    found["calibration_samples"] = "" if samples is None else int(samples)
    recipes = tune_cfg.get("recipe_cfgs")
    for name, value in sorted(recipes.items(), key=lambda item: str(item[0])) if isinstance(recipes, Mapping) else ():
        if isinstance(value, bool | int | float | str):
            found[str(name)] = value
    return found


def op_configs(tune_cfg: Mapping[Any, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Name, type and config of every op that it could have quantized."""
    ops = tune_cfg.get("op")
    for key, config in ops.items() if isinstance(ops, Mapping) else ():
        name, kind = key if isinstance(key, tuple) and len(key) == 2 else (key, "")
        if isinstance(config, Mapping):
            yield str(name), str(kind), config


def part_of(config: Mapping[str, Any], side: str) -> Mapping[str, Any]:
    """What an op's config says about its activation or its weight."""
    found = config.get(side)
    return found if isinstance(found, Mapping) else {}


def _split(result: Any) -> tuple[float | None, list[float | None], list[str]]:
    """Accuracy, objectives, and what is odd about them. Several metrics are several accuracies, of which one counts."""
    accuracy, measured = result if isinstance(result, tuple | list) and len(result) == 2 else (result, [])
    notes, accuracies = [], _flat(accuracy)
    if len(accuracies) > 1:
        told = ", ".join(str(number_of(value)) for value in accuracies)
        notes = [f"several metrics were evaluated ({told}); the first one is the accuracy here"]
    number = number_of(accuracies[0]) if accuracies else None
    objectives = [number_of(value) for value in _flat(measured)]
    if number == NOT_EVALUATED and objectives in ([], [0]):
        return None, [], [_NOT_EVALUATED]
    if number is None:
        notes.append("the evaluation gave no finite number")
    return number, objectives, notes


def _flat(measured: Any) -> list[Any]:
    found = measured.tolist() if hasattr(measured, "tolist") else measured
    return list(found) if isinstance(found, list | tuple) else [found]


def text_of(value: Any) -> str:
    """Of a setting; "" for what is none, which may take any time to print."""
    return str(value) if isinstance(value, str | bool | int | float) else ""


def number_of(value: Any) -> float | None:
    """Where it is one, and finite."""
    try:
        found = float(value) if isinstance(value, bool | int | float | str) or hasattr(value, "__float__") else math.nan
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None
