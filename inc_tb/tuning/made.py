"""The models that the attempts of a tuning make: the last few are kept, older ones are made once more."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from inc_tb.errors import IncTbError, ModelError
from inc_tb.frameworks.ops import Batch
from inc_tb.frameworks.protocols import Quantizer
from inc_tb.frameworks.registry import framework_of
from inc_tb.records import Rewrite
from inc_tb.tuning.attempt import Attempt, key_of
from inc_tb.tuning.files import is_file, remove, suffix_of

_KEPT = 3


class MadeModels:
    """`reference` is the fp32 model as the quantizer wants it; files are written to the `folder`."""

    def __init__(
        self, quantizer: Quantizer, reference: Any, batches: Iterable[Batch], folder: Path, suffix: str
    ) -> None:
        self._quantizer, self._reference, self._batches = quantizer, reference, batches
        self._folder, self._suffix = folder, suffix
        self._quantized: dict[str, Any] = {}
        self._rewritten: dict[str, Any] = {}
        """The fp32 model with rewrites, by their digest."""
        self.quantizations = 0

    def quantized(self, attempt: Attempt) -> Any:
        key = key_of(attempt)
        if key not in self._quantized:
            while len(self._quantized) >= _KEPT:
                forgotten = self._quantized.pop(next(iter(self._quantized)))
                if is_file(forgotten):
                    remove(forgotten)
            target = self._folder / f"{key}{self._suffix}"
            self.quantizations += 1
            made = self._made(attempt, target)
            self._quantized[key] = target if made is None else made
        return self._quantized[key]

    def _made(self, attempt: Attempt, target: Path) -> Any:
        try:
            return self._quantizer.quantize(self._reference, target, self._batches, attempt.settings, attempt.keep)
        except IncTbError:
            raise
        except Exception as error:  # a quantizer of others may raise anything
            raise ModelError(f"the quantizer failed: {type(error).__name__}: {error}") from error

    def fp32_of(self, attempt: Attempt) -> Any:
        """The fp32 model that the attempt is compared with: rewritten if it says so, without changing its results."""
        told = attempt.settings.get("rewrites") or ()
        return self._with([rewrite for rewrite in told if rewrite["kind"] != "bias"])

    def source_of(self, attempt: Attempt) -> Any:
        """What it quantizes."""
        return self._with(attempt.settings.get("rewrites"))

    def _with(self, told: Any) -> Any:
        if not told:
            return self._reference
        key = hashlib.sha256(msgspec.json.encode(told)).hexdigest()[:16]
        if key not in self._rewritten:
            framework = framework_of(self._reference)
            made = framework.apply_rewrites(self._reference, msgspec.convert(told, list[Rewrite]))
            if is_file(self._reference):
                place = self._folder / f"rewritten-{key}{suffix_of(self._reference)}"
                framework.save_model(made, place)
                made = place
            self._rewritten[key] = made
        return self._rewritten[key]
