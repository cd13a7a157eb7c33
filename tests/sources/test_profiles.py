"""Times that other tools have measured, with their own files."""

from __future__ import annotations

import gzip
import json
import math
import os
import pickle
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import inc_tb
from inc_tb.cli import main
from inc_tb.errors import DataError
from inc_tb.profiling.profile import Profile
from inc_tb.records import Span
from inc_tb.sources.imports import find_sources
from inc_tb.sources.profiles import find_profiles, import_profile
from tests.digits import DATA, digits
from tests.hostile import gzip_bomb

BENCH = {"fp32": DATA / "bench_fp32", "int8": DATA / "bench_int8"}


def times(profile: Profile, side: str = "fp32") -> dict[str, float]:
    return {row.op: getattr(row, f"{side}_us") for row in profile.rows}


def node(name: str, ts: float, dur: float, kind: str = "Conv", **args: Any) -> dict[str, Any]:
    event = {"cat": "Node", "pid": 1, "tid": 1, "ph": "X", "name": f"{name}_kernel_time", "ts": ts, "dur": dur}
    return {**event, "args": {"op_name": kind, **args}}


def session(name: str, ts: float, dur: float, tid: int = 1) -> dict[str, Any]:
    return {"cat": "Session", "pid": 1, "tid": tid, "ph": "X", "name": name, "ts": ts, "dur": dur, "args": {}}


def written(path: Path, events: Any) -> Path:
    path.write_text(json.dumps(events), encoding="utf-8")
    return path


# Neural Compressor's benchmark


def test_a_benchmark_of_neural_compressor() -> None:
    """Of each node the three events in diagnosis.log: a wait before, the kernel, a wait after."""
    found = import_profile(BENCH["fp32"])
    assert times(found) == {
        "r1_nchwc": 1 + 118, "r2_nchwc": 44, "r3_nchwc": 13, "c4_nchwc": 14, "r5_nchwc": 4200, "g_nchwc": 25,
        "ReorderOutput": 7, "/Flatten": 6, "fused gemm": 32, "/fc2/Gemm": 8, "": 4634 - 4468,
    }  # fmt: skip
    assert [row.type for row in found.rows[:6]] == ["Conv"] * 5 + ["GlobalAveragePool"]
    assert found.total.fp32_us == 4634
    assert (found.fp32, found.int8, found.framework, found.runs) == ("bench_fp32", "", "onnx", 1)
    told = " ".join(found.notes)
    assert "adds up the nodes of each type" in told
    assert "op_defined and op_run are events of the trace, not ops and not runs" in told
    assert "a single run, and a cold one" in told
    assert "any op may take several times as long" in told
    assert "does not fit" not in told
    assert {s.model for s in found.slices} == {"fp32"}
    assert found.rows[0].spans[1] == Span("fp32", 0, 36916 - 36910, 118)


@pytest.mark.parametrize("side", BENCH)
def test_times_per_type_are_those_of_its_own_table(side: str) -> None:
    found = import_profile(BENCH[side])
    sums: dict[str, float] = defaultdict(float)
    for row in found.rows:
        sums[row.type] += getattr(row, f"{side}_us")
    del sums[""]
    table = json.loads((BENCH[side] / "profiling_data.json").read_text(encoding="utf-8"))
    assert sums == {row["node_name"]: row["total_execution_time"] for row in table}


def test_conversions_stand_for_themselves() -> None:
    found = times(import_profile(BENCH["int8"]), "int8")
    assert found["r2_/dw/Conv_QuantizeLinear"] == 13
    assert found["logits_/fc2/Gemm_Add_DequantizeLinear"] == 3
    assert len(found) == 20


