"""`inc-tb profile`, in this process: tables, JSON, traces, and the diagnosis that it adds times to."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inc_tb
from inc_tb.cli import main
from tests.digits import DATA, digits

Called = Callable[..., tuple[int, str, str]]
OPS = {"/conv1/Conv", "/conv2/Conv", "/dw/Conv", "/pw/Conv", "/conv5/Conv", "/fc1/MatMul", "/fc2/Gemm"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantized: Callable[..., Path]) -> Path:
    """A folder with fp32.onnx, int8.onnx and data.npz."""
    np.savez(tmp_path / "data.npz", input=digits(32))
    shutil.copyfile(DATA / "hard.onnx", tmp_path / "fp32.onnx")
    shutil.copyfile(quantized("hard"), tmp_path / "int8.onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


@pytest.fixture
def call(here: Path, capfd: pytest.CaptureFixture[str]) -> Called:
    def called(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        done = capfd.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, done.out, done.err

    return called


def _profiled(call: Called, *arguments: object) -> str:
    code, out, err = call("profile", *arguments, "--data", "data.npz", "--runs", 15, "--batch-size", 8)
    assert code == 0, err
    return out


def _table(text: str) -> list[tuple[str, float, float]]:
    """Op, share and cumulative share of each row."""
    found = []
    for line in text.splitlines():
        shares = re.findall(r"([\d.]+)%", line)
        if len(shares) == 2 and not line.startswith(("where ", "fp32:", "int8:", "note:")):
            found.append((line.split()[0], float(shares[0]), float(shares[1])))
    return found


@pytest.mark.parametrize("models", [["fp32.onnx"], ["int8.onnx"], ["fp32.onnx", "int8.onnx"]], ids=len)
def test_rows_are_sorted_by_time_with_shares_that_add_up(call: Called, models: list[str]) -> None:
    text = _profiled(call, *models, "--top", 99)
    assert "Profiling summary" in text
    assert "share" in text
    assert "cumulative" in text
    rows = _table(text)
    assert {op for op, _, _ in rows} >= OPS
    assert "outside of all ops" in text
    shares, upto = [share for _, share, _ in rows], [share for _, _, share in rows]
    assert shares == sorted(shares, reverse=True)
    np.testing.assert_allclose(np.cumsum(shares), upto, atol=0.05 * len(rows) + 0.1)
    assert upto[-1] == 100
    for side in ("fp32", "int8"):
        assert (f"{side}: " in text) == (f"{side}.onnx" in models)
    assert "samples/s" in text
    assert "the profiler adds" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 120


def test_several_batch_sizes(call: Called) -> None:
    given = ("profile", "fp32.onnx", "int8.onnx", "--data", "data.npz", "--runs", 15, "--batch-size", "2,8")
    code, out, err = call(*given)
    assert code == 0, err
    rows = re.findall(r"^ *(\d+) +[\d.,]+ +[\d.,]+ +[\d.,]+ +[\d.,]+ +[\d.]+(?: \(noise\))? *$", out, re.M)
    assert rows == ["2", "8"]
    code, out, err = call(*given, "--json", "--run", "again")
    assert code == 0, err
    found = json.loads(out)
    assert found["samples"] == 2
    assert [row["batch_size"] for row in found["benchmark"]] == [2, 8]
    for row in found["benchmark"]:
        assert row["int8_samples_per_s"] == pytest.approx(1e6 * row["batch_size"] / row["int8_us"])


@pytest.mark.parametrize("given", ["0", "1,x", "", "1,,2", "-1"])
def test_batch_sizes_that_are_none(call: Called, given: str) -> None:
    code, out, err = call("profile", "fp32.onnx", "--data", "data.npz", f"--batch-size={given}")
    assert (code, out) == (2, "")
    told = f"--batch-size {given} was given; expected a whole number from 1 on, or several: 1,8,32"
    assert " ".join(told.split()) in " ".join(err.split())


def test_the_longest_rows_only(call: Called) -> None:
    text = _profiled(call, "fp32.onnx", "--top", 3)
    assert len(_table(text)) == 3
    assert re.search(r"3 of \d+ rows", text)


def _json(call: Called, *arguments: object) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in JSON")

    found: dict[str, Any] = json.loads(_profiled(call, *arguments, "--json"), parse_constant=refuse)
    return found


def test_json_of_one_model(call: Called, here: Path) -> None:
    found = _json(call, "fp32.onnx", "--threads", 1)
    assert {"model", "runs", "total_us", "ops"} <= found.keys()
    assert (found["model"], found["runs"], found["threads"], found["samples"]) == ("fp32.onnx", 15, 1, 8)
    for op in found["ops"]:
        assert {"name", "type", "mean_us", "p50_us", "p95_us", "share"} <= op.keys()
    assert {op["name"] for op in found["ops"]} >= OPS | {""}
    logged = inc_tb.load(here / "nc_workspace" / "fp32").profile
    assert logged is not None
    assert logged.to_json() == found


def test_json_of_two_models(call: Called) -> None:
    found = _json(call, "fp32.onnx", "int8.onnx")
    assert (found["model"], found["quantized"]["model"]) == ("fp32.onnx", "int8.onnx")
    assert {op["name"] for op in found["comparison"]} >= OPS
    assert all(isinstance(op["differs"], bool) for op in found["comparison"])
    assert found["overhead"].keys() == found["accounted"].keys() == {"fp32", "int8"}


def test_a_trace_holds_the_ops_of_both_models(call: Called, here: Path) -> None:
    _profiled(call, "fp32.onnx", "int8.onnx", "--trace", "trace.json")
    events = json.loads((here / "trace.json").read_text())["traceEvents"]
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"fp32", "int8"}
    names = {e["name"] for e in events if e["ph"] == "X"}
    assert any("conv1" in name for name in names)
    assert "/GlobalAveragePool" in names


def test_times_go_to_the_diagnosis_of_the_same_models(call: Called, here: Path) -> None:
    code, _, err = call("diagnose", "fp32.onnx", "int8.onnx", "--data", "data.npz")
    assert code == 0, err
    text = _profiled(call, "fp32.onnx", "int8.onnx")
    assert "and the times to its diagnosis" in " ".join(text.split())
    assert "Suggestion 1, outlier channels: keeping /conv1/Conv" in " ".join(text.split())
    run = inc_tb.load(here / "nc_workspace" / "int8")
    assert (set(run.diagnoses), set(run.profiles)) == ({0, 1}, {0})
    ops = run.ops
    timed = {str(name) for name, us in zip(ops["name"], ops["time_fp32_us"], strict=True) if not np.isnan(us)}
    assert timed >= OPS
    for column in ("time_fp32_us", "time_int8_us", "convert_us", "speedup"):
        assert all(not np.isnan(ops[column][i]) or ops.why_null(column, i) for i in range(ops.count))
    assert [e.unit for s in run.suggestions for e in s.effects].count("µs") == len(run.suggestions)
    assert run.suggestions[0].rule == "outlier_channels"
    assert run.diagnosis.histograms
    assert {p.name for p in (here / "nc_workspace").iterdir()} == {"fp32", "int8"}


def test_anything_else_gets_a_run_of_its_own(call: Called, here: Path) -> None:
    """Of one model, of two that were not diagnosed, and where a run is asked for."""
    code, _, err = call("diagnose", "fp32.onnx", "int8.onnx", "--data", "data.npz")
    assert code == 0, err
    _profiled(call, "int8.onnx")
    _profiled(call, "fp32.onnx", "fp32.onnx", "--run", "mine")
    _profiled(call, "fp32.onnx", "fp32.onnx", "--run", "mine")
    found = {p.name: inc_tb.load(p) for p in (here / "nc_workspace").iterdir() if p.name != "fp32"}
    assert found.keys() == {"int8", "int8-2", "mine"}
    assert not found["int8"].profiles
    assert set(found["int8-2"].profiles) == {0}
    assert set(found["mine"].profiles) == {0, 1}
    assert not found["mine"].diagnoses


WRONG: dict[str, tuple[list[object], list[str]]] = {
    "no model": (["none.onnx", "--data", "data.npz"], ["none.onnx", "no such file"]),
    "no second model": (["fp32.onnx", "none.onnx", "--data", "data.npz"], ["none.onnx", "no such file"]),
    "not a model": (["data.npz", "--data", "data.npz"], ["data.npz", "expected"]),
    "order": (["int8.onnx", "fp32.onnx", "--data", "data.npz"], ["fp32.onnx, given second, is not", "Swap the two"]),
    "no data": (["fp32.onnx", "--data", "none.npz"], ["none.npz", "no such file"]),
    "no option": (["fp32.onnx"], ["--data"]),
    "runs": (["fp32.onnx", "--data", "data.npz", "--runs", 0], ["--runs"]),
    "threads": (["fp32.onnx", "--data", "data.npz", "--threads", 0], ["--threads"]),
    "warmup": (["fp32.onnx", "--data", "data.npz", "--warmup", -1], ["--warmup"]),
    "trace": (["fp32.onnx", "--data", "data.npz", "--trace", "none/t.json"], ["--trace", "no folder"]),
    "run": (["fp32.onnx", "--data", "data.npz", "--run", "../x"], ["--run", "below the logdir"]),
    "logdir": (["fp32.onnx", "--data", "data.npz", "--logdir", "data.npz"], ["is a file"]),
    "no arguments": ([], ["Missing"]),
}


@pytest.mark.parametrize(("arguments", "says"), WRONG.values(), ids=WRONG)
def test_wrong_use_is_one_line_and_leaves_nothing(
    call: Called, here: Path, arguments: list[object], says: list[str]
) -> None:
    code, out, err = call("profile", *arguments)
    assert (code, out) == (2, "")
    (line,) = err.strip().splitlines()
    for part in says:
        assert part in line
    assert not (here / "nc_workspace").exists()


def test_times_go_to_no_diagnosis_of_other_models(call: Called, here: Path) -> None:
    shutil.copyfile(here / "fp32.onnx", here / "other.onnx")
    call("diagnose", "fp32.onnx", "int8.onnx", "--data", "data.npz", "--run", "r")
    code, _, err = call("profile", "other.onnx", "int8.onnx", "--data", "data.npz", "--runs", 6, "--run", "r")
    assert code == 0
    assert "holds a diagnosis of fp32.onnx and int8.onnx; it gets no times" in " ".join(err.split())
    assert np.isnan(inc_tb.load(here / "nc_workspace" / "r").ops["time_fp32_us"]).all()


def test_the_same_models_by_another_path_are_the_same(call: Called, here: Path) -> None:
    call("diagnose", "fp32.onnx", "int8.onnx", "--data", "data.npz")
    out = _profiled(call, here / "fp32.onnx", "./int8.onnx")
    assert "and the times to its diagnosis" in " ".join(out.split())


def test_few_runs_are_said_to_be_too_few(call: Called) -> None:
    _, out, _ = call("profile", "fp32.onnx", "int8.onnx", "--data", "data.npz", "--runs", 5)
    assert "too few runs to tell differences from noise" in " ".join(out.split())
