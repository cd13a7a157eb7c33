from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import inc_tb
from inc_tb.advise.configs import configs, fitted, formats_listed
from inc_tb.cli import main
from inc_tb.frameworks.formats import Format, Settings
from inc_tb.frameworks.registry import frameworks, named
from inc_tb.frameworks.templates import write
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.measure.op_table import COLUMNS
from inc_tb.records import GraphNode, OpTable, Recipe, Suggestion
from inc_tb.records.codec import read_header
from inc_tb.store.encoded import diagnosis_records
from tests.digits import DATA, digits

ROOT = Path(__file__).parents[2]
LAYERS = [f"/layer.{i}/fc/Gemm" for i in range(4)]
NAMES = ["/conv1/Conv", "/Relu", *LAYERS, "tensor_7"]
TOOLS = [f.recipe.tool for f in fitted("onnx", Settings(per_channel=False, activation="int8", weight="int8"))]


class Printed(NamedTuple):
    code: Any
    stdout: str
    stderr: str


Suggest = Callable[..., Printed]


@pytest.fixture
def suggest(capfd: pytest.CaptureFixture[str]) -> Suggest:
    """`inc-tb suggest` without a process of its own, which would take longer than all else."""

    def call(*arguments: object) -> Printed:
        with pytest.raises(SystemExit) as left:
            main(["suggest", *map(str, arguments)])
        return Printed(left.value.code, *capfd.readouterr())

    return call