def test_a_benchmark_without_its_trace(tmp_path: Path) -> None:
    """Of its table the CSV says the same."""
    for name in ("profiling_data.json", "profiling_table.csv"):
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(BENCH["int8"] / name, folder)
        found = import_profile(folder)
        assert times(found, "int8")["QLinearConv"] == 69
        assert sum(times(found, "int8").values()) == 150 + 120 + 69 + 33 + 17 + 13 + 11 + 6 + 3 + 3
        assert found.total.int8_us is None, "nobody knows how often it was run"
        assert found.runs == 0
        assert "without its trace (diagnosis.log) there are no single ops" in found.notes[0]
        assert import_profile(folder / name) == found


def test_a_benchmark_with_a_damaged_trace(tmp_path: Path) -> None:
    folder = shutil.copytree(BENCH["fp32"], tmp_path / "bench")
    (folder / "diagnosis.log").write_bytes(b"")
    found = import_profile(folder)
    assert times(found)["Conv"] == 4390
    assert "cannot be used" in found.notes[1]
    assert "is empty" in found.notes[1]


def test_a_benchmark_with_a_damaged_table(tmp_path: Path) -> None:
    folder = shutil.copytree(BENCH["fp32"], tmp_path / "bench")
    for content in (b"", b"[1", b'[{"node_name": "Conv"}]', b'[{"node_name": "Conv", "total_execution_time": -1}]'):
        (folder / "profiling_data.json").write_bytes(content)
        found = import_profile(folder)
        assert times(found)["r5_nchwc"] == 4200
        assert any(note.startswith("profiling_data.json cannot be read") for note in found.notes)
    (folder / "profiling_data.json").write_text('[{"node_name": "Conv", "total_execution_time": 5}]', encoding="utf-8")
    told = "Neural Compressor's table does not fit its trace: Conv 5 µs instead of 4390 µs"
    assert told in import_profile(folder).notes


@pytest.mark.parametrize(
    "csv", [b"", b"a,b\n1,2\n", b"Node name,Total execution time [us]\nConv,nan\n", b"\xff\xfe\x00"]
)
def test_a_benchmark_with_nothing_to_use(tmp_path: Path, csv: bytes) -> None:
    (tmp_path / "profiling_data.json").write_bytes(b"\x80\x04]")
    (tmp_path / "profiling_table.csv").write_bytes(csv)
    with pytest.raises(DataError, match=r"profiling_data\.json cannot be read .* expected a trace of ONNX Runtime"):
        import_profile(tmp_path)


# ONNX Runtime


def test_a_trace_of_onnx_runtime(tmp_path: Path) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.intra_op_num_threads = True, 2
    options.profile_file_prefix = str(tmp_path / "clean")
    model = onnxruntime.InferenceSession(DATA / "clean.onnx", options, providers=["CPUExecutionProvider"])
    for _ in range(4):
        model.run(None, {"input": digits(16)})
    path = Path(model.end_profiling())
    found = import_profile(path)
    events = json.loads(path.read_text(encoding="utf-8"))
    by_node: dict[str, list[float]] = defaultdict(list)
    for event in events:
        if event["cat"] == "Node":
            by_node[event["name"].removesuffix("_kernel_time")].append(event["dur"])
    assert [row.op for row in found.rows] == [*by_node, ""]
    for row in found.rows[:-1]:
        warm = by_node[row.op][1:]
        assert (row.fp32_us, row.fp32_mean_us) == (np.median(warm), np.mean(warm))
        assert row.fp32_p95_us == pytest.approx(np.percentile(warm, 95))
    whole = [event["dur"] for event in events if event["name"] == "model_run"][1:]
    assert found.total.fp32_us == np.median(whole)
    assert (found.runs, found.threads, found.fp32) == (3, 2, path.name)
    assert "the first of 4 runs does not count: it is cold" in found.notes
    assert not any("single run" in note for note in found.notes)
    details = next(s.details for s in found.slices if s.name == "/fc2/Gemm")
    assert details["op_name"] == "Gemm"
    assert details["output_type_shape"] == '[{"float": [16, 10]}]'


