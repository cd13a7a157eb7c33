"""`inc-tb tune` and `inc-tb diagnose --probe`, as people call them."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import inc_tb
from inc_tb.cli import main
from inc_tb.tuning.history import FILE
from tests.digits import digits
from tests.tuning.test_tune import CLEAN, CULPRITS, HARD, calibration, results

SCORES = '''"""Accuracies for the tests."""
import pathlib
import sys

import numpy as np
import onnxruntime

from inc_tb.demo import load_digits


def accuracy(path):
    images, labels, held_out = load_digits()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return (session.run(None, {"input": images[held_out]})[0].argmax(axis=1) == labels[held_out]).mean()


def chatty(path):
    print("evaluating", path)
    return accuracy(path)


def error_rate(path):
    return 1 - accuracy(path)


def never(path):
    return accuracy(path) - (0 if "hard" in path or "clean" in path else 0.3)


def raises(path):
    raise ValueError("first line\\nsecond line")


def raises_later(path):
    return raises(path) if "inc-tb-" in path else 1.0


def text(path):
    return "very good"


def nan(path):
    return float("nan")


def none(path):
    pass


def interrupted(path):
    raise KeyboardInterrupt


def nodes(path):
    import onnx

    return len(onnx.load(path).graph.node)


not_callable = 3
'''


def run(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {"PATH": "/usr/bin:/bin", "COLUMNS": "120", "PYTHONPATH": str(Path(inc_tb.__file__).parents[1])}
    command = [sys.executable, "-m", "inc_tb.cli", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=env)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data and scores, in which commands run."""
    np.savez(tmp_path / "data.npz", input=calibration())
    (tmp_path / "tune_scores.py").write_text(SCORES)
    (tmp_path / "broken_scores.py").write_text("import nothing_of_that_name\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


Called = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(here: Path, capfd: pytest.CaptureFixture[str]) -> Called:
    """The command in this process: its exit code, standard output and standard error."""

    def called(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        done = capfd.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return code, done.out, done.err

    return called


def tuned(call: Called, *options: object, model: Path = HARD, score: str = "accuracy") -> dict[str, Any]:
    code, out, err = call("tune", model, "--data", "data.npz", "--eval", f"tune_scores.py:{score}", "--json", *options)
    assert code in (0, 1), err

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in JSON")

    found: dict[str, Any] = json.loads(out, parse_constant=refuse)
    assert found["met"] == (code == 0)
    return found


@pytest.mark.slow
def test_tune_tells_what_it_does_and_where_to_look(here: Path) -> None:
    done = run("tune", HARD, "--data", "data.npz", "--eval", "tune_scores.py:accuracy", "--per-channel", cwd=here)
    assert done.returncode == 0, done.stderr
    text = done.stdout
    table = "Output of all int8 (trial-001) against fp32"
    assert text.index("trial-001") < text.index("trial-002") < text.index("Trials") < text.index(table)
    assert "best so far" in text
    for part in (
        "The criterion holds", "Kept in fp32: nothing", "Rewritten in fp32: channel", "per_channel=True",
        "nodes_to_exclude", "Benchmark: fp32 against trial-", "To choose from", "multiplications in int8",
        "nc_workspace/best_model.onnx", "tensorboard --logdir nc_workspace", "quantizations", "simulated", "real",
    ):  # fmt: skip
        assert part in text, part
    assert max(map(len, text.splitlines())) <= 120
    left = {path.name for path in here.iterdir() if path.name != "__pycache__"}
    assert left == {"data.npz", "tune_scores.py", "broken_scores.py", "nc_workspace"}
    assert inc_tb.load(here / "nc_workspace" / "trial-001").trial.accuracy is not None


@pytest.mark.slow
def test_json_is_alone_on_standard_output(here: Path) -> None:
    done = run(
        "tune", HARD, "--data", "data.npz", "--eval", "tune_scores.py:chatty", "--per-channel", "--json", cwd=here
    )
    assert done.returncode == 0, done.stderr
    assert "trial-001" in done.stderr
    assert done.stdout.count("\n") == 1
    assert json.loads(done.stdout)["best"]["fallback"] == []


def test_the_schema_of_json(call: Called) -> None:
    found = tuned(call, "--per-channel")
    assert {"baseline", "target", "met", "best", "trials"} <= set(found)
    assert {"trial", "accuracy", "fallback"} <= set(found["best"])
    for trial in found["trials"]:
        assert {"trial", "accuracy", "fallback", "objectives", "wall_s"} <= set(trial)
        assert set(trial["objectives"]) == set(found["baseline_objectives"]) == {"latency_ms", "size_kb"}
        assert 0 <= trial["int8_macs"] <= 1
        assert trial["wall_s"] > 0
    assert found["met"] is True
    assert found["best"]["trial"] == found["trials"][-1]["trial"]
    assert found["best"]["fallback"] == []
    assert found["target"] == pytest.approx(0.99 * found["baseline"])
    assert len(found["trials"]) <= 3
    assert set(found["front"]) <= {"fp32", *(trial["trial"] for trial in found["trials"])}
    assert found["int8_pays"] in (True, False)
    assert found["trials"][0]["int8_macs"] == found["best"]["int8_macs"]
    assert [row["batch_size"] for row in found["benchmark"]] == [1, 16]
    for row in found["benchmark"]:
        assert row["fp32_samples_per_s"] == pytest.approx(1e6 * row["batch_size"] / row["fp32_us"])
        assert row["speedup"] == pytest.approx(row["fp32_us"] / row["int8_us"])


def test_the_smallest_model_that_meets_the_criterion(call: Called) -> None:
    found = tuned(call, "--minimize", "size", "--no-rewrite", "--per-channel")
    assert (found["met"], found["minimize"]) == (True, "size_kb")
    sizes = {trial["trial"]: trial["objectives"]["size_kb"] for trial in found["trials"]}
    met = [name for name in sizes if accuracy_of(found, name) >= found["target"]]
    assert found["best"]["objectives"]["size_kb"] <= 1.05 * min(sizes[name] for name in met)
    assert found["front"] == sorted(found["front"], key=lambda name: sizes.get(name, 1e9))
    code, _, err = call(
        "tune", HARD, "--data", "data.npz", "--eval", "tune_scores.py:accuracy", "--minimize", "speed", "--logdir", "x"
    )
    assert (code, err.count("\n")) == (2, 1)
    assert "minimize='speed' was given; expected latency, size, memory, ops" in err


def accuracy_of(found: dict[str, Any], name: str) -> float:
    return next(float(trial["accuracy"]) for trial in found["trials"] if trial["trial"] == name)


def test_the_best_model_is_saved_and_timed_where_that_is_wanted(call: Called, here: Path) -> None:
    options = ("--per-channel", "--max-trials", 1, "--objective", "size")
    assert tuned(call, *options)["benchmark"] == []
    found = tuned(call, *options, "--batch-size", "2", "--save", "saved", "--logdir", "other")
    assert [row["batch_size"] for row in found["benchmark"]] == [2]
    loaded = inc_tb.load_model(here / "saved")
    assert loaded.read_bytes() == (here / "other" / "best_model.onnx").read_bytes()
    code, _, err = call("tune", HARD, "--data", "data.npz", "--eval", "tune_scores.py:accuracy", "--save", "other")
    assert code == 2
    assert "other: is a folder with something else in it" in " ".join(err.split())


def test_a_criterion_that_is_missed_exits_with_1_and_keeps_the_best(call: Called, here: Path) -> None:
    code, out, err = call("tune", HARD, "--data", "data.npz", "--eval", "tune_scores.py:never", "--max-trials", 2)
    assert code == 1, err
    assert "The criterion does not hold" in out
    assert "at least 0.985 is wanted; all 2 trials are used up" in " ".join(out.split())
    assert (here / "nc_workspace" / "best_model.onnx").exists()


def zeros(path: Path) -> set[str]:
    model = onnx.load(path)
    names = {n.input[2] for n in model.graph.node if n.op_type == "QuantizeLinear"}
    return {str(numpy_helper.to_array(t).dtype) for t in model.graph.initializer if t.name in names}


def test_options_for_the_criterion(call: Called) -> None:
    found = tuned(
        call, "--lower-is-better", "--absolute", "--tolerance", 0.02, "--logdir", "a", model=CLEAN, score="error_rate"
    )
    assert found["target"] == pytest.approx(found["baseline"] + 0.02)
    assert found["baseline"] < 0.02
    found = tuned(call, "--tolerance", 0.2, "--logdir", "b", "--per-channel")
    assert found["target"] == pytest.approx(0.8 * found["baseline"])
    assert len(found["trials"]) == 1


def test_options_for_the_quantizer(call: Called, here: Path) -> None:
    options: dict[str, tuple[str, ...]] = {
        "calibrator": ("--calibrator", "percentile"),
        "format": ("--format", "QOperator"),
        "per_channel": ("--per-channel",),
        "reduce_range": ("--reduce-range",),
        "symmetric": ("--symmetric",),
        "activation_type": ("--activation-type", "uint8"),
        "weight_type": ("--weight-type", "uint8", "--activation-type", "uint8"),
        "approach": ("--dynamic",),
    }
    expected = {
        "calibrator": "percentile", "format": "QOperator", "per_channel": True, "reduce_range": True,
        "symmetric": True, "activation_type": "uint8", "weight_type": "uint8", "approach": "dynamic",
    }  # fmt: skip
    for name, given in options.items():
        found = tuned(call, *given, "--logdir", name, "--max-trials", 1, "--objective", "size", model=CLEAN)
        assert found["trials"][0]["config"][name] == expected[name]
    assert zeros(here / "activation_type" / "best_model.onnx") == {"uint8"}
    assert "QLinearConv" in {n.op_type for n in onnx.load(here / "format" / "best_model.onnx").graph.node}
    assert "ConvInteger" in {n.op_type for n in onnx.load(here / "approach" / "best_model.onnx").graph.node}


def test_no_preprocess_leaves_the_model_as_it_is(call: Called, here: Path) -> None:
    model = onnx.load(CLEAN)
    relu = model.graph.node[1]
    out = relu.output[0]
    relu.output[0] = "before"
    model.graph.node.insert(2, onnx.helper.make_node("Identity", ["before"], [out], "/Identity"))
    onnx.save(model, here / "clean_m.onnx")
    for option, has_it in (("--no-preprocess", True), ("--preprocess", False)):
        tuned(call, option, "--logdir", option.strip("-"), model=here / "clean_m.onnx")
        made = onnx.load(here / option.strip("-") / "best_model.onnx")
        assert ("Identity" in {n.op_type for n in made.graph.node}) is has_it
        code, _, err = call("tune", "--rebuild", "trial-001", "--logdir", option.strip("-"), "--output", "again.onnx")
        assert code == 0, err
        best = here / option.strip("-") / "best_model.onnx"
        assert (here / "again.onnx").read_bytes() == best.read_bytes(), option


def test_samples_objectives_and_the_time_for_the_simulation(call: Called) -> None:
    found = tuned(
        call,
        "--samples",
        9,
        "--objective",
        "size",
        "--objective",
        "tune_scores.py:nodes",
        "--probe-s",
        0,
        "--per-channel",
    )
    assert set(found["best"]["objectives"]) == {"size_kb", "nodes"}
    assert found["best"]["objectives"]["nodes"] > 17
    assert len(found["trials"]) >= 2


@pytest.mark.parametrize("strategy", ["basic", "mse", "mse_v2"])
def test_strategies_timeout_and_max_trials(call: Called, strategy: str) -> None:
    found = tuned(
        call, "--strategy", strategy, "--max-trials", 3, "--timeout", 3600, "--objective", "size", "--tolerance", 0.5
    )
    assert [trial["trial"] for trial in found["trials"]] == ["trial-001", "trial-002", "trial-003"]
    assert "all 3 trials are used up" in found["reason"]


@pytest.mark.parametrize("calibrator", ["percentile", "entropy"])
def test_any_number_of_samples_will_do(call: Called, here: Path, calibrator: str) -> None:
    np.savez(here / "data.npz", input=digits(20))
    found = tuned(call, "--calibrator", calibrator, "--objective", "size", model=CLEAN)
    assert found["trials"][0]["accuracy"] > 0.9


# Going on, and making a trial once more


def test_resume_goes_on_and_a_second_tuning_is_refused(call: Called, here: Path) -> None:
    first = tuned(call, "--max-trials", 1, "--per-channel")
    arguments = ("tune", HARD, "--data", "data.npz", "--eval", "tune_scores.py:accuracy", "--per-channel")
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert "holds a tuning with 1 trial already" in one_line(err)
    code, out, err = call(*arguments, "--tolerance", 0.5, "--resume")
    assert (code, out) == (2, "")
    assert "differs in criterion" in one_line(err)
    again = tuned(call, "--resume", "--per-channel")
    assert again["best"]["fallback"] == []
    assert again["trials"][0] == first["trials"][0]
    assert again["evaluations"] == len(again["trials"]) - 1


def test_rebuild_gives_the_same_model(call: Called, here: Path) -> None:
    found = tuned(call, "--per-channel", "--samples", 40)
    best = found["best"]["trial"]
    code, out, err = call("tune", "--rebuild", best)
    assert (code, out) == (0, "")
    assert f"{best}.onnx" in err
    made, model = here / "nc_workspace" / f"{best}.onnx", here / "nc_workspace" / "best_model.onnx"
    np.testing.assert_array_equal(results(made, digits(64)), results(model, digits(64)))
    assert made.read_bytes() == model.read_bytes()
    code, out, _ = call("tune", "--rebuild", "trial-001", "--output", "deep/first.onnx", "--json")
    told = json.loads(out)
    assert (code, told["trial"], told["model"], told["fallback"]) == (0, "trial-001", "deep/first.onnx", [])
    assert told["config"] == found["trials"][0]["config"]
    exact, first = results(HARD, digits(64)), results(here / "deep" / "first.onnx", digits(64))
    assert not np.allclose(exact, first)


def test_rebuild_of_what_is_not_there_is_one_line(call: Called, here: Path) -> None:
    code, out, err = call("tune", "--rebuild", "trial-001", "--logdir", "nothing")
    assert (code, out) == (2, "")
    assert "holds no tuning" in one_line(err)
    tuned(call, model=CLEAN)
    code, out, err = call("tune", "--rebuild", "trial-042")
    assert (code, out) == (2, "")
    assert "trial-042: no such trial" in one_line(err)
    (here / "data.npz").unlink()
    code, out, err = call("tune", "--rebuild", "trial-001")
    assert (code, out) == (2, "")
    assert "data.npz" in one_line(err)


def test_rebuild_of_a_tuning_of_arrays_asks_for_the_data(call: Called, here: Path) -> None:
    from tests.tuning.test_tune import accuracy

    inc_tb.tune(CLEAN, calibration(), accuracy, objectives=(), logdir=here / "log")
    code, out, err = call("tune", "--rebuild", "trial-001", "--logdir", "log")
    assert (code, out) == (2, "")
    assert "give MODEL and --data" in one_line(err)
    np.savez(here / "same.npz", input=calibration())
    code, _, err = call("tune", "--rebuild", "trial-001", "--logdir", "log", "--data", "same.npz")
    assert code == 0, err
    best = here / "log" / "best_model.onnx"
    assert (here / "log" / "trial-001.onnx").read_bytes() == best.read_bytes()


# Wrong input


def one_line(text: str) -> str:
    (line,) = text.strip().splitlines()
    assert line.startswith("inc-tb: ")
    assert "Traceback" not in line
    return line


def _file(path: Path, content: str = "this is no model") -> Path:
    path.write_text(content)
    return path


def _data(folder: Path, **arrays: np.ndarray) -> Path:
    np.savez(folder / "other.npz", **arrays)
    return folder / "other.npz"


EVAL = ("--eval", "tune_scores.py:accuracy")
GOOD = ("--data", "data.npz", *EVAL)
WRONG: dict[str, tuple[Callable[[Path], list[object]], list[str]]] = {
    "nothing": (lambda d: [], ["MODEL", "--data", "--eval", "missing"]),
    "no eval": (lambda d: [HARD, "--data", "data.npz"], ["--eval missing", "file.py:function"]),
    "no data": (lambda d: [HARD, *EVAL], ["--data missing"]),
    "no model": (lambda d: ["none.onnx", *GOOD], ["none.onnx", "no such file"]),
    "not a model": (lambda d: [_file(d / "text.onnx"), *GOOD], ["text.onnx", "not an ONNX model"]),
    "other kind": (lambda d: [_file(d / "m.pt"), *GOOD], ["m.pt", "ONNX"]),
    "missing data": (lambda d: [HARD, "--data", "none.npz", *EVAL], ["none.npz", "no such file"]),
    "names": (lambda d: [HARD, "--data", _data(d, x=digits(4)), *EVAL], ["['x']", "['input']"]),
    "shapes": (lambda d: [HARD, "--data", _data(d, input=digits(4)[:, :, :7]), *EVAL], ["4x1x7x8", "anyx1x8x8"]),
    "no samples": (lambda d: [HARD, "--data", _data(d, input=digits(4)[:0]), *EVAL], ["samples"]),
    "eval without a function": (
        lambda d: [HARD, "--data", "data.npz", "--eval", "tune_scores.py"],
        ["file.py:function"],
    ),
    "eval without a file": (lambda d: [HARD, "--data", "data.npz", "--eval", "none.py:f"], ["none.py", "no such file"]),
    "eval of another name": (lambda d: [*_scored("accuracie")], ["has no function 'accuracie'"]),
    "eval that is none": (lambda d: [*_scored("not_callable")], ["has no function 'not_callable'"]),
    "eval that cannot be loaded": (
        lambda d: [HARD, "--data", "data.npz", "--eval", "broken_scores.py:f"],
        ["broken_scores.py", "ModuleNotFoundError", "nothing_of_that_name"],
    ),
    "eval that raises": (
        lambda d: _scored("raises"),
        ["evaluate failed on hard.onnx", "first line second"],
    ),
    "eval that gives text": (lambda d: _scored("text"), ["'very good'", "finite number"]),
    "eval that gives nan": (lambda d: _scored("nan"), ["nan", "finite number"]),
    "eval that gives nothing": (lambda d: _scored("none"), ["None", "finite number"]),
    "strategy": (lambda d: [HARD, *GOOD, "--strategy", "bayes"], ["strategy", "bayes", "probe"]),
    "tolerance": (lambda d: [HARD, *GOOD, "--tolerance", -1], ["--tolerance"]),
    "max trials": (lambda d: [HARD, *GOOD, "--max-trials", 0], ["--max-trials"]),
    "timeout": (lambda d: [HARD, *GOOD, "--timeout", -1], ["--timeout"]),
    "objective": (lambda d: [HARD, *GOOD, "--objective", "speed"], ["speed", "memory or file.py:function"]),
    "calibrator": (lambda d: [HARD, *GOOD, "--calibrator", "kl"], ["--calibrator", "minmax"]),
    "logdir": (lambda d: [HARD, *GOOD, "--logdir", _file(d / "f")], ["is a file", "folder"]),
    "output without rebuild": (lambda d: [HARD, *GOOD, "--output", "x.onnx"], ["--output", "--rebuild"]),
}


def _scored(name: str) -> list[object]:
    return [HARD, "--data", "data.npz", "--eval", f"tune_scores.py:{name}"]


@pytest.mark.parametrize(("arguments", "says"), WRONG.values(), ids=WRONG)
def test_wrong_input_is_one_line_and_leaves_nothing(
    call: Called, here: Path, arguments: Callable[[Path], list[object]], says: list[str]
) -> None:
    code, out, err = call("tune", *arguments(here))
    assert (code, out) == (2, "")
    line = one_line(err)
    for part in says:
        assert part in line, line
    assert not (here / "nc_workspace").exists()


def test_an_eval_that_raises_later_is_one_line_behind_the_trials(call: Called, here: Path) -> None:
    code, out, err = call("tune", *_scored("raises_later"))
    assert (code, out) == (2, "")
    assert "ValueError: first line second line" in one_line(err)


def test_ctrl_c_before_the_first_trial_exits_with_130(call: Called) -> None:
    code, out, _ = call("tune", *_scored("interrupted"))
    assert (code, out) == (130, "")


DAMAGES = {"text": b"no json\n", "kind": b'{"trial":1}\n', "list": b"[]\n", "bytes": bytes(range(255)) + b"\n"}
AGAIN = {"resume": ("--resume", "--objective", "size", HARD, *GOOD), "rebuild": ("--rebuild", "trial-001")}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("arguments", AGAIN.values(), ids=AGAIN)
def test_a_damaged_history_is_one_line(call: Called, here: Path, damage: bytes, arguments: tuple[object, ...]) -> None:
    tuned(call, "--max-trials", 1, "--objective", "size")
    with (here / "nc_workspace" / FILE).open("ab") as file:
        file.write(damage)
    code, out, err = call("tune", *arguments)
    assert (code, out) == (2, "")
    assert FILE in one_line(err)


def test_help_names_every_option(call: Called) -> None:
    code, out, _ = call("tune", "--help")
    assert code == 0
    for option in (
        "--data", "--eval", "--tolerance", "--absolute", "--lower-is-better", "--strategy", "--max-trials", "--timeout",
        "--objective", "--samples", "--probe-s", "--dynamic", "--format", "--calibrator", "--per-channel",
        "--reduce-range", "--symmetric", "--activation-type", "--weight-type", "--no-preprocess", "--logdir",
        "--resume", "--rebuild", "--output", "--json",
    ):  # fmt: skip
        assert option in out


# diagnose --probe


def test_diagnose_with_a_probe_fills_the_columns_and_can_be_repeated(
    call: Called, here: Path, quantized: Callable[..., Path]
) -> None:
    arguments = ("diagnose", HARD, quantized("hard"), "--data", "data.npz", "--run", "mine", "--probe", 5)
    code, out, err = call(*arguments)
    assert code == 0, err
    assert out.index("Suggestions") < out.index("Output against fp32") < out.index("Logged")
    table = out[out.index("Output against fp32") :]
    for word in ("fp32", "simulated", "real", "error / signal", "same top-1"):
        assert word in table
    logged = inc_tb.load(here / "nc_workspace" / "mine")
    ops = logged.ops
    names = ops["name"].tolist()
    worst = names[int(np.nanargmax(ops["sensitivity"]))]
    assert worst in CULPRITS
    for name in CULPRITS:
        i = names.index(name)
        assert ops["sensitivity_low"][i] <= ops["sensitivity"][i] <= ops["sensitivity_high"][i]
        assert ops["sensitivity_rank"][i]
        assert not np.isnan(ops["recovery"][i])
    assert logged.suggestions[0].effects[0].basis == "measured"
    assert set(logged.suggestions[0].ops) >= set(CULPRITS)
    journal = here / "nc_workspace" / "mine" / "probe.jsonl"
    before = journal.read_bytes()
    code, again, err = call(*arguments)
    assert code == 0, err
    assert again[again.index("Output against fp32") :] == table
    assert journal.read_bytes() == before  # everything was known
    repeated = inc_tb.load(here / "nc_workspace" / "mine")
    np.testing.assert_array_equal(repeated.ops["sensitivity"], ops["sensitivity"])
    assert len(repeated.diagnoses) > len(logged.diagnoses)


def test_diagnose_with_a_probe_as_json(call: Called, quantized: Callable[..., Path]) -> None:
    code, out, err = call("diagnose", HARD, quantized("hard"), "--data", "data.npz", "--probe", 5, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert sum(op["sensitivity"] is not None for op in found["ops"]) >= 10
    assert found["comparison"]["real"]["error"] > 0
    code, out, _ = call("diagnose", HARD, quantized("hard"), "--data", "data.npz", "--probe", 0, "--json")
    assert all(op["sensitivity"] is None and op["null_reasons"]["sensitivity"] for op in json.loads(out)["ops"])
    assert "comparison" not in json.loads(out)


def test_diagnose_proves_its_first_suggestion_by_itself(
    call: Called, here: Path, quantized: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inc_tb.search.brief.BUDGET_S", 600.0)
    code, out, err = call("diagnose", HARD, quantized("hard"), "--data", "data.npz", "--json")
    assert code == 0, err
    first = json.loads(out)["suggestions"][0]
    assert set(first["ops"]) >= set(CULPRITS)
    assert first["evidence"]["recovered"] > 0.9
    (run,) = (path for path in (here / "nc_workspace").iterdir() if path.name.startswith(quantized("hard").stem))
    logged = inc_tb.load(run)
    assert (len(logged.diagnoses), (run / "probe.jsonl").exists()) == (1, False)
    assert logged.suggestions[0].effects[0].basis == "measured"


def test_a_model_that_cannot_be_probed_is_diagnosed_all_the_same(
    call: Called, here: Path, quantized: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no such switch\nin here")

    monkeypatch.setattr("inc_tb.search.brief.open_switches", fails)
    code, out, err = call("diagnose", HARD, quantized("hard"), "--data", "data.npz", "--json")
    found = json.loads(out)
    assert (code, found["suggestions"][0]["rule"]) == (0, "outlier_channels"), err
    assert "what ops do to the output was not probed: no such switch" in found["notes"]


def test_a_suggestion_is_verified(call: Called, here: Path, quantized: Callable[..., Path]) -> None:
    arguments = ("diagnose", HARD, quantized("hard"), "--data", "data.npz", "--probe", 0)
    code, out, err = call(*arguments, "--verify", *EVAL)
    assert code == 0, err
    table = " ".join(out[out.index("Suggestion 1, really quantized") :].split())
    for word in ("given", "quantized anew", "error / signal", "accuracy", "Assumed: calibrated with the data given"):
        assert word in table
    code, out, err = call(*arguments, "--verify", "--json")
    errors = {form: found["error"] for form, found in json.loads(out)["verified"]["comparison"].items()}
    assert errors["with suggestion 1"] < 0.1 * errors["given"]
    code, out, err = call(*arguments, *EVAL)
    assert (code, out) == (2, "")
    assert "--verify" in one_line(err)


def test_the_cure_without_fp32_works_as_it_is_printed(call: Called, here: Path, quantized: Callable[..., Path]) -> None:
    arguments = ("diagnose", HARD, quantized("hard"), "--data", "data.npz")
    code, out, err = call(*arguments, "--run", "told", "--verify")
    assert code == 0, err
    told = out[out.index("Or without an op in fp32") :]
    said = " ".join(told.split())
    assert "1 rewrite of the fp32 model that leaves its results as they are; quantized as before, error" in said
    command = next(line for line in told.splitlines() if line.startswith("   inc-tb apply "))
    code, out, err = call(*shlex.split(command)[1:])
    assert code == 0, err
    assert "1. equalize: " in out + err
    assert (here / "rewritten.onnx").is_file()
    code, out, _ = call(*arguments, "--run", "json", "--json", "--verify")
    found = json.loads(out)["without_fp32"]
    assert Path(found["cure"]).is_file()
    assert found["found"]["after"]["error"] < 0.01 * found["found"]["before"]["error"]
    assert "Or without" not in call(*arguments, "--run", "not", "--probe", 0)[1]


def test_without_a_suggestion_the_diagnosis_is_told_before_the_error(
    call: Called, here: Path, quantized: Callable[..., Path]
) -> None:
    models = CLEAN, quantized("clean", per_channel=True)
    code, out, err = call("diagnose", *models, "--data", "data.npz", "--probe", 0, "--verify", "--json")
    assert (code, json.loads(out)["suggestions"]) == (2, [])
    assert "there is no suggestion to verify" in one_line(err)


def test_a_probe_needs_some_time(call: Called, here: Path, quantized: Callable[..., Path]) -> None:
    for given in (-1, "long"):
        code, out, err = call("diagnose", HARD, quantized("hard"), "--data", "data.npz", "--probe", given)
        assert (code, out) == (2, "")
        assert "--probe" in one_line(err)
    assert not (here / "nc_workspace").exists()
