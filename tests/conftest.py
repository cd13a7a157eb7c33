from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

from tests.digits import DATA, digits
from tests.waiting import Clock

# Before anything imports them: what they assert is told as in the tests themselves.
pytest.register_assert_rewrite(
    "tests.frameworks.contracts", "tests.frameworks.onnx_zoo", "tests.frameworks.torch_truth",
    "tests.frameworks.torch_zoo", "tests.mxnet.zoo",
)  # fmt: skip
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # not everywhere by default, and int8 kernels need it
# A shell that runs the tests in the background has its children ignore it; what tests start and interrupt must not.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A shared machine may stall for longer than a test takes.
hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")


def pytest_collection_finish() -> None:
    """Python does not look through all tests and frameworks again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """What budgets and timeouts are measured by."""
    found = Clock()
    monkeypatch.setattr("time.monotonic", lambda: found.now)
    return found


@pytest.fixture(scope="session")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Quantizes a model of tests/data with onnxruntime, once for each way.

    Weights have 7 bits: processors without VNNI saturate sums of products with 8 bits, and real models then lose more
    than was rounded.
    """
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
            quantize_static(DATA / f"{name}.onnx", target, Reader(), **{"reduce_range": True, **options})
        return target

    return quantize