def test_a_loop_and_its_body(tmp_path: Path) -> None:
    """Each moment counts once; in the second run, which is warm, the body is executed twice."""
    run = [node("loop", 10, 50, "Loop"), node("body", 15, 10, "Gemm"), node("body", 30, 20, "Gemm"), node("end", 70, 5)]
    first = [node("loop", 1, 5, "Loop"), session("model_run", 0, 9)]
    found = import_profile(written(tmp_path / "trace.json", [*first, *run, session("model_run", 10, 80)]))
    assert times(found) == {"loop": 20, "body": 30, "end": 5, "": 25}
    spans = {row.op: [(span.start_us, span.duration_us) for span in row.spans] for row in found.rows}
    assert spans["loop"] == [(0, 5), (15, 5), (40, 10)]
    assert spans["body"] == [(5, 10), (20, 20)]


def test_clocks_are_rounded(tmp_path: Path) -> None:
    """What touches the end of another is not part of it; what only just exceeds its end is."""
    events = [node("a", 10, 6), node("b", 15, 10), node("loop", 30, 20, "Loop"), node("body", 41, 10, "Gemm")]
    found = import_profile(written(tmp_path / "trace.json", [*events, session("model_run", 0, 60)]))
    assert times(found) == {"a": 6, "b": 10, "loop": 11, "body": 10, "": 23}


def test_runs_at_the_same_time(tmp_path: Path) -> None:
    """Two threads with a run each, and a pool that has none: its nodes belong to whichever run began last."""
    events = [
        session("model_run", 0, 10, tid=1), session("model_run", 20, 100, tid=1), session("model_run", 30, 100, tid=2),
        {**node("a", 25, 5), "tid": 1}, {**node("a", 50, 7), "tid": 1}, {**node("a", 40, 20), "tid": 2},
        {**node("pooled", 60, 4), "tid": 3}, {**node("late", 500, 4), "tid": 3},
    ]  # fmt: skip
    found = import_profile(written(tmp_path / "trace.json", events))
    assert times(found) == {"a": (12 + 20) / 2, "pooled": 2, "": 100 - 16 - 2}
    assert found.total.fp32_us == 100


def test_nodes_with_equal_names_or_none(tmp_path: Path) -> None:
    events = [
        node("x", 1, 2, node_index="3"), node("x", 4, 5, node_index="7"), node("", 10, 3, "Relu", node_index="4"),
        {**node("x", 4, 1), "name": "x_fence_before"}, session("model_run", 0, 20),
    ]  # fmt: skip
    found = import_profile(written(tmp_path / "trace.json", events))
    assert set(times(found)) == {"x", "x (node 7)", "Relu_4", ""}
    assert sum(times(found).values()) == 20


@pytest.mark.parametrize("mark", ["SequentialExecutor::Execute", "ParallelExecutor::Execute"])
def test_other_marks_of_a_run(tmp_path: Path, mark: str) -> None:
    found = import_profile(written(tmp_path / "trace.json", [node("a", 1, 2), session(mark, 0, 5)]))
    assert times(found) == {"a": 2, "": 3}


def test_no_mark_of_a_run(tmp_path: Path) -> None:
    events = [event for start in (0, 100, 200) for event in (node("a", start, 10), node("b", start + 15, start / 10))]
    found = import_profile(written(tmp_path / "trace.json", events))
    assert times(found) == {"a": 10, "b": 15, "": 5}
    assert "there is no model_run" in found.notes[0]


@pytest.mark.parametrize(
    ("kind", "side"),
    [("QLinearConv", "int8"), ("MatMulInteger", "int8"), ("DequantizeLinear", "int8"), ("DynamicQuantizeLSTM", "int8"),
     ("Quantile", "fp32"), ("Conv", "fp32"), ("QuickGelu", "fp32")],
)  # fmt: skip
def test_whether_it_is_quantized(tmp_path: Path, kind: str, side: str) -> None:
    found = import_profile(written(tmp_path / "trace.json", [node("a", 1, 2, kind), session("model_run", 0, 5)]))
    assert getattr(found, side) == "trace.json"
    assert times(found, side) == {"a": 2, "": 3}


