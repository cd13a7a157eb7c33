"""What makes two runs comparable, as far as it can be found out: models, data, packages, processor."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from inc_tb.frameworks.registry import framework_of
from inc_tb.measure.shards import Shard
from inc_tb.records import Origin

_INSTRUCTIONS = (
    "avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimd", "asimddp", "i8mm", "sve",
)  # fmt: skip
"""Kernels for quantized models are chosen by these, and round differently."""
_CPUINFO = Path("/proc/cpuinfo")


def origin_of(models: tuple[Any, Any], measured: Shard, settings: Mapping[str, Any]) -> Origin:
    """Of a reference, which may be missing, and its quantized model."""
    reference, quantized = (_digest(model) for model in models)
    data = measured.by_sample.ids.digest(measured.samples)
    told = {"inc-tb": _version("inc-tb"), "python": platform.python_version(), "numpy": np.__version__}
    versions = {**told, **framework_of(models[1]).versions()}
    return Origin(reference, quantized, data, dict(settings), versions=versions, cpu=cpu())


def cpu(cpuinfo: Path = _CPUINFO) -> list[str]:
    """The kind of processor, and those of its instructions that matter; on Linux only."""
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    known = {word for line in lines if line.lower().startswith(("flags", "features")) for word in line.split()}
    return [platform.machine(), *(name for name in _INSTRUCTIONS if name in known)]


def _digest(model: Any) -> str:
    if model is None:
        return ""
    framework = framework_of(model)
    if not framework.can("digest_model"):
        return ""
    try:
        return framework.digest_model(model)
    except Exception:  # noqa: BLE001  what a model is made of may be anything, and its diagnosis is done
        return ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # a tree that is not installed
        return "unknown"
