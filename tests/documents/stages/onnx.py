from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, quantize_static

from inc_tb.demo import load_digits
from tests.digits import DATA


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, images: Any) -> None:
        self._batches = iter({"input": rows} for rows in np.split(images, 4))

    def get_next(self) -> Any:
        return next(self._batches, None)


def prepare() -> None:
    """A network that int8 breaks on any processor, samples, and a profile of ONNX Runtime."""
    images, labels, held_out = load_digits()
    samples = images[~held_out][:64]
    shutil.copy(DATA / "hard.onnx", "fp32.onnx")
    quantize_static("fp32.onnx", "int8.onnx", _Reader(samples), reduce_range=True)
    np.savez("samples.npz", input=samples)
    np.savez("held_out.npz", input=images[held_out][:200], label=labels[held_out][:200])

    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    session = onnxruntime.InferenceSession("fp32.onnx", options)
    session.run(None, {"input": samples})
    shutil.move(session.end_profiling(), "onnxruntime_profile.json")
