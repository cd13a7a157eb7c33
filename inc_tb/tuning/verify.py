"""The first suggestion of a diagnosis, carried out by the framework's own tool, and what that gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from inc_tb.advise.configs import is_setting
from inc_tb.data import take
from inc_tb.errors import IncTbError, ModelError, UsageError, first_line
from inc_tb.frameworks.feeds import count_rows
from inc_tb.frameworks.models import open_results, read_inputs
from inc_tb.frameworks.ops import Array, Batch
from inc_tb.frameworks.protocols import MOST_SAMPLES, Quantizer
from inc_tb.frameworks.registry import framework_of
from inc_tb.locks import TemporaryFolder
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.records import Suggestion, short_repr
from inc_tb.search.comparison import Comparison, Expected
from inc_tb.tuning.calibration import calibration_data
from inc_tb.tuning.files import suffix_by
from inc_tb.tuning.objectives import Evaluate, finite_number, told_by

_OTHERWISE = 2.0
"""An error this many times larger or smaller than that of the given model is one of another model."""
_USUAL = 1e-3
"""What makes no difference."""


@dataclass
class Verified:
    """Forms of the model: "fp32", "given", "quantized anew" in the same way, and "with suggestion 1"."""

    __repr__ = short_repr

    ops: list[str]
    """In fp32, or at which the setting is changed."""
    settings: dict[str, Any]
    """With which the tool has quantized."""
    assumed: list[str]
    """What no model shows."""
    comparison: dict[str, Comparison] = field(default_factory=dict)
    accuracy: dict[str, float] = field(default_factory=dict)
    """Where it was to be evaluated."""

    @property
    def is_alike(self) -> bool:
        """Whether the model that is quantized anew is as far from fp32 as the one that was given."""
        return is_alike(self.comparison[ANEW], self.comparison[GIVEN])


FP32, GIVEN, ANEW, CURED = "fp32", "given", "quantized anew", "with suggestion 1"


def verify(model: Any, quantized: Any, data: Any, diagnosis: Diagnosis, evaluate: Evaluate | None = None) -> Verified:
    """Quantizes the fp32 model as it was, as far as that shows, once more and once with the first suggestion.

    `data` calibrate it, and its outputs are compared on the first of them. `evaluate` gets every form and returns a
    number.
    """
    suggestion = diagnosis.cure
    if suggestion is None:
        raise UsageError(f"there is no suggestion to verify: {diagnosis.why_no_suggestion}.")
    framework = framework_of(model)
    quantizer = framework.make_quantizer(framework.read_settings(quantized, diagnosis.ops))
    kept = kept_already(diagnosis)
    changed, more = _asked_for(quantizer, suggestion, diagnosis)
    with TemporaryFolder("verify") as folder:
        prepared = quantizer.prepare(model, Path(folder))
        calibration = calibration_data(prepared, data, None)
        made = {ANEW: (quantizer.settings, kept), CURED: (changed, list(dict.fromkeys([*kept, *more])))}
        forms: dict[str, Any] = {FP32: given(model), GIVEN: given(quantized)}
        for name, (settings, keep) in made.items():
            target = Path(folder, f"{name}{suffix_by(quantizer, prepared)}".replace(" ", "-"))
            forms[name] = quantized_with(quantizer, prepared, target, calibration, settings, keep)
        found = Verified(list(suggestion.ops), dict(changed), _assumed(quantizer, kept))
        found.comparison = compared(forms, take(calibration, MOST_SAMPLES, read_inputs(prepared)))
        if evaluate is not None:
            shown = getattr(quantizer, "shown", lambda form: form)
            own = {name: shown(form) if name in made else form for name, form in forms.items()}
            found.accuracy = {
                n: finite_number(told_by("evaluate", evaluate, form), "evaluate") for n, form in own.items()
            }
    return found


def is_alike(one: Comparison, other: Comparison) -> bool:
    mine, theirs = one.error + _USUAL, other.error + _USUAL
    return max(mine, theirs) <= _OTHERWISE * min(mine, theirs)


def given(model: Any) -> Any:
    return Path(model) if isinstance(model, str | PathLike) else model


def kept_already(diagnosis: Diagnosis) -> list[str]:
    """Ops with weights that are in fp32, where others of their type are not."""
    columns = (diagnosis.ops[name] for name in ("name", "type", "params", "weight_dtype"))
    rows = [(str(n), str(kind), params, str(dtype)) for n, kind, params, dtype in zip(*columns, strict=True)]
    types = {kind for _, kind, _, dtype in rows if dtype}
    return [name for name, kind, params, dtype in rows if kind in types and params > 0 and not dtype]


def _asked_for(
    quantizer: Quantizer, suggestion: Suggestion, diagnosis: Diagnosis
) -> tuple[Mapping[str, Any], Sequence[str]]:
    """Settings, and ops to keep in fp32."""
    settings = quantizer.settings
    if not is_setting(diagnosis.framework, diagnosis.ops, suggestion):
        return settings, suggestion.ops
    if settings.get("per_channel") is False:
        return {**settings, "per_channel": True}, ()
    raise UsageError(f"suggestion 1 is a setting that {type(quantizer).__name__} does not have; paste its config.")


def quantized_with(
    quantizer: Quantizer, prepared: Any, target: Path, calibration: Any, settings: Mapping[str, Any],
    keep: Sequence[str],
) -> Any:  # fmt: skip
    try:
        made = quantizer.quantize(prepared, target, calibration, settings, keep)
    except IncTbError:
        raise
    except Exception as error:  # a quantizer of others may raise anything
        raise ModelError(f"the quantizer failed: {type(error).__name__}: {first_line(error)}") from error
    return target if made is None else made


def compared(forms: Mapping[str, Any], batches: Sequence[Batch]) -> dict[str, Comparison]:
    results: dict[str, list[list[Array]]] = {}
    for name, form in forms.items():
        run = open_results(form)
        results[name] = [[np.asarray(array) for array in run(batch)] for batch in batches]
    last = framework_of(forms[FP32]).channels_last
    expected = Expected(results[FP32], [count_rows(batch) for batch in batches], channels_last=last)
    return {name: expected.compared(found) for name, found in results.items()}


def _assumed(quantizer: Quantizer, kept: Sequence[str]) -> list[str]:
    """What a quantized model does not tell of how it was made."""
    found = ["calibrated with the data given"]
    calibrator = quantizer.settings.get("calibrator")
    found += [f"calibrator {calibrator}"] if calibrator else []
    if "reduce_range" in quantizer.settings:
        found.append("8 bits for all" if not quantizer.settings["reduce_range"] else "one bit less (reduce_range)")
    found += [f"in fp32 as before: {', '.join(kept)}"] if kept else []
    return found
