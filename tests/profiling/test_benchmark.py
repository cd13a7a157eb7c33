"""Latency and throughput by the size of the batches, and the table of them."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from rich.console import Console

import inc_tb
from inc_tb.errors import UsageError
from inc_tb.profiling.benchmark import Speed, batch_of, speed_of
from inc_tb.show.profiles import show_benchmark
from tests.digits import DATA, digits


def shown(speeds: list[Speed], width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    show_benchmark(console, speeds)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_numbers_follow_from_the_runs() -> None:
    found = speed_of(8, {"fp32": [100.0, 200.0, 400.0], "int8": [50.0, 80.0, 1000.0]}, differs=True)
    assert (found.fp32_us, found.int8_us) == (200, 80)
    assert (found.fp32_samples_per_s, found.int8_samples_per_s) == (40_000, 100_000)  # 8 in 200 and in 80 µs
    assert found.speedup == 2.5
    assert found.int8_p95_us == pytest.approx(908)  # 9/10 of the way from 80 to 1000


def test_of_one_model() -> None:
    found = speed_of(1, {"int8": [1000.0]})
    assert (found.int8_samples_per_s, found.fp32_us, found.speedup) == (1000, None, None)
    text = shown([found])
    assert "fp32" not in text
    assert "speed-up" not in text
    assert re.search(r"^1 +1\.000 +1,000$", text, re.M)


def test_batches_are_filled_from_what_there_is() -> None:
    held = [{"x": np.array([[1], [2]]), "scale": np.array(3.0)}, {"x": np.array([[4]]), "scale": np.array(3.0)}]
    assert batch_of(held, 2)["x"].ravel().tolist() == [1, 2]
    assert batch_of(held, 7)["x"].ravel().tolist() == [1, 2, 4, 1, 2, 4, 1]
    assert batch_of(held, 7)["scale"] == 3
    odd = [*held, {"x": np.array([[5, 6]]), "scale": np.array(3.0)}]  # another length
    assert batch_of(odd, 4)["x"].shape == (4, 1)


def test_the_table_fits_80_columns_whatever_the_numbers() -> None:
    large = speed_of(1024, {"fp32": [123_456_789.0] * 3, "int8": [98_765_432.1] * 3}, differs=False)
    small = speed_of(1, {"fp32": [0.4] * 3, "int8": [12.345] * 3}, differs=True)
    text = shown([small, large])
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for number in ("123,457", "98,765", "0.0004", "0.0123", "2,500,000", "81,004", "0.03", "1.25 (noise)"):
        assert number in text.split("samples/s", 1)[1], number


def test_real_models_in_turns(tmp_path: Path) -> None:
    speeds = inc_tb.profile(
        DATA / "hard.onnx", {"input": digits(4)}, quantized=DATA / "clean.onnx", runs=6, batch_sizes=[1, 8, 4]
    )
    assert [speed.batch_size for speed in speeds.benchmark] == [1, 4, 8]
    for speed in speeds.benchmark:
        assert speed.fp32_samples_per_s == pytest.approx(1e6 * speed.batch_size / speed.fp32_us)
        assert speed.speedup == pytest.approx(speed.fp32_us / speed.int8_us)
        assert not speed.note
    with inc_tb.SummaryWriter(tmp_path / "run") as writer:
        writer.add_profile(speeds)
    logged = inc_tb.load(tmp_path / "run").profile
    assert logged is not None
    assert logged.benchmark == speeds.benchmark
    assert logged.to_json()["benchmark"] == speeds.to_json()["benchmark"]


def test_a_size_that_a_model_does_not_take_is_told(tmp_path: Path) -> None:
    model = onnx.load(DATA / "clean.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, tmp_path / "one.onnx")
    found = inc_tb.profile(tmp_path / "one.onnx", {"input": digits(1)}, runs=2, warmup=0, batch_sizes=[1, 4])
    first, second = found.benchmark
    assert first.fp32_us
    assert second.fp32_us is None
    assert second.note
    text = " ".join(shown(found.benchmark).split())
    assert "note: no times with 4 samples at once: " in text
    with pytest.raises(UsageError, match="batch_sizes=0 was given; expected a whole number from 1 on"):
        inc_tb.profile(tmp_path / "one.onnx", {"input": digits(1)}, batch_sizes=[0])