@settings(max_examples=50)
@given(st.integers(0, (BENCH["fp32"] / "diagnosis.log").stat().st_size))
def test_a_trace_that_was_cut_off_anywhere(tmp_path_factory: pytest.TempPathFactory, length: int) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.json"
    path.write_bytes((BENCH["fp32"] / "diagnosis.log").read_bytes()[:length])
    try:
        found = import_profile(path)
    except DataError:
        assert length < 1000
        return
    whole = times(import_profile(BENCH["fp32"]))
    assert all(us == whole[name] for name, us in list(times(found).items())[:-2])


junk = st.none() | st.booleans() | st.text(max_size=5) | st.integers() | st.floats() | st.just([]) | st.just({"a": []})


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 7), st.sampled_from(["cat", "ts", "dur", "ph", "name", "tid", "args"]), junk)))
def test_anything_may_be_in_a_trace(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, str, Any]]
) -> None:
    torch = [{**node("aten::a", 1, 2), "cat": "cpu_op"}, {**node("m", 0, 9), "cat": "user_annotation"}]
    events = [
        node("a", 1, 2),
        node("b", 3, 4),
        session("model_run", 0, 9),
        node("a", 11, 2),
        session("model_run", 10, 9),
    ]
    for place, key, value in changes:
        [*events, *torch, events[0]][place][key] = value
    for part in (events, torch):
        path = written(tmp_path_factory.getbasetemp() / "junk.json", part)
        try:
            found = import_profile(path)
        except DataError:
            continue
        shown = [us for row in found.rows for us in (row.fp32_us, row.int8_us) if us is not None]
        assert all(math.isfinite(us) and us >= 0 for us in shown)


# torch.profiler


def test_a_trace_of_torch(tmp_path: Path) -> None:
    """The profiler's own table is the judge: self times, summed over the steps."""
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).eval()
    steps = schedule(wait=0, warmup=1, active=3, repeat=1)
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], schedule=steps) as profiler:
        for _ in range(4):
            model(torch.ones(4, 8))
            profiler.step()
    path = tmp_path / "worker0.pt.trace.json"
    profiler.export_chrome_trace(str(path))
    found = import_profile(path)
    assert (found.framework, found.runs, found.fp32) == ("torch", 3, path.name)
    own = {event.key: event.self_cpu_time_total for event in profiler.key_averages()}
    assert {row.op for row in found.rows} == {"", *(name for name in own if not name.startswith("ProfilerStep"))}
    for row in found.rows[:-1]:
        assert row.fp32_mean_us is not None
        assert 3 * row.fp32_mean_us == pytest.approx(own[row.op], abs=0.1)
        assert row.type == row.op
    assert found.rows[0].op == "aten::ones"
    packed = tmp_path / "worker0.pt.trace.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert times(import_profile(packed)) == times(found)


