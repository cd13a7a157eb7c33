"""MXNet is loaded only where it is needed, and leaves numpy as it was."""

from __future__ import annotations

import subprocess
import sys

import pytest

QUIET = ["-W", "ignore"]


def run(code: str) -> str:
    done = subprocess.run([sys.executable, *QUIET, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_numpy_is_as_before() -> None:
    before = "import numpy as np; a = hasattr(np, 'bool')"
    assert run(f"{before}; from inc_tb.frameworks.mxnet.library import mx; print(a == hasattr(np, 'bool'))") == "True"


def test_numpy_keeps_what_others_have_set() -> None:
    code = "import numpy as np; np.bool = bool; from inc_tb.frameworks.mxnet.library import mx; print(np.bool is bool)"
    assert run(code) == "True"


def test_root_logging_is_left_alone() -> None:
    code = "import logging; from inc_tb.frameworks.mxnet.library import mx; print(logging.getLogger().level)"
    assert run(code) == "30"


@pytest.mark.parametrize("module", ["inc_tb", "inc_tb.cli", "inc_tb.store.writer"])
def test_importing_loads_no_framework(module: str) -> None:
    assert run(f"import sys, {module}; print('mxnet' in sys.modules)") == "False"
