"""Neural Insights, which kept a list of workspaces and of the accuracies that it was told."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from inc_tb.errors import DataError
from inc_tb.records import plural
from inc_tb.sources.imports import find_sources
from inc_tb.sources.neural_compressor.source import NeuralCompressor
from inc_tb.sources.neural_compressor.trials import number_of
from inc_tb.sources.source import Found

REGISTRY = Path(".neural_compressor", "neural_insights", "config.json")
"""Below the home folder: where Neural Insights kept what it was to show."""


class _Accuracy(msgspec.Struct):
    baseline_accuracy: Any = None
    optimized_accuracy: Any = None


class _Workload(msgspec.Struct):
    workload_location: str | None = None
    accuracy_data: _Accuracy | None = None


class _Registry(msgspec.Struct):
    workloads: list[_Workload] = []


def find_registered(home: Path) -> list[Found]:
    """The workspaces that Neural Insights knew and that are still there."""
    path = home / REGISTRY
    try:
        known = msgspec.json.decode(path.read_bytes(), type=_Registry).workloads
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); expected the registry of Neural Insights. Give the folder of "
            "the workspace instead."
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(
            f"{path}: is not the registry of Neural Insights ({error}); expected its config.json."
        ) from error
    found = []
    for workload in known:
        folder = Path(workload.workload_location or "")
        if workload.workload_location and folder.is_dir():
            numbers = workload.accuracy_data or _Accuracy()
            told = NeuralCompressor(number_of(numbers.baseline_accuracy), number_of(numbers.optimized_accuracy))
            with suppress(DataError):  # one that is empty
                found += [_with(one, told) for one in find_sources(folder) if one.path == folder]
    if not found:
        raise DataError(
            f"{path}: none of its {plural(len(known), 'workspace')} is there any more; expected at least one."
        )
    return found


def _with(found: Found, told: NeuralCompressor) -> Found:
    return found._replace(source=told) if isinstance(found.source, NeuralCompressor) else found
