"""Runs of a small healthy model, of one with a fault, and on other samples."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import inc_tb
from tests.example_run import make_models

SAMPLES = np.random.default_rng(3).normal(size=(48, 2, 6, 6)).astype(np.float32)


def changed(model: Path, target: Path, factors: dict[str, float]) -> Path:
    """With these scales so many times larger."""
    proto = onnx.load(model)
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    for name, factor in factors.items():
        value = numpy_helper.to_array(constants[name])
        constants[name].CopyFrom(numpy_helper.from_array((value * factor).astype(value.dtype), name))
    onnx.save(proto, target)
    return target


def models(folder: Path) -> tuple[Path, Path]:
    """Weights of 7 bits: kernels for processors without VNNI have nothing to cut off."""
    return make_models(folder, outlier=1.0, reduce_range=True)


@cache
def runs(folder: Path) -> Path:
    """base; same (again); faulty (the tensor between the convolutions is rounded coarsely); others (other samples)."""
    fp32, int8 = models(folder)
    faulty = changed(int8, folder / "faulty.onnx", {"r1_scale": 12.0})
    log(folder / "base", fp32, int8, SAMPLES[:24])
    log(folder / "same", fp32, int8, SAMPLES[:24])
    log(folder / "faulty", fp32, faulty, SAMPLES[:24])
    log(folder / "others", fp32, int8, SAMPLES[24:])
    return folder


def log(run: Path, fp32: Path, int8: Path, samples: Any) -> None:
    with inc_tb.SummaryWriter(run) as writer:
        writer.add_diagnosis(inc_tb.diagnose(fp32, int8, {"input": samples}))