def op(name: str, ts: float, dur: float, cat: str = "cpu_op", **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": {}, **more}


def test_modules_and_annotated_ranges(tmp_path: Path) -> None:
    events = [
        op("nn.Module: Sequential_0", 0, 100, "python_function"), op("nn.Module: Linear_0", 5, 40, "python_function"),
        op("torch/nn/modules/linear.py(130): forward", 6, 38, "python_function"),
        op("aten::linear", 10, 30), op("aten::addmm", 15, 20), op("head", 50, 40, "user_annotation"),
        op("aten::relu", 60, 10), op("aten::add", 95, 2), op("aten::mul", 120, 5), op("aten::mul", 121, 3, tid=2),
    ]  # fmt: skip
    found = import_profile(written(tmp_path / "trace.json", {"traceEvents": events}))
    assert times(found) == {
        "Linear_0/aten::linear": 10, "Linear_0/aten::addmm": 20, "head/aten::relu": 10, "Sequential_0/aten::add": 2,
        "aten::mul": 8, "": 125 - 50,
    }  # fmt: skip
    assert "there is no ProfilerStep" in found.notes[0]


def test_steps_of_a_trace_of_torch(tmp_path: Path) -> None:
    """Step 0 is cold; what runs between steps does not count; GPU copies of the steps are no steps."""
    steps = [op(f"ProfilerStep#{i}", 100 * i, 80, "user_annotation") for i in range(3)]
    on_gpu = [op("ProfilerStep#1", 900, 5, "gpu_user_annotation"), op("gemm", 110, 5, "kernel")]
    ops = [op("aten::mm", 10, 50), op("aten::mm", 110, 20), op("aten::mm", 190, 5), op("quantized::linear", 210, 30)]
    found = import_profile(written(tmp_path / "trace.json", [*steps, *on_gpu, *ops]))
    assert times(found, "int8") == {"aten::mm": 10, "quantized::linear": 15, "": 55}
    assert found.int8 == "trace.json"
    assert "the first of 3 steps does not count: it is cold" in found.notes
    assert "the times are those of the CPU: what kernels on a GPU take is not counted" in found.notes


def test_a_trace_of_something_else(tmp_path: Path) -> None:
    for events in ([op("V8.Execute", 1, 2, "v8")], [session("model_loading_uri", 0, 5), session("model_run", 0, 5)]):
        with pytest.raises(DataError, match=r"trace\.json: none of its events is an op; expected a trace of ONNX"):
            import_profile(written(tmp_path / "trace.json", events))
    with pytest.raises(DataError, match=r"trace\.json: none of its ops is part of a run"):
        import_profile(written(tmp_path / "trace.json", [node("a", 50, 2), session("model_run", 0, 5)]))


# Finding them, and the command


def test_what_is_found_below_a_folder(tmp_path: Path) -> None:
    shutil.copytree(BENCH["fp32"], tmp_path / "b" / "deep" / "fp32")
    shutil.copytree(BENCH["int8"], tmp_path / "b" / "int8")
    trace = written(tmp_path / "a.json", [node("a", 1, 2), session("model_run", 0, 5)])
    (tmp_path / "c.pt.trace.json.gz").write_bytes(gzip.compress(trace.read_bytes()))
    written(tmp_path / "config.json", {"ph": 1})
    ours = tmp_path / "run" / "plugins" / "profile" / "session"
    ours.mkdir(parents=True)
    shutil.copy(trace, ours)
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "nowhere.json").symlink_to(tmp_path / "missing")
    found = [str(path.relative_to(tmp_path)) for path in find_profiles(tmp_path)]
    assert found == ["a.json", "c.pt.trace.json.gz", "b/deep/fp32", "b/int8"]
    assert find_profiles(tmp_path / "run") == []
    with pytest.raises(DataError, match=r"holds nothing to import; expected a workspace .* a trace of ONNX Runtime"):
        find_sources(tmp_path / "run")


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exited:
        main(["import", *map(str, arguments)])
    assert isinstance(exited.value.code, int)
    return exited.value.code, *capsys.readouterr()


def test_each_is_a_run_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, folder in BENCH.items():
        shutil.copytree(folder, tmp_path / "bench" / name)
    logdir = tmp_path / "nc_workspace"
    code, text, said = run(capsys, tmp_path / "bench", "--logdir", logdir, "--json")
    assert (code, said) == (0, "")
    runs = json.loads(text)["runs"]
    assert [{**listed, "notes": len(listed["notes"])} for listed in runs] == [
        {"name": name, "source": str(tmp_path / "bench" / name), "trials": 0, "ops": ops, "baseline": None,
         "best": None, "notes": 3}
        for name, ops in (("fp32", 10), ("int8", 19))
    ]  # fmt: skip
    logged = inc_tb.load(logdir / "fp32").profile
    assert logged is not None
    assert times(logged) == times(import_profile(BENCH["fp32"]))
    assert logged.notes == runs[0]["notes"]
    assert list((logdir / "fp32" / "plugins" / "profile").glob("*/*.xplane.pb"))
    assert run(capsys, tmp_path / "bench" / "fp32", "--logdir", logdir, "--json")[0] == 0
    assert sorted(path.name for path in logdir.iterdir()) == ["fp32", "int8"]
    shutil.rmtree(tmp_path / "bench" / "fp32")
    shutil.copytree(BENCH["int8"], tmp_path / "bench" / "fp32")
    assert run(capsys, tmp_path / "bench" / "fp32", "--logdir", logdir, "--json")[0] == 0
    assert sorted(path.name for path in logdir.iterdir()) == ["fp32", "fp32-2", "int8"]


