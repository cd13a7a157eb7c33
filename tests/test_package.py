"""What a user who only wants to log gets: a light import, and no framework unless used."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

NEEDS = {
    "MxnetQuantizer": "mxnet", "OnnxRuntimeQuantizer": "onnxruntime", "TensorFlowQuantizer": "tensorflow",
    "TorchQuantizer": "torch",
}  # fmt: skip
"""MXNet has an environment of its own, in which the others are not."""
FRAMEWORKS = ("torch", "tensorflow", "onnx", "onnxruntime", "mxnet", "pandas", "sklearn", "tensorboardX")


@pytest.mark.parametrize("module", ["inc_tb", "tb_plugin.loader", "inc_tb.events", "inc_tb.cli"])
def test_importing_loads_no_framework(module: str) -> None:
    code = f"import sys, {module}; print([m for m in {FRAMEWORKS!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names() -> None:
    import inc_tb

    for name in inc_tb.__all__:
        if importlib.util.find_spec(NEEDS.get(name, "inc_tb")) is not None:
            assert getattr(inc_tb, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        inc_tb.nothing  # noqa: B018


@pytest.mark.parametrize(
    "first", ["import inc_tb.diagnose", "from inc_tb.diagnose import collect", "import inc_tb.cli"]
)
def test_diagnose_is_the_function_whatever_is_imported_first(first: str) -> None:
    code = f"{first}; import inc_tb; assert callable(inc_tb.diagnose); print('yes')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "yes"


@pytest.mark.slow
def test_importing_is_quick_beside_numpy() -> None:
    """Under 0.5 s on an idle machine; here relative to numpy in the same run, which takes 0.1 s there."""

    def seconds(statement: str) -> float:
        code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
        runs = [
            subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(5)
        ]
        return min(float(run.stdout) for run in runs)

    assert seconds("import inc_tb") < 5 * seconds("import numpy")
