"""Peak memory must keep to the budget, and must not grow with the number of samples."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import inc_tb
from inc_tb.errors import MismatchError, OutOfMemoryError
from inc_tb.frameworks.feeds import split
from inc_tb.frameworks.memory import Parts, default_budget
from inc_tb.frameworks.onnx.failures import cannot_run
from inc_tb.frameworks.onnx.passes import Session
from inc_tb.frameworks.ops import Pair

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "memory.py"
MIB = 1 << 20
PEAK = """
import resource, sys
import numpy as np, inc_tb
from inc_tb.frameworks.models import open_pair
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
fp32, int8, rows, mib = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
inc_tb.diagnose(fp32, int8, np.zeros((2, 3, 8, 8), np.float32))
before = peak()
batch = np.random.default_rng(1).standard_normal((rows, 3, 96, 256)).astype(np.float32)
inc_tb.diagnose(fp32, int8, [batch], memory_budget=mib << 20)
print(peak() - before)
"""


@pytest.mark.slow
def test_800_samples_need_at_most_5_percent_more_than_100() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--more-samples"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    ratio = float(done.stdout.split("need ")[1].split()[0])
    assert ratio < 1.05


@pytest.fixture(scope="module")
def recognizer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Of images of any size: nothing of what it holds on the way can be told from the file."""
    folder = tmp_path_factory.mktemp("recognizer")
    rng = np.random.default_rng(0)
    nodes, rounded, weights = [], [], [onnx.numpy_helper.from_array(np.float32(0.05), "step")]
    weights.append(onnx.numpy_helper.from_array(np.int8(0), "zero"))
    x, y = "x", "x"
    for i in range(6):
        kernel = rng.standard_normal((32, 3 if i == 0 else 32, 3, 3)).astype(np.float32) / 12
        weights.append(onnx.numpy_helper.from_array(kernel, f"w{i}"))
        made = helper.make_node("Conv", [x, f"w{i}"], [f"x{i}"], f"/conv{i}", pads=[1] * 4)
        nodes.append(made)
        rounded.append(helper.make_node("Conv", [y, f"w{i}"], [f"x{i}"], f"/conv{i}", pads=[1] * 4))
        rounded.append(helper.make_node("QuantizeLinear", [f"x{i}", "step", "zero"], [f"q{i}"]))
        rounded.append(helper.make_node("DequantizeLinear", [f"q{i}", "step", "zero"], [f"y{i}"]))
        x, y = f"x{i}", f"y{i}"
    for name, chosen, end in (("fp32", nodes, x), ("int8", rounded, y)):
        graph = helper.make_graph(
            chosen, name, [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w"])],
            [helper.make_tensor_value_info(end, TensorProto.FLOAT, None)],
            [w for w in weights if name == "int8" or w.name.startswith("w")],
        )  # fmt: skip
        onnx.save(
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / f"{name}.onnx"
        )
    return folder / "fp32.onnx", folder / "int8.onnx"


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in other units elsewhere")
def test_a_batch_of_a_model_with_dynamic_shapes_keeps_to_the_budget(recognizer: tuple[Path, Path]) -> None:
    """Three forms of six tensors of 3 MiB: 16 samples would take 864 MiB at the least."""
    command = [sys.executable, "-c", PEAK, *map(str, recognizer), "16", "256"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 256 * MIB


def test_a_batch_in_parts_and_passes_gives_the_same_table(recognizer: tuple[Path, Path]) -> None:
    batch = np.random.default_rng(1).standard_normal((6, 3, 16, 24)).astype(np.float32)
    whole = inc_tb.diagnose(*recognizer, [batch], batch_size=6).ops
    for budget in (1, 3 * MIB, 6 * MIB):
        found = inc_tb.diagnose(*recognizer, [batch], memory_budget=budget).ops
        for column in ("a_mse", "a_sqnr_db", "added_sqnr_db", "a_min", "a_q_max", "a_mean"):
            np.testing.assert_allclose(found[column], whole[column], rtol=1e-5, err_msg=f"{column} {budget}")


@pytest.fixture
def short_of_memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """ONNX Runtime has memory for two samples only, in every model; the numbers of samples that were asked for."""
    asked: list[int] = []
    run = Session.run

    def refuse(self: Any, feeds: Mapping[str, Any]) -> Any:
        rows = max(len(array) for array in feeds.values())
        asked.append(rows)
        if rows > 2:
            raise cannot_run("model", RuntimeError("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : std::bad_alloc"))
        return run(self, feeds)

    monkeypatch.setattr(Session, "run", refuse)
    return asked


def test_a_failed_allocation_halves_the_batch_and_says_so(
    recognizer: tuple[Path, Path], short_of_memory: list[int]
) -> None:
    batch = np.random.default_rng(1).standard_normal((8, 3, 16, 24)).astype(np.float32)
    found = inc_tb.diagnose(*recognizer, [batch], batch_size=8)
    assert found.samples == 8
    assert [note for note in found.notes if "memory ran out" in note] == [
        "memory ran out with 8 samples at once; from there on 4 ran at once",
        "memory ran out with 4 samples at once; from there on 2 ran at once",
    ]
    assert short_of_memory.count(8) <= 2
    wanted = inc_tb.diagnose(*recognizer, [batch[:2], batch[2:4], batch[4:6], batch[6:]])
    np.testing.assert_allclose(found.ops["a_mse"], wanted.ops["a_mse"], rtol=1e-6)
    np.testing.assert_allclose(found.ops["added_sqnr_db"], wanted.ops["added_sqnr_db"], rtol=1e-6)


def test_not_even_one_sample_is_one_line_that_does_not_blame_the_data(
    recognizer: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Any, feeds: Mapping[str, Any]) -> Any:
        raise cannot_run("fp32.onnx", MemoryError("std::bad_alloc"))

    monkeypatch.setattr(Session, "run", refuse)
    with pytest.raises(OutOfMemoryError, match="memory") as caught:
        inc_tb.diagnose(*recognizer, np.zeros((1, 3, 8, 8), np.float32))
    assert "Check that the data" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Exp node. Name:'' Status Message: "
        "onnxruntime/core/framework/bfc_arena.cc:360 Failed to allocate memory for requested buffer of size 800000000",
        "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running Exp node. Name:'' "
        "Status Message: std::bad_alloc",
    ],
)
def test_a_lack_of_memory_is_told_from_data_that_does_not_fit(text: str) -> None:
    """As ONNX Runtime 1.31 says it with its arena and without."""
    assert isinstance(cannot_run("m", RuntimeError(text)), OutOfMemoryError)
    assert isinstance(cannot_run("m", RuntimeError("Got invalid dimensions for input: x")), MismatchError)


def test_what_was_given_before_memory_ran_out_is_not_given_again() -> None:
    def work(part: Mapping[str, Any]) -> Iterator[Pair]:
        rows = part["x"]
        yield Pair("a", "a", "output", rows, rows, None)
        if len(rows) > 1:
            raise MemoryError
        yield Pair("b", "b", "output", rows, rows, None)

    notes: list[str] = []
    feeds = {"x": np.arange(4), "single": np.array(7)}
    pairs = list(Parts(notes).run(work, feeds, 4, lambda batch, rows: split(batch, None, rows)))
    for op in "ab":
        given = np.concatenate([pair.reference for pair in pairs if pair.op == op])
        assert given.tolist() == [0, 1, 2, 3]
    assert len(notes) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="address space is limited so on Linux only")
def test_the_default_heeds_a_limit_of_the_process() -> None:
    code = (
        "import resource\nfrom inc_tb.frameworks.memory import default_budget, free_bytes\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "assert free_bytes() < 1 << 30\nprint(default_budget())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) < 512 * MIB
    assert 0 < default_budget() <= 1 << 30
