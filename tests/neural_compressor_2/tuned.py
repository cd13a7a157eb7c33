"""Tunings of the hard model, as users of Neural Compressor write them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inc_tb.sources.pickles import read_pickle
from tests.digits import digits, write_harder

FOLDER = tempfile.TemporaryDirectory()  # as long as this module
HARD = str(write_harder(Path(FOLDER.name) / "hard.onnx"))
IMAGES = digits(1797)
CULPRITS = ["/conv1/Conv", "/conv2/Conv"]


def labels() -> Any:
    from sklearn.datasets import load_digits

    return load_digits().target


class Loader:
    """Calibration data as (images, labels)."""

    def __init__(self, images: Any = IMAGES, convert: Callable[[Any], Any] = np.asarray) -> None:
        self.batch_size = 50
        self._batches = [(convert(rows), convert(np.zeros(len(rows)))) for rows in np.array_split(images[:200], 4)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


def accuracy(logits: Any) -> float:
    return float((np.asarray(logits).argmax(axis=1) == labels()).mean())


def evaluate(model: Any) -> float:
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return accuracy(session.run(None, {"input": IMAGES})[0])


def config(strategy: str = "basic", trials: int = 2, **options: Any) -> Any:
    from neural_compressor.config import PostTrainingQuantConfig, TuningCriterion

    criterion = TuningCriterion(strategy=strategy, max_trials=trials)
    # Neural Compressor else asks the processor whether weights get 7 or 8 bits; with 7 no kernel saturates.
    return PostTrainingQuantConfig(quant_level=1, tuning_criterion=criterion, reduce_range=True, **options)


def fit(
    evaluate: Callable[[Any], float] | None = evaluate,
    conf: Any = None,
    model: Any = HARD,
    loader: Any = None,
) -> Any:
    from neural_compressor import quantization

    return quantization.fit(model, conf or config(), calib_dataloader=loader or Loader(), eval_func=evaluate)


def history(workspace: Path) -> dict[int, float]:
    """Number of each trial -> accuracy, as Neural Compressor itself has stored it."""
    (tuning,) = read_pickle(workspace / "history.snapshot").state["tuning_history"]
    return {entry["tune_cfg"]["trial_number"]: entry["tune_result"][0] for entry in tuning["history"]}


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What log() says where its warnings are errors."""
    return [record.getMessage() for record in caplog.get_records("call") if record.name.startswith("inc_tb")]
