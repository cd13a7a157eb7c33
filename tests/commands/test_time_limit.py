"""A model that never ends, ends all the same if it was given a limit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import inc_tb
from tests.waiting import PATIENCE_S


def write_endless(path: Path, scale: float) -> Path:
    """x times a number, and that again, 2^62 times."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["goes_on"]),
            helper.make_node("Mul", ["before", "scale"], ["after"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("count", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("before", TensorProto.FLOAT, [1, 4]),
        ],
        [
            helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("after", TensorProto.FLOAT, [1, 4]),
        ],
    )
    graph = helper.make_graph(
        [
            helper.make_node("Mul", ["x", "scale"], ["first"]),
            helper.make_node("Loop", ["times", "yes", "first"], ["y"], body=body),
        ],
        "endless",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [
            numpy_helper.from_array(np.float32(scale), "scale"),
            numpy_helper.from_array(np.int64(1 << 62), "times"),
            numpy_helper.from_array(np.bool_(True), "yes"),
        ],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_a_loop_that_never_ends(tmp_path: Path) -> None:
    models = [write_endless(tmp_path / f"{name}.onnx", scale) for name, scale in (("fp32", 1.0), ("int8", 0.99))]
    np.save(tmp_path / "x.npy", np.ones((2, 4), np.float32))
    command = [sys.executable, "-m", "inc_tb.start", "--time-limit", "4", "diagnose", *models]
    command += ["--data", tmp_path / "x.npy", "--logdir", tmp_path / "logs"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
        env={**os.environ, "PYTHONPATH": str(Path(inc_tb.__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "inc-tb: ended by --time-limit after 4 s; what was logged so far is kept. Give it more time, or check that the "
        "model ends: a loop in it may not."
    )
    assert not list((tmp_path / "logs").glob("*/*tfevents*"))
