"""Trials of Neural Compressor in TensorBoard, while it tunes.

with inc_tb.integrations.neural_compressor.log("nc_workspace"):
    quantization.fit(...)  # 2.x; or autotune(...) of 3.x and of onnx-neural-compressor
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any

from inc_tb.errors import UsageError
from inc_tb.integrations.neural_compressor.trial_log import SAMPLES, WANTED_BY_2, TrialLog, warn
from inc_tb.integrations.samples import check_samples
from inc_tb.integrations.training import reason_of

__all__ = ["TrialLog", "log"]

_LOCK = threading.RLock()
_OPEN: list[TrialLog] = []
_PATCHED = ExitStack()


@contextmanager
def log(
    logdir: str | PathLike[str] = "nc_workspace", *, data: Any = None, samples: int = SAMPLES, diagnose: bool = True
) -> Iterator[TrialLog]:
    """Log every trial of the tunings in this block: accuracy, config, what stayed in fp32, and a diagnosis.

    Each trial is a run `logdir/trial-001`, which is there when the trial has ended; the number is Neural
    Compressor's. Where `logdir` has trials already, a tuning gets a folder of its own, `logdir/tuning-2` and so on.
    The first `samples` of the calibration data, or of `data` (batches, one batch, or a path as for `--data`), run
    through the fp32 model and through that of the trial; with `diagnose=False` none do. Whatever goes wrong while
    logging is a warning, once, and the tuning goes on.

    All tunings of the process are logged as long as the block lasts, whichever thread they run in.
    """
    check_samples(samples)
    made = TrialLog(Path(logdir), data=data, samples=samples, diagnose=diagnose)
    with _LOCK:
        if not _OPEN:
            _patch(_PATCHED)
        _OPEN.append(made)
    try:
        yield made
        made.check()
    finally:
        made.close()
        with _LOCK:
            _OPEN.remove(made)
            if not _OPEN:
                _PATCHED.close()


def _patch(stack: ExitStack) -> None:
    """Whatever there is of Neural Compressor tells the open logs what it does, until the stack is closed."""
    from inc_tb.integrations.neural_compressor import v2, v3

    ways = {
        "neural_compressor.strategy": v2.watch,
        "neural_compressor.common": v3.watch,
        "onnx_neural_compressor.quantization": v3.watch_onnx,
    }
    works = False
    broken: dict[str, str] = {}
    with ExitStack() as patches:
        for module, way in ways.items():
            try:
                if _is_there(module):
                    patches.enter_context(way(lambda: list(_OPEN)))
                    works = True
            except Exception as error:  # noqa: BLE001  importing the one must not stop the others
                broken.setdefault(module.partition(".")[0].replace("_", "-"), reason_of(error))
        if not works:
            raise _unusable(broken)
        stack.enter_context(patches.pop_all())
    for package, reason in broken.items():
        warn(f"{package} is not logged, it cannot be imported: {reason}")


def _unusable(broken: Mapping[str, str]) -> UsageError:
    if not broken:
        return UsageError(
            "no Neural Compressor is installed; expected neural-compressor 2.x or 3.x, or onnx-neural-compressor: "
            "pip install neural-compressor."
        )
    told = "; ".join(f"{package}: {reason.rstrip('.')}" for package, reason in broken.items())
    try:
        advice = f" {WANTED_BY_2}" if version("neural-compressor").startswith("2.") else ""
    except PackageNotFoundError:
        advice = ""
    return UsageError(f"Neural Compressor cannot be imported: {told}.{advice}")


def _is_there(module: str) -> bool:
    """Also where it cannot be imported for lack of something else."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError as error:
        return error.name != module.partition(".")[0]
