"""Only where Neural Compressor 2.x is installed, which does not fit beside the packages of the other tests."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import pytest

from tests.neural_compressor_2.tuned import said

try:
    IS_THERE = version("neural-compressor").startswith("2.")
except PackageNotFoundError:
    IS_THERE = False
collect_ignore_glob = [] if IS_THERE else ["test_*.py"]

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # not every processor has it by default, and its int8 kernels need it
if IS_THERE:
    np.bool = bool  # type: ignore[assignment,attr-defined]  # MXNet asks for it

OURS = (
    "a trial was not", "the fp32 model", "the model's data", ".*nothing was logged", ".*Neural Compressor ended",
    ".*has trials of an earlier tuning", ".*is not logged",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of Neural Compressor's dependencies complain about each other; what we say counts."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for message in OURS:
                item.add_marker(pytest.mark.filterwarnings(f"error:{message}"))
            item.add_marker(pytest.mark.filterwarnings("ignore"), append=False)


@pytest.fixture(autouse=True)
def nothing_unexpected_is_said(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """As errors our warnings would end the tuning: log() turns them into entries of Python's log."""
    yield
    assert said(caplog) == []


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path) -> Path:
    # It calibrates by what TensorFlow prints on standard error, as that is when this is imported.
    with contextlib.redirect_stderr(sys.__stderr__):
        from neural_compressor import set_workspace
        from neural_compressor.utils.utility import CaptureOutputToFile

    assert CaptureOutputToFile
    set_workspace(str(tmp_path / "workspace"))
    return tmp_path / "workspace"
