from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

from tests.cpu import saturates
from tests.digits import DATA, digits

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # not everywhere by default, and int8 kernels need it
# A shared machine may stall for longer than a test takes.
hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")


ALONE = {
    f"test_{name}.py"
    for name in ("cli_profile", "memory", "onnx_timer", "profile", "tensorflow_timer", "torch_timer", "tune_times")
}
"""What they measure would be disturbed by other tests beside them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name in ALONE:
            item.add_marker("alone")


@pytest.fixture(scope="session")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Quantizes a model of tests/data with onnxruntime, once for each way."""
    folder = tmp_path_factory.mktemp("quantized")

    def quantize(name: str, **options: Any) -> Path:
        from onnxruntime.quantization import CalibrationDataReader, quantize_static

        class Reader(CalibrationDataReader):
            def __init__(self) -> None:
                self.batches: Iterator[Any] = iter({"input": rows} for rows in np.array_split(digits(200), 4))

            def get_next(self) -> Any:
                return next(self.batches, None)

        target = folder / f"{name}-{'-'.join(f'{k}={v}' for k, v in sorted(options.items()))}.onnx".replace("/", "_")
        if not target.exists():
            quantize_static(DATA / f"{name}.onnx", target, Reader(), **{"reduce_range": saturates(), **options})
        return target

    return quantize
