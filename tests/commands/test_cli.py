from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import inc_tb
from inc_tb.measure.op_table import COLUMNS
from tests.digits import DATA, digits
from tests.waiting import PATIENCE_S


def run(*arguments: object, cwd: Path, columns: int = 100) -> subprocess.CompletedProcess[str]:
    env = {"PATH": "/usr/bin:/bin", "COLUMNS": str(columns), "PYTHONPATH": str(Path(inc_tb.__file__).parents[1])}
    command = [sys.executable, "-m", "inc_tb.cli", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=env)


def widest(text: str) -> int:
    """Of all but the commands to copy, which no terminal may break."""
    report, found, _ = text.partition("See it with")
    assert found
    return max(len(line) for line in report.splitlines() if not line.startswith("   inc-tb "))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    np.savez(tmp_path / "data.npz", input=digits(64))
    return tmp_path / "data.npz"


def test_diagnose_prints_tables_and_the_suggestion(tmp_path: Path, data: Path, quantized: Callable[..., Path]) -> None:
    done = run("diagnose", DATA / "hard.onnx", quantized("hard"), "--data", data, "--run", "first", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    verdict, _, text = done.stdout.partition("\n\n")
    assert [line.split()[0] for line in verdict.splitlines()] == ["lost", "where", "why", "cure", "next"]
    assert "outlier channels: " in verdict
    assert verdict.endswith("next   inc-tb suggest nc_workspace/first")
    assert text.index("Activations summary") < text.index("Weights summary") < text.index("Suggestions")
    assert "\n 1. keep /conv1/Conv" in text
    assert "nodes_to_exclude" in text
    assert "could not be compared" not in text
    assert "tensorboard --logdir nc_workspace" in text
    assert widest(text) <= 100
    logged = inc_tb.load(tmp_path / "nc_workspace" / "first")
    assert logged.diagnosis.samples == 64
    written = (tmp_path / "nc_workspace" / "first" / "suggestions.txt").read_text()
    assert all(f"{s.because}.\n" in written for s in logged.suggestions)
    assert "nc_workspace/first/suggestions.txt" in text
    assert logged.suggestions[0].rule == "outlier_channels"
    assert [shown.kind for shown in logged.diagnosis.by_sample.previews] == ["image"] * 40


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_tables_fit_the_terminal(tmp_path: Path, data: Path, quantized: Callable[..., Path], columns: int) -> None:
    arguments = ("--data", data, "--sort", "a_mse", "--top", 3)
    done = run("diagnose", DATA / "hard.onnx", quantized("hard"), *arguments, cwd=tmp_path, columns=columns)
    assert widest(done.stdout) <= columns
    assert "3 of 17 ops (11 compared), worst first by output MSE" in done.stdout


def test_the_verdict_alone_or_everything(tmp_path: Path, data: Path, quantized: Callable[..., Path]) -> None:
    arguments = ("diagnose", DATA / "hard.onnx", quantized("hard"), "--data", data)
    quiet = run(*arguments, "--quiet", "--no-previews", "--run", "quiet", cwd=tmp_path).stdout
    assert not inc_tb.load(tmp_path / "nc_workspace" / "quiet").diagnosis.by_sample.previews
    assert [line.split()[0] for line in quiet.splitlines() if line][:6] == [
        "lost", "where", "why", "cure", "next", "Logged",
    ]  # fmt: skip
    verbose = run(*arguments, "--verbose", cwd=tmp_path).stdout
    because = verbose.partition("Suggestions (")[2]
    assert "1. outlier channels: " in because
    assert "suggestions.txt" not in verbose
    both = run(*arguments, "--verbose", "--quiet", cwd=tmp_path)
    assert (both.returncode, both.stdout) == (2, "")
    assert "--quiet and --verbose were given together" in both.stderr


def test_the_command_to_copy_works_without_the_venv_and_is_as_short_as_can_be(
    tmp_path: Path, data: Path, quantized: Callable[..., Path]
) -> None:
    near, far = tmp_path, tmp_path / "a" / "folder" / "far" / "below" / "all" / "of" / "the" / "rest"
    far.mkdir(parents=True)
    for place in (near, far):
        done = run("diagnose", DATA / "hard.onnx", quantized("hard"), "--data", data, "--top", 3, cwd=place)
        program, option, logdir = done.stdout.split("See it with")[1].split()
        assert (option, logdir) == ("--logdir", "nc_workspace")
        assert len(program) <= len(str(Path(sys.executable).with_name("tensorboard")))
        assert (place / program).is_file()


def test_json(tmp_path: Path, data: Path, quantized: Callable[..., Path]) -> None:
    done = run("diagnose", DATA / "hard.onnx", quantized("hard"), "--data", data, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in JSON")

    found = json.loads(done.stdout, parse_constant=refuse)
    assert {"version", "reference", "quantized", "samples", "columns", "ops", "suggestions"} <= set(found)
    assert found["samples"] == 64
    assert found["reference"] == str(DATA / "hard.onnx")
    assert [c["name"] for c in found["columns"]] == [c.name for c in COLUMNS]
    assert all({"name", "label", "unit", "better", "help"} <= set(c) for c in found["columns"])
    for op in found["ops"]:
        assert {c.name for c in COLUMNS} <= set(op)
        for name, value in op.items():
            assert value is not None or op["null_reasons"][name]
    first = found["suggestions"][0]
    assert {"rank", "ops", "rule", "because", "evidence", "recipes"} <= set(first)
    assert first["rank"] == 1
    assert {"inc", "onnxruntime"} <= set(first["recipes"])


def test_the_same_file_twice_makes_two_runs(tmp_path: Path, data: Path, quantized: Callable[..., Path]) -> None:
    for _ in range(2):
        done = run("diagnose", DATA / "clean.onnx", quantized("clean"), "--data", data, cwd=tmp_path)
        assert "No suggestions" in done.stdout
    stem = quantized("clean").stem
    assert {p.name for p in (tmp_path / "nc_workspace").iterdir()} == {"fp32", stem, f"{stem}-2"}


def test_a_run_that_is_there_already_is_told_and_goes_on_when_asked_to(
    tmp_path: Path, data: Path, quantized: Callable[..., Path]
) -> None:
    models = DATA / "clean.onnx", quantized("clean")
    folder = tmp_path / "nc_workspace" / "mine"

    def diagnose(*options: object, models: tuple[object, object] = models) -> subprocess.CompletedProcess[str]:
        return run("diagnose", *models, "--data", data, "--run", "mine", *options, cwd=tmp_path)

    assert diagnose().returncode == 0
    before = {path: path.read_bytes() for path in folder.iterdir()}
    again = diagnose()
    others = diagnose("--probe", 1, models=(DATA / "hard.onnx", quantized("hard")))
    for done in (again, others):
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = done.stderr.strip().splitlines()
        assert line.startswith("inc-tb: --run mine: ")
        assert f"exists already and holds a diagnosis of {models[0]} and {models[1]}; choose another name" in line
        assert "--append" in line
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert diagnose("--append").returncode == 0
    assert set(inc_tb.load(folder).diagnoses) == {0, 1}
    assert diagnose("--probe", 1).returncode == 0  # a probe of the same models goes on
    assert set(inc_tb.load(folder).diagnoses) > {0, 1, 2}


def test_csv_samples_and_batches(tmp_path: Path, data: Path, quantized: Callable[..., Path]) -> None:
    options = ("--csv", tmp_path / "tables", "--samples", 10, "--batch-size", 4, "--json")
    done = run("diagnose", DATA / "hard.onnx", quantized("hard"), "--data", data, *options, cwd=tmp_path)
    assert json.loads(done.stdout)["samples"] == 10
    assert (tmp_path / "tables" / "activations_table.csv").exists()


HARD = DATA / "hard.onnx"
WRONG: dict[str, tuple[Callable[[Path, Path, Path], list[object]], list[str]]] = {
    "missing file": (
        lambda d, q, data: [d / "none.onnx", q, "--data", data],
        ["none.onnx", "no such file", "expected"],
    ),
    "not a model": (lambda d, q, data: [_file(d / "text.onnx"), q, "--data", data], ["text.onnx", "not an ONNX model"]),
    "other kind": (lambda d, q, data: [_file(d / "m.pt"), q, "--data", data], ["m.pt", "cannot read"]),
    "code": (lambda d, q, data: [_file(d / "m.py"), q, "--data", data], ["m.py is code", "m.py:function"]),
    "no data": (lambda d, q, data: [HARD, q, "--data", d / "none.npz"], ["none.npz", "no such file"]),
    "other network": (
        lambda d, q, data: [_other_network(d), q, "--data", data],
        ["is not a quantized version", "Check"],
    ),
    "names": (lambda d, q, data: [HARD, q, "--data", _data(d, x=digits(4))], ["['x']", "['input']", "Name"]),
    "shapes": (lambda d, q, data: [HARD, q, "--data", _data(d, input=digits(4)[:, :, :7])], ["4x1x7x8", "anyx1x8x8"]),
    "kinds": (lambda d, q, data: [HARD, q, "--data", _data(d, input=digits(4) > 0)], ["bool", "float32"]),
    "column": (lambda d, q, data: [HARD, q, "--data", data, "--sort", "a_sqnr"], ["a_sqnr", "a_sqnr_db"]),
    "option": (lambda d, q, data: [HARD, q, "--data", data, "--top", 0], ["--top"]),
    "run": (lambda d, q, data: [HARD, q, "--data", data, "--run", "../x"], ["--run", "below the logdir"]),
    "order": (lambda d, q, data: [q, HARD, "--data", data], ["hard.onnx, given second, is not", "Swap the two"]),
    "one model twice": (lambda d, q, data: [q, q, "--data", data], ["was given twice", "expected the fp32 model"]),
    "copy": (lambda d, q, data: [HARD, _copy(d / "copy.onnx"), "--data", data], ["copy.onnx are the same model"]),
    "logdir": (lambda d, q, data: [HARD, q, "--data", data, "--logdir", _file(d / "f")], ["is a file", "folder"]),
    "csv": (lambda d, q, data: [HARD, q, "--data", data, "--csv", _file(d / "f")], ["is a file", "folder"]),
    "argument": (lambda d, q, data: [HARD], ["Missing"]),
}


@pytest.mark.parametrize(("arguments", "says"), WRONG.values(), ids=WRONG)
def test_wrong_input_is_one_line_and_leaves_nothing(
    tmp_path: Path, data: Path, quantized: Callable[..., Path],
    arguments: Callable[[Path, Path, Path], list[object]], says: list[str],
) -> None:  # fmt: skip
    given = arguments(tmp_path, quantized("hard"), data)
    done = run("diagnose", *given, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.strip().splitlines()
    for part in says:
        assert part in line
    assert not (tmp_path / "nc_workspace").exists()


def test_debug_shows_the_traceback(tmp_path: Path, data: Path) -> None:
    for arguments in (["--debug", "diagnose"], ["diagnose", "--debug"]):
        done = run(*arguments, "none.onnx", "none.onnx", "--data", data, cwd=tmp_path)
        assert done.returncode == 2
        assert "Traceback" in done.stderr


def test_names_that_look_like_markup(tmp_path: Path, data: Path, quantized: Callable[..., Path]) -> None:
    arguments = ("--data", data, "--run", "x[/b]", "--logdir", tmp_path / "a [red] b")
    done = run("diagnose", DATA / "clean.onnx", quantized("clean"), *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"tensorboard --logdir '{tmp_path / 'a [red] b'}'" in done.stdout


def test_version_and_help(tmp_path: Path) -> None:
    assert inc_tb.__version__ in run("--version", cwd=tmp_path).stdout
    for command in ("demo", "diagnose"):
        assert command in run("--help", cwd=tmp_path).stdout
        assert run(command, "--help", cwd=tmp_path).returncode == 0


def test_demo_tells_the_whole_story(tmp_path: Path) -> None:
    done = run("demo", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    full, by_mse, suggested = json.loads(done.stdout)["trials"]
    assert full["baseline"] > 0.95
    assert full["accuracy"] < full["baseline"] - 0.2
    assert by_mse["accuracy"] < full["accuracy"] + 0.01
    assert suggested["accuracy"] > full["baseline"] - 0.01
    assert {"/conv1/Conv", "/conv2/Conv"} <= set(suggested["fallback"])
    runs = [inc_tb.load(tmp_path / "nc_workspace" / t["name"]) for t in (full, by_mse, suggested)]
    assert [run.trial.accuracy for run in runs] == [full["accuracy"], by_mse["accuracy"], suggested["accuracy"]]
    assert runs[0].suggestions[0].rule == "outlier_channels"
    assert {s.rule for s in runs[2].suggestions} <= {"slower_in_int8"}
    assert all(run.profile is not None and "/conv1/Conv" in {row.op for row in run.profile.rows} for run in runs)
    assert [e.unit for e in runs[0].suggestions[0].effects if e.unit == "µs"] == ["µs"]


def test_demo_prints_the_next_command(tmp_path: Path) -> None:
    done = run("demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for part in (
        "Activations summary",
        "Suggestions",
        "outlier channels",
        "Trials",
        "tensorboard --logdir nc_workspace",
    ):
        assert part in done.stdout


def _file(path: Path) -> Path:
    path.write_text("this is no model")
    return path


def _copy(path: Path) -> Path:
    path.write_bytes(HARD.read_bytes())
    return path


def _data(folder: Path, **arrays: np.ndarray) -> Path:
    np.savez(folder / "other.npz", **arrays)
    return folder / "other.npz"


def _other_network(folder: Path) -> Path:
    """The same shapes with other weights."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(DATA / "hard.onnx")
    rng = np.random.default_rng(0)
    for tensor in model.graph.initializer:
        values = rng.standard_normal(tuple(tensor.dims)).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    onnx.save(model, folder / "other.onnx")
    return folder / "other.onnx"


INTERRUPTED = """
import sys


class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "inc_tb.cli":
            raise KeyboardInterrupt


sys.meta_path.insert(0, Interrupt())
from inc_tb.start import main
main()
"""


def test_ctrl_c_while_it_starts_is_one_line() -> None:
    command = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "inc-tb: interrupted\n")


LIGHT = """
import sys
from inc_tb.cli import cli
cli.main(["--help"], prog_name="inc-tb", standalone_mode=False)
heavy = {"numpy", "rich", "msgspec", "onnx", "inc_tb.frameworks.registry"} & set(sys.modules)
assert not heavy, heavy
"""


def test_help_loads_no_command_and_says_what_each_says_of_itself() -> None:
    from inc_tb.cli import cli, loaded

    subprocess.run([sys.executable, "-c", LIGHT], check=True, capture_output=True)
    for name, listed in cli.commands.items():
        command = loaded(name)
        assert command.name == name
        assert " ".join((command.help or "").split("\n\n")[0].split()) == listed.help
