"""What a trial is measured by: functions of the user, and latency, throughput, size and memory."""

from __future__ import annotations

import ctypes
import gc
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from inc_tb.data import load_function, split_function
from inc_tb.errors import UsageError
from inc_tb.frameworks.models import measure_size, open_results
from inc_tb.frameworks.ops import Batch
from inc_tb.tuning.files import is_file, name_of

Evaluate = Callable[[Any], float]
"""Gets the path of a model, or the model itself where its quantizer makes objects."""
Objectives = Mapping[str, Evaluate] | Sequence[str | Evaluate]

OPS = "ops"
"""What is made as small as can be where nothing is measured: the number of ops in fp32."""
LATENCY, SIZE, MEMORY = "latency_ms", "size_kb", "memory_mb"
_TO_MINIMIZE = {"latency": LATENCY, "size": SIZE, "memory": MEMORY}
_LEAST_LATENCY_MS = 0.2
"""Of fp32; below, it says more about a call of the runtime than about its kernels."""

_CLEAR_REFS = Path("/proc/self/clear_refs")
_THROUGHPUT_SAMPLES = 16
_LEAST_RUNS, _MOST_RUNS, _LATENCY_S = 5, 50, 0.5
_LEAST_S = 1e-9


def measure_latency(model: Any, batch: Batch) -> float:
    """Milliseconds that a model takes for this batch, the median of some runs."""
    run = open_results(model)
    (times,) = _timed([lambda: run(batch)])
    return 1000 * float(np.median(times))


def measure_ratio(model: Any, other: Any, batch: Batch) -> float:
    """How many times as long as another model it takes: run in turns, so that whatever else is done slows down both."""
    own, others = open_results(model), open_results(other)
    return ratio(lambda: own(batch), lambda: others(batch))


def ratio(one: Callable[[], Any], other: Callable[[], Any]) -> float:
    """Of their times: the median over pairs of runs, one right after the other."""
    times, others = _timed([one, other])
    return float(np.median(np.array(times) / np.maximum(others, _LEAST_S)))


def _timed(runs: Sequence[Callable[[], Any]]) -> list[list[float]]:
    """Seconds of each, again and again in turns."""
    times: list[list[float]] = [[] for _ in runs]
    for run in runs:
        run()
    began = time.perf_counter()
    while (made := len(times[0])) < _LEAST_RUNS or (
        time.perf_counter() - began < _LATENCY_S * len(runs) and made < _MOST_RUNS
    ):
        for run, own in zip(runs, times, strict=True):
            start = time.perf_counter()
            run()
            own.append(time.perf_counter() - start)
    return times


def measure_throughput(model: Any, batch: Batch) -> float:
    """Samples a second, in batches like this."""
    samples = next((len(array) for array in batch.values() if array.ndim), 1)
    return 1000 * samples / measure_latency(model, batch)


def measure_memory(model: Any, batch: Batch) -> float:
    """Megabytes by which the process grows at its peak while the model is opened and run; Linux only."""
    if not _CLEAR_REFS.exists():
        raise UsageError(f"memory was asked for on {sys.platform}; it can be measured on Linux only. Leave it out.")
    held = 0.0 if isinstance(model, str | PathLike | bytes) else measure_size(model) / 1000
    gc.collect()
    with suppress(AttributeError):  # of the GNU C library only
        ctypes.CDLL(None).malloc_trim(0)  # what was freed before would hide what is taken now
    before = _resident_mb("VmRSS")
    _CLEAR_REFS.write_text("5")  # the peak starts anew
    open_results(model)(batch)
    return max(0.0, _resident_mb("VmHWM") - before) + held


def _resident_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


def named_objectives(
    given: Objectives, batch_of: Callable[[int], Batch], latency_of: Callable[[Any], float]
) -> dict[str, Evaluate]:
    """Name -> what measures it; `batch_of` gives a batch of so many samples."""
    if isinstance(given, Mapping):
        return dict(given)
    known: dict[str, tuple[str, Evaluate]] = {
        "size": (SIZE, measure_size),
        "latency": (LATENCY, latency_of),
        "throughput": ("samples_per_s", lambda model: measure_throughput(model, batch_of(_THROUGHPUT_SAMPLES))),
        "memory": (MEMORY, lambda model: measure_memory(model, batch_of(1))),
    }
    found: dict[str, Evaluate] = {}
    for objective in given:
        if callable(objective):
            found[_name_of(objective)] = objective
        elif objective in known:
            name, function = known[objective]
            found[name] = function
        elif ":" in objective:
            found[_name_of(objective)] = load_function(*split_function(objective))
        else:
            expected = f"{', '.join(known)} or file.py:function"
            raise UsageError(f"objective {objective!r} was given; expected {expected}.")
    return found


def with_minimized(asked: str | None, given: Objectives) -> Objectives:
    """The objectives, and what is to be small among them."""
    names = [_name_of(objective) for objective in given]
    if asked is None or asked == OPS or asked in names or _TO_MINIMIZE.get(asked) in names:
        if asked == "throughput":
            raise UsageError("minimize='throughput' was given, which is to be large; expected latency.")
        return given
    if asked not in _TO_MINIMIZE or isinstance(given, Mapping):
        known = [*_TO_MINIMIZE, OPS, *(name for name in names if name not in (*_TO_MINIMIZE, "throughput"))]
        raise UsageError(f"minimize={asked!r} was given; expected {', '.join(known)}, or another objective's name.")
    return [*given, asked]


def minimized(asked: str | None, of_fp32: Mapping[str, float]) -> str:
    """What is made as small as can be: an objective by its name, or OPS.

    Without being `asked` for anything: the latency where it is measured, and long enough not to be the runtime's own.
    """
    if asked is None:
        return LATENCY if of_fp32.get(LATENCY, 0.0) >= _LEAST_LATENCY_MS else OPS
    return _TO_MINIMIZE.get(asked, asked)


def _name_of(objective: str | Evaluate) -> str:
    if callable(objective):
        return getattr(objective, "__name__", type(objective).__name__)
    return objective.rpartition(":")[2] if ":" in objective else objective


def told_by(what: str, function: Evaluate, model: Any) -> Any:
    """What a function of the user returns for a model, which it gets as a path if it is a file."""
    try:
        return function(str(model) if is_file(model) else model)
    except Exception as error:  # the user's own code may raise anything
        given = f"the path of a {model.suffix} file" if is_file(model) and model.suffix else "the model"
        raise UsageError(
            f"{what} failed on {name_of(model)}: {type(error).__name__}: {error}. It gets {given} and must return a "
            "number."
        ) from error


def as_number(value: Any, what: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UsageError(f"{what} returned {value!r}; expected a finite number.") from None


def finite_number(value: Any, what: str) -> float:
    found = as_number(value, what)
    if not math.isfinite(found):
        raise UsageError(f"{what} returned {value!r}; expected a finite number.")
    return found
