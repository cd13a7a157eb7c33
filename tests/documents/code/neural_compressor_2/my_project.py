"""Calibration and evaluation of an ONNX model."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnxruntime

from inc_tb.demo import load_digits

images, labels, held_out = load_digits()


class Calibration:
    batch_size = 16

    def __iter__(self) -> Iterator[Any]:
        return ((rows, np.zeros(len(rows))) for rows in np.split(images[~held_out][:64], 4))


def evaluate(model: Any) -> float:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    scores = session.run(None, {"input": images[held_out]})[0]
    return float((scores.argmax(axis=1) == labels[held_out]).mean())
