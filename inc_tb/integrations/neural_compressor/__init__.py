"""Trials of Neural Compressor in TensorBoard, while it tunes.

with inc_tb.integrations.neural_compressor.log("nc_workspace"):
    quantization.fit(...)  # 2.x; or autotune(...) of 3.x and of onnx-neural-compressor
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any

from inc_tb.errors import UsageError
from inc_tb.integrations.neural_compressor.trial_log import SAMPLES, TrialLog
from inc_tb.integrations.samples import check_samples

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
    found = [way for module, way in ways.items() if _is_there(module)]
    if not found:
        raise UsageError(
            "no Neural Compressor is installed; expected neural-compressor 2.x or 3.x, or onnx-neural-compressor: "
            "pip install neural-compressor."
        )
    try:
        for way in found:
            stack.enter_context(way(lambda: list(_OPEN)))
    except ImportError as error:
        stack.close()
        raise UsageError(
            f"Neural Compressor cannot be imported: {error}. Version 2.6 wants numpy<2, onnx<1.19 and setuptools<82."
        ) from error


def _is_there(module: str) -> bool:
    """Also where it cannot be imported for lack of something else."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError as error:
        return error.name != module.partition(".")[0]
