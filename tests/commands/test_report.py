"""`inc-tb report`: what it takes, and the summary in Markdown; tests/browser/test_report.py opens the page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import inc_tb
from inc_tb.cli import main
from tests.example_run import make_diagnosis, make_trial
from tests.made_runs import make_diagnosis as made_up
from tests.made_runs import make_profile


class Printed(NamedTuple):
    code: object
    stdout: str
    stderr: str


Report = Callable[..., Printed]


@pytest.fixture
def report(capfd: pytest.CaptureFixture[str]) -> Report:
    def call(*arguments: object) -> Printed:
        with pytest.raises(SystemExit) as left:
            main(["report", *map(str, arguments)])
        return Printed(left.value.code, *capfd.readouterr())

    return call


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three trials; the second is the only one that meets the target of 0.96."""
    folder = tmp_path_factory.mktemp("logs")
    diagnosis = make_diagnosis(tmp_path_factory.mktemp("models"))
    for i, accuracy in enumerate((0.9, 0.9651, 0.95), start=1):
        with inc_tb.SummaryWriter(folder / f"trial-{i:03}") as writer:
            writer.add_diagnosis(diagnosis)
            writer.add_trial(make_trial(f"trial-{i:03}", accuracy))
    return folder


def test_a_logdir_and_one_run_of_it(report: Report, logdir: Path, tmp_path: Path) -> None:
    for place, runs in ((logdir, ["trial-001", "trial-002", "trial-003"]), (logdir / "trial-002", ["trial-002"])):
        path = tmp_path / "new" / "report.html"
        done = report(place, "-o", path, "--json")
        assert json.loads(done.stdout) == {"path": str(path), "bytes": path.stat().st_size, "runs": runs}
        told = report(place, "-o", path).stdout
        assert re.fullmatch(rf"Wrote {path}: {len(runs)} runs?, (\d\.\d MB|\d+ kB)\.\n", told)


def test_the_summary_speaks_of_the_best_trial(report: Report, logdir: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    assert report(logdir, "-o", path).code == 0
    text = path.read_text()
    assert text.startswith(
        "## Quantization: trial-002\n\n* **trial** trial-002: accuracy 0.9651, fp32 0.9700 (drop 0.0049)\n"
    )
    labels = re.findall(r"^\* \*\*(\w+)\*\* ", text, re.M)
    assert labels == ["trial", "lost", "where", "why", "cure"]
    suggestion = inc_tb.load(logdir / "trial-002").suggestions[0]
    assert f"```\n{suggestion.recipe.rstrip()}\n```" in text
    assert "| `/conv2/Conv` | Conv | " in text
    assert "| bad | suggestion 1 |" in text
    rows = re.findall(r"^\| `(trial-\d+)` \| ([\d.]+) \| ([+-][\d.]+) \| ([^|]+) \|", text, re.M)
    assert rows == [
        ("trial-002", "0.9651", "+0.0049", "1.2 ms"), ("trial-003", "0.9500", "+0.0200", "1.2 ms"),
        ("trial-001", "0.9000", "+0.0700", "1.2 ms"),
    ]  # fmt: skip


def test_the_summary_of_times(report: Report, tmp_path: Path) -> None:
    diagnosis = made_up(20)
    with inc_tb.SummaryWriter(tmp_path / "run") as writer:
        writer.add_profile(make_profile(diagnosis.graph))
    report(tmp_path / "run", "-o", tmp_path / "report.md")
    text = (tmp_path / "report.md").read_text()
    assert "* **time** fp32 30 ms, int8 16 ms, int8 is 1.88 times as fast\n" in text  # 30,000 / 16,000 µs


def test_names_mean_nothing_in_markdown(report: Report, tmp_path: Path) -> None:
    diagnosis = make_diagnosis(tmp_path)
    diagnosis.quantized = "a`b.onnx"
    diagnosis.notes = ["<b>bold</b> | *not*"]
    with inc_tb.SummaryWriter(tmp_path / "x_[y]") as writer:
        writer.add_diagnosis(diagnosis)
    report(tmp_path / "x_[y]", "-o", tmp_path / "report.md")
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("## Quantization: x\\_\\[y\\]\n")
    assert "`` a`b.onnx ``" in text
    assert "* note: &lt;b>bold&lt;/b> \\| \\*not\\*" in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("{logs}", "-o", "report.pdf"), "--output report.pdf: expected a name that ends with .html or .md"),
        (("{empty}", "-o", "report.html"), "no quantization records there or below; expected a folder"),
        (("{empty}/none", "-o", "report.html"), "no quantization records there or below; expected a folder"),
        (("{logs}", "-o", "{file}/report.html"), "cannot write there (File exists). Choose another place."),
    ],
)
def test_what_cannot_be_meant(
    report: Report, logdir: Path, tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    file = tmp_path / "file"
    file.touch()
    empty = tmp_path / "empty"
    empty.mkdir()
    done = report(*(argument.format(logs=logdir, empty=empty, file=file) for argument in arguments))
    assert (done.code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert told in done.stderr