def test_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, said = run(capsys, BENCH["fp32"] / "diagnosis.log", "--logdir", tmp_path / "logs", "--run", "a/b")
    assert (code, said) == (0, "")
    assert "r5_nchwc" in text
    assert "cold" in text
    assert "Logged 10 ops to" in text
    assert "tensorboard --logdir" in text
    assert (tmp_path / "logs" / "a" / "b").is_dir()


def test_names_of_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    events = [node("a", 1, 2), session("model_run", 0, 5)]
    for name in ("worker.17.pt.trace.json", "é.json", ".json", b"conv\xff.json".decode("utf-8", "surrogateescape")):
        written(tmp_path / name, events)
        assert run(capsys, tmp_path / name, "--logdir", tmp_path / "logs")[0] == 0
    names = sorted(path.name for path in (tmp_path / "logs").iterdir())
    assert names == ["conv?", "imported", "worker.17", "é"]
    monkeypatch.chdir(shutil.copytree(BENCH["fp32"], tmp_path / "bench"))
    assert run(capsys, ".", "--logdir", tmp_path / "logs")[0] == 0
    assert (tmp_path / "logs" / "bench").is_dir()


def test_a_name_for_several_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, folder in BENCH.items():
        shutil.copytree(folder, tmp_path / "in" / name)
    for _ in range(2):
        code, text, _ = run(capsys, tmp_path / "in", "--logdir", tmp_path / "logs", "--run", "old", "--json")
        assert code == 0
        assert [listed["name"] for listed in json.loads(text)["runs"]] == ["old/fp32", "old/int8"]


def test_one_of_several_that_is_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(BENCH["int8"], tmp_path / "in" / "good")
    (tmp_path / "in" / "bad").mkdir()
    (tmp_path / "in" / "bad" / "diagnosis.log").write_bytes(b"")
    code, text, said = run(capsys, tmp_path / "in", "--logdir", tmp_path / "logs", "--json")
    assert code == 0
    assert [listed["name"] for listed in json.loads(text)["runs"]] == ["good"]
    assert "Left out:" in said
    assert "diagnosis.log: is empty" in said
    (tmp_path / "in" / "good" / "diagnosis.log").write_bytes(b"")
    (tmp_path / "in" / "good" / "profiling_data.json").unlink()
    (tmp_path / "in" / "good" / "profiling_table.csv").unlink()
    code, _, said = run(capsys, tmp_path / "in", "--logdir", tmp_path / "logs")
    assert code == 2
    assert said.splitlines()[-1].startswith("inc-tb: none of the 2 that were found can be imported")


HOSTILE = {
    "not_json": b"hello", "empty": b"", "pickle": pickle.dumps({"traceEvents": [os.getcwd]}), "number": b"1e999",
    "nan": b'[{"ph": "X", "cat": "Node", "name": "a_kernel_time", "ts": NaN, "dur": Infinity}]',
    "long": b'[{"ph": "X", "cat": "Node", "name": "a_kernel_time", "ts": ' + b"9" * 9999 + b', "dur": 1}]',
    "deep": b"[" * 100_000, "binary": bytes(range(256)), "gzip": b"\x1f\x8b" + b"\x00" * 50,
}  # fmt: skip


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_unusable_files(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    (tmp_path / "trace.json").write_bytes(content)
    code, text, said = run(capsys, tmp_path / "trace.json", "--logdir", tmp_path / "logs")
    assert (code, text) == (2, "")
    assert said.startswith(f"inc-tb: {tmp_path / 'trace.json'}: ")
    assert "expected" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "logs").exists()


