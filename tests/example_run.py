"""A small model with one bad edge, its diagnosis and a trial: something real to log in the tests of events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

import inc_tb

OPS = ["/conv1/Conv", "/conv1/Relu", "/conv2/Conv", "/conv2/Relu", "/pool/GlobalAveragePool", "/Flatten", "/fc/Gemm"]
OUTLIER = 100.0


def make_models(folder: Path, *, outlier: float = OUTLIER, **settings: Any) -> tuple[Path, Path]:
    """fp32.onnx and int8.onnx; channel 1 between the convolutions is scaled up and back, which int8 cannot take.

    With an `outlier` of 1 the model is healthy; `settings` go to quantize_static.
    """
    random = np.random.default_rng(7)
    w1, w2, w3 = (random.normal(size=shape).astype(np.float32) for shape in ((4, 2, 3, 3), (4, 4, 3, 3), (3, 4)))
    w1[1] *= outlier
    w2[:, 1] /= outlier
    nodes = [
        helper.make_node("Conv", ["input", "w1"], ["c1"], OPS[0], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], OPS[1]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], OPS[2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c2"], ["r2"], OPS[3]),
        helper.make_node("GlobalAveragePool", ["r2"], ["p"], OPS[4]),
        helper.make_node("Flatten", ["p"], ["f"], OPS[5]),
        helper.make_node("Gemm", ["f", "w3"], ["logits"], OPS[6], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "example",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", 2, 6, 6])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(w, name) for w, name in ((w1, "w1"), (w2, "w2"), (w3, "w3"))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    fp32, int8 = folder / "fp32.onnx", folder / "int8.onnx"
    onnx.save(model, fp32)
    quantize_static(fp32, int8, _Batches(), quant_format=QuantFormat.QDQ, **settings)
    return fp32, int8


def batches() -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(11)
    return [{"input": random.normal(size=(8, 2, 6, 6)).astype(np.float32)} for _ in range(2)]


def make_diagnosis(folder: Path, **settings: Any) -> inc_tb.Diagnosis:
    found = inc_tb.diagnose(*make_models(folder, **settings), batches())
    found.reference, found.quantized = "fp32.onnx", "int8.onnx"  # the same wherever the tests run
    return found


def make_trial(name: str = "trial-001", accuracy: float = 0.91) -> inc_tb.Trial:
    config = {"calibration": "minmax", "per_channel": True, "samples": 64}
    return inc_tb.Trial(
        name, accuracy, 0.97, ["/conv1/Conv"], config, {"latency_ms": 1.25}, 3.5, ["made for tests"], target=0.96
    )


def log_run(folder: Path, diagnosis: inc_tb.Diagnosis, accuracy: float = 0.9) -> None:
    with inc_tb.SummaryWriter(folder) as writer:
        writer.add_diagnosis(diagnosis)
        writer.add_trial(make_trial(folder.name, accuracy))


class _Batches(CalibrationDataReader):
    def __init__(self) -> None:
        self._left = iter(batches())

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)
