"""`inc-tb check` and `inc-tb compare`: exit codes, places, and one line where something is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import inc_tb
from inc_tb.cli import main
from tests.gate.runs import runs

GOLDEN = Path(__file__).parents[1] / "golden"


class Printed(NamedTuple):
    code: Any
    stdout: str
    stderr: str


Call = Callable[..., Printed]


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Call:
    def called(*arguments: object) -> Printed:
        with pytest.raises(SystemExit) as left:
            main([*map(str, arguments)])
        return Printed(left.value.code, *capfd.readouterr())

    return called


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs(tmp_path_factory.mktemp("runs"))


def test_check(call: Call, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = call("check", folder / "base", "--limit", "added_sqnr_db>=20", "--limit", "samples>=24", "--max-bad", 0)
    assert (done.code, done.stderr) == (0, "")
    assert [line[:4] for line in done.stdout.splitlines()] == ["ok  "] * 3
    done = call("check", folder / "base", folder / "faulty", "--limit", "added_sqnr_db>=30", "--json")
    assert done.code == 1
    failures = json.loads(done.stdout)["failures"]
    assert {(one["run"], one["column"]) for one in failures} == {(str(folder / "faulty"), "added_sqnr_db")}
    assert {"/conv1/Conv", "/conv2/Conv"} <= {one["op"] for one in failures}


def test_without_limits_those_of_the_project_or_no_op_may_be_bad(
    call: Call, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("check", folder / "base").stdout == f"ok   {folder / 'base'}: bad<=0: holds\n"
    assert call("check", GOLDEN / "v2").code == 1
    (tmp_path / "pyproject.toml").write_text('[tool.inc-tb.check]\nlimits = ["added_sqnr_db>=99"]\n')
    assert call("check", folder / "base").code == 1
    assert call("check", folder / "base", "--max-bad", 0).code == 0, "the command line comes first"


def test_compare(call: Call, folder: Path, tmp_path: Path) -> None:
    done = call("compare", folder / "base", folder / "same")
    assert done.code == 0
    assert done.stdout.startswith("ok   outputs: no output got worse by more than chance (24 samples")
    report = tmp_path / "report.xml"
    done = call("compare", folder / "base", folder / "faulty", "--format", "junit", "-o", report)
    assert done.code == 1
    assert report.read_text().startswith("<?xml")
    assert "The op that did it: /conv1/Conv" in done.stdout
    assert done.stderr.replace("\n", "") == f"Wrote {report}."


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check", "{base}", "--limit", "nonsense"], "expected NAME>=NUMBER"),
        (["check", "{base}", "--limit", "accuracy>=0.9"], "accuracy was not measured"),
        (["check", "{base}", "--output", "{missing}/a.xml"], "there is no folder"),
        (["check", "{missing}"], "no event files there"),
        (["check"], "Missing argument"),
        (["check", "{base}", "--format", "pdf"], "'pdf' is not one of"),
        (["compare", "{base}"], "Missing argument"),
        (["compare", "{base}", "{missing}"], "no event files there"),
        (["compare", "{old}", "{base}"], "the errors of single samples were not recorded"),
        (["compare", "{base}", "{base}", "-o", "{base}"], "is a folder"),
    ],
)
def test_wrong_use_is_one_line(arguments: list[str], words: str, call: Call, folder: Path, tmp_path: Path) -> None:
    places = {"base": folder / "base", "missing": tmp_path / "missing", "old": GOLDEN / "v1"}
    done = call(*(argument.format(**places) for argument in arguments))
    assert (done.code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert words in line


def test_a_trial_is_checked_too(call: Call, tmp_path: Path) -> None:
    with inc_tb.SummaryWriter(tmp_path / "trial") as writer:
        writer.add_trial(inc_tb.Trial("trial", 0.95, 0.97, objectives={"latency_ms": 2.0}))
    assert call("check", tmp_path / "trial", "--limit", "accuracy>=0.95", "--limit", "latency<=2").code == 0
    assert call("check", tmp_path / "trial", "--limit", "accuracy>=0.951").code == 1