def test_unusable_places(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    trace = written(tmp_path / "trace.json", [node("a", 1, 2), session("model_run", 0, 5)])
    for arguments, told in (
        ((tmp_path / "nowhere",), "is not there; expected a workspace of Neural Compressor"),
        ((tmp_path / "empty",), "holds nothing to import"),
        ((trace, "--logdir", trace), "is a file; expected a folder"),
        ((trace, "--logdir", tmp_path / "logs", "--run", "../x"), "expected a name below the logdir"),
    ):
        code, _, said = run(capsys, *arguments)
        assert code == 2
        assert told in said
        assert said.count("\n") == 1


def test_odd_names_and_details(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deep: Any = 1
    for _ in range(900):
        deep = [deep]
    odd = node("ODD \x00 <b>", 1, 2, "\ud800", big=10**400, nothing=math.nan, deep=deep, flag=True, **{"\udfff": "x"})
    path = written(tmp_path / "trace.json", [odd, session("model_run", 0, 5)])
    path.write_bytes(path.read_bytes().replace(b"ODD", b"\xff"))
    code, _, said = run(capsys, path, "--logdir", tmp_path / "logs", "--json")
    assert (code, said) == (0, "")
    logged = inc_tb.load(tmp_path / "logs" / "trace").profile
    assert logged is not None
    assert [(row.op, row.type) for row in logged.rows] == [("\ufffd \x00 <b>", "\ufffd"), ("", "")]


def test_half_a_run_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("inc_tb.store.writer.write_traces", fail)
    code, _, said = run(capsys, BENCH["fp32"], "--logdir", tmp_path)
    assert code == 2
    assert "No space left" in said
    assert list(tmp_path.iterdir()) == []


def test_packed_traces_are_found_below_a_folder(tmp_path: Path) -> None:
    events = (BENCH["fp32"] / "diagnosis.log").read_bytes()
    (tmp_path / "run.json.gz").write_bytes(gzip.compress(events))
    (tmp_path / "notes.json.gz").write_bytes(gzip.compress(b"{}"))
    assert find_profiles(tmp_path) == [tmp_path / "run.json.gz"]


def test_names_that_are_no_text_are_printed_as_json(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.json"))
    shutil.copy(BENCH["fp32"] / "diagnosis.log", source)
    with pytest.raises(SystemExit) as ended:
        main(["import", str(source), "--logdir", str(tmp_path / "log"), "--json"])
    assert ended.value.code in (0, None)
    (run,) = json.loads(capfd.readouterr().out)["runs"]
    assert run["source"].endswith("udcff.json")


def test_a_packed_trace_is_not_unpacked_further_than_a_trace_could_be(tmp_path: Path) -> None:
    """10 GB of zeros in 10 MB."""
    bomb = tmp_path / "trace.json.gz"
    bomb.write_bytes(gzip_bomb(10 << 30))
    with pytest.raises(DataError, match=r"10\.4 MB unpack to more than 434 MB, which no trace does"):
        import_profile(bomb)


def test_spans_inside_of_each_other_to_any_depth(tmp_path: Path) -> None:
    """30,000 of them: time that grows with the square of their number would be half an hour."""
    count = 30_000
    events = [
        {"ph": "X", "cat": "cpu_op" if i % 2 else "user_annotation", "name": f"op{i % 7}", "pid": 1, "tid": 1,
         "ts": i, "dur": 2 * (count - i)}
        for i in range(count)
    ]  # fmt: skip
    path = tmp_path / "deep.json"
    path.write_text(json.dumps(events))
    profile = import_profile(path)
    assert sum(row.fp32_us or 0.0 for row in profile.rows if row.op) == pytest.approx(2 * count, rel=0.01)
