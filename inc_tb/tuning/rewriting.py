"""The cause of the first suggestion, taken away by a rewrite of the fp32 model: what no op has to stay in fp32 for."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from inc_tb.data import take
from inc_tb.frameworks.memory import free_bytes
from inc_tb.frameworks.models import measure_size, read_inputs
from inc_tb.frameworks.protocols import MOST_SAMPLES
from inc_tb.frameworks.registry import framework_of
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.records import Rewrite, short_repr
from inc_tb.search.comparison import Comparison
from inc_tb.tuning.applying import as_text
from inc_tb.tuning.calibration import calibration_data
from inc_tb.tuning.files import suffix_by, suffix_of
from inc_tb.tuning.verify import compared, given, is_alike, kept_already, quantized_with

FILE = "without_fp32.rewrites.json"
_CAUSES = {"outlier_channels", "mask_constant", "clipped_range", "smallest_set", "measured_set"}
"""Rules that find what a rewrite may take away, and sets that have no name for it."""
_COPIES = 8
"""Of the fp32 model, that the memory must have room for: prepared, rewritten, quantized twice, and run."""
_WORTH = 0.5
"""Of the error, what has to go."""
_FP32, _GIVEN, _ANEW, _REWRITTEN = "fp32", "given", "anew", "rewritten"


@dataclass
class Rewritten:
    """The fp32 model rewritten, all of it quantized as before."""

    __repr__ = short_repr

    rewrites: list[Rewrite]
    before: Comparison
    """Quantized anew in the same way, without them."""
    after: Comparison
    suffix: str
    """Of the file that `inc-tb apply` writes."""

    @property
    def recovered(self) -> float:
        return 1 - self.after.error / self.before.error

    def write(self, folder: Path) -> Path:
        """What `inc-tb apply --cure` takes."""
        place = folder / FILE
        place.write_text(as_text(self.rewrites), encoding="utf-8")
        return place


def rewritten_instead(model: Any, quantized: Any, data: Any, diagnosis: Diagnosis) -> Rewritten | None:
    """Quantizes the fp32 model with and without rewrites; None where there are none, or they do not help.

    Where the tool does not take the model, or the quantized one was made otherwise, nothing is known of it either.
    """
    rules = {suggestion.rule for suggestion in diagnosis.suggestions[:1]}
    if not rules & _CAUSES or not framework_of(model).can("find_rewrites"):
        return None
    try:
        free = free_bytes()
        if free is not None and _COPIES * measure_size(model) * 1000 > free:
            return None
        found = _tried(model, quantized, data, diagnosis)
    except Exception:  # noqa: BLE001  whatever it is, what is known without it is told
        return None
    return found if found is not None and found.recovered >= _WORTH else None


def _tried(model: Any, quantized: Any, data: Any, diagnosis: Diagnosis) -> Rewritten | None:
    framework = framework_of(model)
    quantizer = framework.make_quantizer(framework.read_settings(quantized, diagnosis.ops))
    if "rewrites" not in quantizer.settings:
        return None
    kept = kept_already(diagnosis)
    with tempfile.TemporaryDirectory(prefix="inc_tb_rewrite_") as folder:
        prepared = quantizer.prepare(model, Path(folder))
        calibration = calibration_data(prepared, data, None)
        sample = take(calibration, MOST_SAMPLES, read_inputs(prepared))
        rewrites = framework.find_rewrites(prepared, sample)
        if not rewrites:
            return None
        told = {**quantizer.settings, "rewrites": [msgspec.to_builtins(rewrite) for rewrite in rewrites]}
        forms: dict[str, Any] = {_FP32: given(model), _GIVEN: given(quantized)}
        for name, settings in ((_ANEW, quantizer.settings), (_REWRITTEN, told)):
            target = Path(folder, f"{name}{suffix_by(quantizer, prepared)}")
            forms[name] = quantized_with(quantizer, prepared, target, calibration, settings, kept)
        found = compared(forms, sample)
        suffix = suffix_of(prepared)
    if not is_alike(found[_ANEW], found[_GIVEN]) or not found[_ANEW].error:
        return None
    return Rewritten(rewrites, found[_ANEW], found[_REWRITTEN], suffix)
