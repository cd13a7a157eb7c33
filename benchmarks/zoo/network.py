"""What a network of the zoo is: a model, samples to calibrate with, and two sets of others to judge it by."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from onnxruntime import quantization

Batch = dict[str, np.ndarray]
Run = Callable[[Batch], list[np.ndarray]]
BATCH, CALIBRATION = 8, 32  # samples


def open_onnx(model: str | Path, threads: int = 0) -> Run:
    options = onnxruntime.SessionOptions()  # threads that spin after a run would disturb what runs next
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return lambda feed: session.run(None, feed)


class Network(NamedTuple):
    name: str
    model: Path  # fp32; every node has a name of its own
    calibration: list[Batch]
    evaluate: Callable[[str | Path], float]  # the accuracy of a candidate on other samples than those of calibration
    held_out: Callable[[str | Path], float]  # the same on others still, which steer nothing
    settings: dict[str, Any] = {}  # noqa: RUF012  of the tool that quantizes, where they are not its own
    open: Callable[..., Run] = open_onnx  # a model by its path, perhaps with so many threads
    runnable: Path | None = None  # fp32 in the form in which it is evaluated, where that is another one

    @property
    def fp32(self) -> Path:
        return self.runnable or self.model


def quantize(model: Path, target: Path, calibration: list[Batch], **more: Any) -> Path:
    """quantize_static with the types that ONNX Runtime recommends, and else as it comes; `more` adds to that."""
    reader = SimpleNamespace(get_next=functools.partial(next, iter(calibration), None))
    types = {"activation_type": quantization.QuantType.QUInt8, "weight_type": quantization.QuantType.QInt8}
    quantization.quantize_static(model, target, reader, **{**types, **more})
    return target


def made(
    name: str,
    model: Path,
    samples: Batch,
    score: Callable[[np.ndarray, Any], float],
    labels: Sequence[Any] | np.ndarray | None = None,
    *,
    calibration: int = CALIBRATION,
    batch: int = BATCH,
) -> Network:
    """The first samples are for calibration, half of the others are held out.

    Where nobody has labeled the samples, the fp32 network does.
    """
    count = len(next(iter(samples.values())))
    middle = (calibration + count) // 2

    def judge(first: int, end: int) -> Callable[[str | Path], float]:
        feeds = batches(samples, first, end, batch)
        wanted = functools.cache(lambda: run(model, feeds) if labels is None else labels[first:end])
        return lambda path: float(score(run(path, feeds), wanted()))

    first = batches(samples, 0, calibration, batch)
    return Network(name, model, first, judge(calibration, middle), judge(middle, count))


def batches(samples: Batch, first: int, end: int, size: int = BATCH) -> list[Batch]:
    return [{name: rows[i : min(i + size, end)] for name, rows in samples.items()} for i in range(first, end, size)]


def run(model: str | Path, feeds: list[Batch]) -> np.ndarray:
    """The first result."""
    opened = open_onnx(model)
    return np.concatenate([opened(feed)[0] for feed in feeds])


def same_class(got: np.ndarray, wanted: np.ndarray) -> float:
    """Both one number for each class, or `wanted` the class itself."""
    return float((got.argmax(-1) == (wanted.argmax(-1) if np.ndim(wanted) > 1 else wanted)).mean())


def overlap(got: np.ndarray, wanted: np.ndarray, least: float) -> float:
    """Of the pixels above `least` in both, over all pictures (IoU)."""
    mine, theirs = got > least, wanted > least
    return float((mine & theirs).sum() / max(1, (mine | theirs).sum()))