@pytest.fixture
def refused(suggest: Suggest) -> Callable[..., str]:
    """The one line that says what is wrong."""

    def call(*arguments: object) -> str:
        done = suggest(*arguments)
        assert (done.code, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        return line

    return call


def log(folder: Path, suggestions: list[Suggestion], framework: str = "onnx", granularity: str = "per channel") -> Path:
    """A run of a model that has its weights per channel and uint8 activations."""
    known = {"act_dtype": "uint8", "weight_dtype": "int8", "weight_granularity": granularity}
    rows = [{c.name: known.get(c.name, "") for c in COLUMNS} | {"name": name} for name in NAMES]
    table = OpTable.from_rows(COLUMNS, rows)
    graph = [GraphNode(name, "Op", [], "tensor_7" if name == "tensor_7" else f"{name}_out") for name in NAMES]
    with inc_tb.SummaryWriter(folder, worst_ops=0) as writer:
        writer.add_diagnosis(Diagnosis(table, suggestions, graph=graph, framework=framework))
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    suggestions = [
        Suggestion(LAYERS, "narrow_range", "too few steps", {}, pattern=r"/layer\.\d+/fc/Gemm", rank=1),
        Suggestion(["/Relu", "/conv1/Conv"], "outlier_channels", "[two] channels are large.", {}, rank=2),
    ]
    return log(tmp_path / "nc_workspace" / "trial-001", suggestions)


def excluded(text: str) -> Any:
    return ast.literal_eval(text.partition("nodes_to_exclude = ")[2].partition("\nquantize")[0])


def test_the_config_alone_is_on_standard_output(
    suggest: Suggest, tmp_path: Path, quantized: Callable[..., Path]
) -> None:
    """From a real diagnosis: what `suggest` prints is what the diagnosis has."""
    found = inc_tb.diagnose(DATA / "hard.onnx", quantized("hard"), {"input": digits(64)})
    with inc_tb.SummaryWriter(tmp_path / "int8") as writer:
        writer.add_diagnosis(found)
    done = suggest(tmp_path / "int8")
    assert done.code == 0
    assert done.stdout == found.suggestions[0].recipes["onnxruntime"] + "\n"
    assert "1. outlier channels: 2 of" in done.stderr
    assert "ONNX Runtime: nodes_to_exclude. Keeps the ops in fp32" in done.stderr
    for tool in TOOLS:
        assert suggest(tmp_path / "int8", "--format", tool).stdout == found.suggestions[0].recipes[tool] + "\n"


def test_the_cure_that_the_text_names_unless_told_otherwise(suggest: Suggest, tmp_path: Path) -> None:
    cured = {"onnxruntime-per-channel": "", "onnxruntime": ""}
    given = [
        Suggestion(["/conv1/Conv", *LAYERS], "weights_per_tensor", "one setting cures it", {}, cured, rank=1),
        Suggestion(["/Relu"], "outlier_channels", "so", {}, {"onnxruntime": ""}, rank=2),
    ]
    run = log(tmp_path / "run", given, granularity="per tensor")
    done = suggest(run)
    assert "per_channel=True" in done.stdout
    assert "exclude" not in done.stdout
    assert "Keeps no op in fp32" in done.stderr
    assert excluded(suggest(run, "--format", "onnxruntime").stdout) == ["/conv1/Conv", *LAYERS]
    assert excluded(suggest(run, "--rank", 2).stdout) == ["/Relu"]
    assert excluded(suggest(run, "--all").stdout) == ["/conv1/Conv", "/Relu", *LAYERS]
    assert excluded(suggest(run, "--op", "/Relu").stdout) == ["/Relu"]


def test_the_first_suggestion_unless_told_otherwise(suggest: Suggest, run: Path) -> None:
    assert excluded(suggest(run).stdout) == LAYERS
    done = suggest(run, "--rank", 2)
    assert excluded(done.stdout) == ["/conv1/Conv", "/Relu"]
    assert "2. outlier channels: [two] channels are large.\n" in done.stderr
    assert "1. " not in done.stderr


@pytest.mark.parametrize("options", [["--all"], ["--rank", "2", "--rank", "1", "--rank", "2"]])
def test_several_suggestions_are_one_config(suggest: Suggest, run: Path, options: list[str]) -> None:
    done = suggest(run, *options)
    assert excluded(done.stdout) == ["/conv1/Conv", "/Relu", *LAYERS]  # as the graph has them
    assert "per_channel=True" in done.stdout
    assert "activation_type=QuantType.QUInt8" in done.stdout
    assert {"1. narro", "2. outli"} <= {line[:8] for line in done.stderr.splitlines()}


def test_layers_are_one_pattern_where_the_tool_takes_patterns(suggest: Suggest, run: Path) -> None:
    assert suggest(run, "--format", "inc").stdout.count("layer") == 1
    assert suggest(run, "--format", "inc", "--all").stdout.count("layer") == 1
    some = suggest(run, "--format", "inc", "--op", LAYERS[0], "--op", LAYERS[2], "--op", LAYERS[3]).stdout
    assert '"/layer\\\\.(0|2|3)/fc/Gemm",' in some
    assert suggest(run, "--format", "inc", "--op", LAYERS[0], "--op", LAYERS[2]).stdout.count("layer") == 2


def test_a_suggestion_for_an_op_that_is_not_there(refused: Callable[..., str], tmp_path: Path) -> None:
    run = log(tmp_path / "odd", [Suggestion(["/relu"], "rule", "so", {}, rank=1)])
    assert "no op of this model is called '/relu' (closest: /Relu)" in refused(run)


def test_a_config_for_other_ops(suggest: Suggest, run: Path) -> None:
    done = suggest(run, "--op", LAYERS[2], "--op", "/conv1/Conv", "--format", "JSON")
    assert json.loads(done.stdout) == {"fp32": ["/conv1/Conv", LAYERS[2]]}
    overrides = suggest(run, "--op", "/conv1/Conv", "--format", "int16").stdout
    assert '"/conv1/Conv_out": [' in overrides


def test_ops_without_a_name_are_told(suggest: Suggest, run: Path) -> None:
    assert "no tool finds them: tensor_7." in suggest(run, "--op", "tensor_7").stderr
    assert "Careful" not in suggest(run, "--op", "tensor_7", "--format", "int16").stderr


def test_json(suggest: Suggest, run: Path) -> None:
    found = json.loads(suggest(run, "--rank", 2, "--format", "ignored_scope", "--json").stdout)
    assert list(found) == ["run", "format", "ops", "rank", "because", "config"]
    assert found["run"] == str(run)
    assert (found["format"], found["rank"], found["because"]) == ("nncf", [2], ["[two] channels are large."])
    assert found["ops"] == ["/conv1/Conv", "/Relu"]
    assert "IgnoredScope" in found["config"]


def test_into_a_file(suggest: Suggest, run: Path, tmp_path: Path) -> None:
    target = tmp_path / "config.py"
    target.write_text("something older and longer" * 100)
    done = suggest(run, "--output", target)
    assert (done.code, done.stdout) == (0, "")
    assert "Wrote " in done.stderr
    assert target.read_text() == suggest(run).stdout


@pytest.mark.parametrize(("place", "why"), [("nowhere/c.py", "there is no folder"), ("nc_workspace", "is a folder")])
def test_no_file_to_write_to(suggest: Suggest, run: Path, tmp_path: Path, place: str, why: str) -> None:
    done = suggest(run, "--output", tmp_path / place)
    assert (done.code, done.stdout) == (2, "")
    assert why in done.stderr.splitlines()[-1]


def test_the_config_can_be_piped(run: Path) -> None:
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(inc_tb.__file__).parents[1])}
    command = [sys.executable, "-m", "inc_tb.cli", "suggest", str(run), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert json.loads(done.stdout) == {"fp32": LAYERS}


def test_a_run_without_suggestions_needs_no_change(
    suggest: Suggest, refused: Callable[..., str], tmp_path: Path
) -> None:
    run = log(tmp_path / "good", [])
    for options in ([], ["--all"]):
        done = suggest(run, *options)
        assert (done.code, done.stdout) == (0, "")
        assert "No suggestions" in done.stderr
    found = json.loads(suggest(run, "--json").stdout)
    assert (found["ops"], found["rank"], found["config"]) == ([], [], "")
    assert "has no suggestion of that rank; it has none at all." in refused(run, "--rank", 1)
    assert excluded(suggest(run, "--op", "/Relu").stdout) == ["/Relu"]


def test_a_model_of_an_unknown_kind_has_its_names(suggest: Suggest, tmp_path: Path) -> None:
    run = log(tmp_path / "other", [Suggestion(["/Relu"], "rule", "so", {}, rank=1)], framework="abacus")
    assert json.loads(suggest(run).stdout) == {"fp32": ["/Relu"]}


def test_wrong_input_is_one_line(refused: Callable[..., str], run: Path, tmp_path: Path) -> None:
    line = refused(run, "--format", "caffe")
    offered = ", ".join(tool for tool in TOOLS if tool != "onnxruntime-per-channel")  # which this run has already
    assert line == f"inc-tb: format 'caffe' is not among those for this run; expected one of {offered}."
    assert "--rank 7" in (line := refused(run, "--rank", 7))
    assert line.endswith("expected one of 1, 2.")
    line = refused(run, "--op", "/conv1/Cnov", "--op", "/relu")
    assert "'/conv1/Cnov' (closest: /conv1/Conv); '/relu' (closest: /Relu)" in line
    assert "expected one of them" in refused(run, "--op", "/Relu", "--all")
    assert "expected the folder of one run" in refused(run.parent)
    assert "expected the folder of one run" in refused(tmp_path / "nowhere")
    with inc_tb.SummaryWriter(tmp_path / "only-a-trial") as writer:
        writer.add_trial(inc_tb.Trial("t", accuracy=0.5))
    assert "holds no diagnosis" in refused(tmp_path / "only-a-trial")


def test_all_tools_are_in_the_help(suggest: Suggest) -> None:
    text = "".join(suggest("--help").stdout.split())
    known = dict.fromkeys(f.tool for framework in frameworks() if framework.name == "onnx" for f in framework.formats)
    assert set(TOOLS) < set(known)  # some are for models that are quantized otherwise
    assert f"ONNX:{','.join(known)};" in text


def test_all_tools_are_in_the_documents() -> None:
    table = (ROOT / "docs" / "onnx.md").read_text().partition("| model | `--format` |")[2]
    rows = re.findall(r"^\| (.*) \| (`.*) \|$", table, re.MULTILINE)
    listed = {title: set(re.findall("`(.*?)`", tools)) for title, tools in rows}
    assert listed == {framework.title: {f.tool for f in framework.formats} for framework in frameworks()}


def test_a_format_of_its_framework_is_all_that_a_tool_needs(
    suggest: Suggest, refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(settings: Settings) -> Recipe | None:
        kept = Recipe("mill", "Mill: kept whole", "kept = [", "{tensor}", ", ", "]", "Grinds the others.")
        return kept if settings.activation else None

    onnx = named("onnx")
    assert onnx is not None
    monkeypatch.setattr(type(onnx), "formats", (*onnx.formats, Format("mill", make, ("wind-mill",))))
    run = log(tmp_path / "run", [Suggestion(["/Relu"], "narrow_range", "too few steps", {}, rank=1)])
    for asked in ("mill", "WIND_MILL"):
        assert suggest(run, "--format", asked).stdout == 'kept = ["/Relu_out"]\n'
    assert json.loads(suggest(run, "--format", "mill", "--json").stdout)["format"] == "mill"
    assert "json, mill." in refused(run, "--format", "none of these")
    assert "json, mill;" in formats_listed()
    (record,) = diagnosis_records(inc_tb.load(run).diagnosis, ["suggestions"])
    stored = read_header("suggestions", record.tensor.string_val[0]).meta["recipes"]
    assert "mill" in [recipe["tool"] for recipe in stored]
    found = configs("onnx", inc_tb.load(run).ops, [], ["/Relu"])
    assert found["mill"] == 'kept = ["/Relu"]'


def test_what_is_printed_is_what_the_page_writes(suggest: Suggest, run: Path) -> None:
    """Both fill the templates that are stored with the suggestions."""
    settings = Settings(per_channel=True, activation="uint8", weight="int8")
    ops = ["/conv1/Conv", "/Relu"]
    for recipe in (f.recipe for f in fitted("onnx", settings)):
        printed = suggest(run, "--rank", 2, "--format", recipe.tool).stdout
        assert printed == write(recipe, ops, {name: f"{name}_out" for name in ops}) + "\n"
