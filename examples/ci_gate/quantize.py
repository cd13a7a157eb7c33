"""Stands for your own build: writes fp32.onnx, int8.onnx and samples.npz."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from onnxruntime.quantization import CalibrationDataReader, quantize_static

from inc_tb.demo import load_digits


class Calibration(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, images: Any) -> None:
        self._batches = iter({"image": rows} for rows in np.split(images, 4))

    def get_next(self) -> Any:
        return next(self._batches, None)


def main() -> None:
    images, _, held_out = load_digits()
    Path("fp32.onnx").write_bytes((files("inc_tb") / "demo_data" / "digits_cnn.onnx").read_bytes())
    quantize_static("fp32.onnx", "int8.onnx", Calibration(images[~held_out][:128]), reduce_range=True, per_channel=True)
    np.savez("samples.npz", image=images[held_out][:64])


if __name__ == "__main__":
    main()
