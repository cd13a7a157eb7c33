"""Tunings that were killed, cut off or changed, and go on; and trials that are made once more."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import inc_tb
from inc_tb import OnnxRuntimeQuantizer, Trial, Tuned, tune
from inc_tb.errors import DataError, UsageError
from inc_tb.search.journal import Journal
from inc_tb.tuning.history import FILE, History, find_trial
from inc_tb.tuning.loop import rebuild
from tests.digits import digits
from tests.tuning.test_tune import (
    CLEAN,
    HARD,
    PLENTY_S,
    Copying,
    accuracy,
    calibration,
    results,
    scored,
    tune_copies,
    tune_hard,
    way_of,
)

SCORES = (0.5, 0.7, 0.6, 0.995)


def told(found: Tuned) -> list[Any]:
    """What must be the same, however often it was interrupted; times are not."""
    trials = [(t.name, t.accuracy, t.fallback, t.config, t.objectives, t.target) for t in found.trials]
    return [found.baseline, found.target, found.met, found.best.name, trials]


def runs(logdir: Path) -> list[str]:
    return sorted(path.name for path in logdir.iterdir() if path.is_dir() and path.name.startswith("trial"))


# The journal


def test_a_journal_gives_back_its_lines(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "deep" / "j.jsonl")
    assert list(journal) == []
    for i in range(3):
        journal.add({"i": i, "text": "ü\n"})
    again = Journal(tmp_path / "deep" / "j.jsonl")
    assert list(again) == list(journal) == [{"i": i, "text": "ü\n"} for i in range(3)]
    assert len(again) == 3
    again.clear()
    assert list(Journal(tmp_path / "deep" / "j.jsonl")) == []


def test_a_line_that_was_cut_off_anywhere_is_dropped_and_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    journal = Journal(path)
    journal.add({"first": 1})
    start = path.stat().st_size
    journal.add({"second": "zwei ü", "third": [3]})
    whole = path.read_bytes()
    for end in range(start, len(whole)):
        path.write_bytes(whole[:end])
        again = Journal(path)
        assert list(again) == [{"first": 1}]
        again.add({"second": "zwei ü", "third": [3]})
        assert path.read_bytes() == whole


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    path.write_bytes(b'{"a":1}\n{"b":\n{"c":3}\n')
    with pytest.raises(DataError, match=r"j\.jsonl: line 2 is damaged"):
        Journal(path)
    assert path.read_bytes() == b'{"a":1}\n{"b":\n{"c":3}\n'


def test_the_history_keeps_what_it_is_told(tmp_path: Path) -> None:
    about = {"strategy": "probe"}
    history = History(tmp_path, about, {"model": "m.onnx"}, resume=False)
    history.set_baseline(0.9, {"size_kb": 4.0})
    trial = Trial("trial-001", 0.8, 0.9, ["a"], {"x": [1]}, {"size_kb": 3.0}, 1.5, ["note"], 0.89, True)
    history.add("key", trial)
    again = History(tmp_path, about, {}, resume=True)
    assert (again.baseline, again.trial("key"), again.trial("other")) == (0.9, trial, None)
    assert again.baseline_objectives == {"size_kb": 4.0}
    assert find_trial(tmp_path, "trial-001") == (trial, {"model": "m.onnx"})


# Going on


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tuned]:
    logdir = tmp_path_factory.mktemp("finished")
    return logdir, tune_copies(logdir, scored(*SCORES))


def copy_of(logdir: Path, target: Path, journal: bytes) -> Path:
    target.mkdir()
    for run in runs(logdir):
        (target / run).mkdir()
        for file in (logdir / run).iterdir():
            (target / run / file.name).write_bytes(file.read_bytes())
    (target / FILE).write_bytes(journal)
    return target


def test_a_history_cut_off_in_its_last_line_ends_the_same_way(tmp_path: Path, finished: tuple[Path, Tuned]) -> None:
    logdir, whole = finished
    journal = (logdir / FILE).read_bytes()
    last = journal.rfind(b'{"key"')
    evaluated: list[int] = []

    def evaluate(path: str) -> float:
        evaluated.append(way_of(path))
        return scored(*SCORES)(path)

    for end in range(last, journal.index(b"\n", last), 3):  # the journal itself is tested at every byte
        evaluated.clear()
        target = copy_of(logdir, tmp_path / str(end), journal[:end])
        again = tune_copies(target, evaluate, resume=True)
        assert told(again) == told(whole)
        assert evaluated == [3]  # the only trial that was lost
        assert runs(target) == [f"trial-{i:03d}" for i in range(1, 5)]
        assert [len(list((target / run).glob("*events*"))) for run in runs(target)] == [1] * 4
        assert len((target / FILE).read_bytes().splitlines()) == len(journal.splitlines())


def test_a_history_cut_off_after_any_line_ends_the_same_way(tmp_path: Path, finished: tuple[Path, Tuned]) -> None:
    logdir, whole = finished
    lines = (logdir / FILE).read_bytes().splitlines(keepends=True)
    calls: list[int] = []

    def evaluate(path: str) -> float:
        calls.append(way_of(path))
        return scored(*SCORES)(path)

    for count in range(len(lines) + 1):
        calls.clear()
        target = copy_of(logdir, tmp_path / str(count), b"".join(lines[:count]))
        again = tune_copies(target, evaluate, resume=True)
        assert told(again) == told(whole)
        known = sum(line.startswith((b'{"baseline"', b'{"key"')) for line in lines[:count])
        assert calls == [-1, 0, 1, 2, 3][known:]
        assert way_of(again.model) == 3
        assert again.evaluations == len(calls)


def test_a_finished_tuning_is_not_done_again(finished: tuple[Path, Tuned], tmp_path: Path) -> None:
    logdir, whole = finished
    target = copy_of(logdir, tmp_path / "again", (logdir / FILE).read_bytes())
    again = tune_copies(target, scored(before=lambda: pytest.fail("evaluated again")), resume=True)
    assert told(again) == told(whole)
    assert way_of(again.model) == 3


def test_resume_in_an_empty_folder_just_begins(tmp_path: Path) -> None:
    assert tune_copies(tmp_path / "new", scored(*SCORES), resume=True).met


def test_more_trials_can_be_asked_for_later(tmp_path: Path) -> None:
    assert not tune_copies(tmp_path, scored(*SCORES), max_trials=2).met
    again = tune_copies(tmp_path, scored(*SCORES), max_trials=4, resume=True)
    assert [trial.name for trial in again.trials] == [f"trial-{i:03d}" for i in range(1, 5)]
    assert again.met


def test_resuming_again_and_again_does_not_make_the_log_grow(tmp_path: Path) -> None:
    first = tune_hard(tmp_path, timeout=PLENTY_S)
    before = {path: path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()}
    for _ in range(2):
        again = tune_hard(tmp_path, timeout=PLENTY_S, resume=True)
        assert told(again) == told(first)
        assert (again.evaluations, again.simulations) == (0, 0)
    assert {path: path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()} == before


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.tuning.test_tune import HARD, SETTINGS, accuracy, calibration
import inc_tb
from inc_tb.tuning import runner

moment, logdir = sys.argv[1], Path(sys.argv[2])
count = {"n": 0}

def now(name, at=1):
    if moment == name:
        count["n"] += 1
        if count["n"] == at:
            os.kill(os.getpid(), signal.SIGKILL)

def evaluate(path):
    now("in the baseline")
    now("in the second trial", 3)
    return accuracy(path)

def size(path):
    now("between accuracy and log", 3)  # of fp32, of the first trial, of the second
    return Path(path).stat().st_size

def probing(done, total):
    now("in the simulation", 5)

stored = runner.stored
def killed_move(*given, **more):
    now("before the best is saved")
    return stored(*given, **more)
runner.stored = killed_move
logged = runner.Tried.logged
def killed_log(self, *given):
    trial = logged(self, *given)
    now("between log and history", 2)
    return trial
runner.Tried.logged = killed_log

inc_tb.tune(HARD, calibration(), evaluate, objectives=[size], logdir=logdir, rewrite=False,
            quantizer=inc_tb.OnnxRuntimeQuantizer(**SETTINGS), probing=probing)
print("it was not killed")
"""
MOMENTS = {
    "in the baseline": 0,
    "before the best is saved": 1,
    "in the simulation": 1,
    "in the second trial": 1,
    "between accuracy and log": 1,
    "between log and history": 1,
}


def killed(moment: str, logdir: Path, folder: Path) -> None:
    (folder / "killed.py").write_text(KILLED)
    root = str(Path(inc_tb.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, str(folder / "killed.py"), moment, str(logdir)], cwd=folder, capture_output=True, text=True,
        check=False, env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    return tune_hard(tmp_path_factory.mktemp("unharmed"), objectives=[size])


def size(path: str) -> int:
    return Path(path).stat().st_size


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "trials"), MOMENTS.items(), ids=MOMENTS)
def test_a_tuning_that_was_killed_goes_on(tmp_path: Path, unharmed: Tuned, moment: str, trials: int) -> None:
    logdir = tmp_path / "log"
    killed(moment, logdir, tmp_path)
    calls = itertools.count()
    again = tune_hard(logdir, lambda path: (next(calls), accuracy(path))[1], objectives=[size], resume=True)
    assert told(again) == told(unharmed)
    done = trials + (moment != "in the baseline")
    assert next(calls) == unharmed.evaluations - done  # nothing that the history had is evaluated again
    assert runs(logdir) == [trial.name for trial in unharmed.trials]
    for trial in again.trials:
        run = inc_tb.load(logdir / trial.name)
        assert list(run.trials.values()) == [trial]
        assert len([step for step in run.diagnoses if step == 0]) == 1
    assert accuracy(str(again.model)) == again.best.accuracy
    assert again.model.read_bytes() == unharmed.model.read_bytes()


def test_a_simulation_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    whole = tune_hard(tmp_path)
    for file in (tmp_path / ".simulations").iterdir():
        data = file.read_bytes()
        file.write_bytes(data[: len(data) * 2 // 3])
    lines = (tmp_path / FILE).read_bytes().splitlines(keepends=True)
    (tmp_path / FILE).write_bytes(b"".join(lines[:3]))  # with its first trial
    again = tune_hard(tmp_path, resume=True)
    assert told(again) == told(whole)
    assert 0 < again.simulations < whole.simulations
    assert again.evaluations == 1


# What cannot go on


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "strategy": ({"strategy": "mse_v2"}, "differs in strategy"),
    "tolerance": ({"tolerance": 0.02}, "differs in criterion"),
    "direction": ({"higher_is_better": False}, "differs in criterion"),
    "settings": ({"quantizer": OnnxRuntimeQuantizer}, r"differs in .*settings"),
    "samples": ({"samples": 1}, "differs in samples"),
    "model": ({"model": HARD}, "differs in model"),
    "data": ({"data": digits(3)}, "differs in calibration"),
}


@pytest.mark.parametrize(("options", "says"), WRONG.values(), ids=WRONG)
def test_a_wrong_resume_is_refused_and_changes_nothing(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    tune_copies(tmp_path, scored(*SCORES), max_trials=2)
    before = (tmp_path / FILE).read_bytes()
    options = dict(options)
    if "quantizer" in options:
        options["quantizer"] = options["quantizer"]()
    given: dict[str, Any] = {
        "strategy": "basic", "objectives": (), "diagnosis_samples": 0, "quantizer": Copying(), "max_trials": 4,
    }  # fmt: skip
    model, data = options.pop("model", CLEAN), options.pop("data", digits(2))
    with pytest.raises(UsageError, match=says) as raised:
        tune(
            model, {"input": data}, scored(before=lambda: pytest.fail("evaluated")), logdir=tmp_path, resume=True,
            **{**given, **options},
        )  # fmt: skip
    assert "\n" not in str(raised.value)
    assert (tmp_path / FILE).read_bytes() == before


def test_settings_that_json_writes_otherwise_can_be_resumed(tmp_path: Path) -> None:
    class Tuples(Copying):
        def __init__(self) -> None:
            super().__init__()
            self.settings = {"way": 0, "sizes": (1, 2)}

        def variants(self) -> list[dict[str, Any]]:
            return [{"way": way, "sizes": (1, 2)} for way in range(1, 4)]

    tune_copies(tmp_path, scored(*SCORES), max_trials=2, quantizer=Tuples())
    assert tune_copies(tmp_path, scored(*SCORES), resume=True, quantizer=Tuples()).met


def test_a_used_folder_without_resume_is_refused(tmp_path: Path) -> None:
    tune_copies(tmp_path, scored(*SCORES), max_trials=2)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with pytest.raises(UsageError, match=r"holds a tuning with 2 trials already.*--resume.*--logdir"):
        tune_copies(tmp_path, scored(before=lambda: pytest.fail("evaluated")))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


ODD: dict[str, bytes] = {
    "text": b"hello\nthere\n",
    "a list": b"[1]\n",
    "a trial without a key": b'{"trial":{"name":"trial-001"}}\n',
    "a trial that is none": b'{"key":"k","trial":{"name":7}}\n',
    "a baseline that is none": b'{"baseline":"high"}\n',
    "binary": bytes(range(256)) + b"\n",
}


@pytest.mark.parametrize("line", ODD.values(), ids=ODD)
def test_a_damaged_history_is_a_data_error_with_its_name(tmp_path: Path, line: bytes) -> None:
    tune_copies(tmp_path, scored(*SCORES), max_trials=1)
    with (tmp_path / FILE).open("ab") as file:
        file.write(line)
    with pytest.raises(DataError, match=r"tuning\.jsonl") as raised:
        tune_copies(tmp_path, scored(*SCORES), resume=True)
    assert "\n" not in str(raised.value)


# Rebuilding


@pytest.mark.parametrize("settings", [{"per_channel": True}, {"approach": "dynamic"}], ids=["static", "dynamic"])
def test_every_trial_can_be_made_once_more(tmp_path: Path, settings: dict[str, Any]) -> None:
    kept: dict[str, bytes] = {}

    def evaluate(path: str) -> float:
        kept[f"trial-{len(kept):03d}"] = Path(path).read_bytes()  # the first is fp32
        return accuracy(path)

    logdir = tmp_path / "log"
    found = tune_hard(logdir, evaluate, quantizer=OnnxRuntimeQuantizer(**settings))
    assert len(found.trials) >= 2
    for trial in found.trials:
        stored, _ = find_trial(logdir, trial.name)
        assert stored == trial
        made = rebuild(HARD, calibration(), stored, tmp_path / "again" / "model.onnx")
        (tmp_path / "then.onnx").write_bytes(kept[trial.name])
        np.testing.assert_array_equal(results(made, digits(64)), results(tmp_path / "then.onnx", digits(64)))
        assert made.read_bytes() == kept[trial.name]
    assert found.model.read_bytes() == kept[found.best.name]
    assert [path.name for path in (tmp_path / "again").iterdir()] == ["model.onnx"]


def test_a_trial_without_pre_processing_is_rebuilt_without(tmp_path: Path) -> None:
    """Which would fold an Identity away."""
    model = onnx.load(CLEAN)
    relu = model.graph.node[1]
    out = relu.output[0]
    relu.output[0] = "before"
    model.graph.node.insert(2, onnx.helper.make_node("Identity", ["before"], [out], "/Identity"))
    onnx.save(model, tmp_path / "m.onnx")
    tool = OnnxRuntimeQuantizer(preprocess=False)
    found = tune(tmp_path / "m.onnx", calibration(), accuracy, objectives=(), quantizer=tool, logdir=tmp_path / "log")
    stored, _ = find_trial(tmp_path / "log", "trial-001")
    made = rebuild(tmp_path / "m.onnx", calibration(), stored, tmp_path / "again.onnx")
    assert made.read_bytes() == found.model.read_bytes()


def test_a_trial_of_another_quantizer_needs_that_one(tmp_path: Path) -> None:
    tune_copies(tmp_path / "log", scored(*SCORES))
    stored, given = find_trial(tmp_path / "log", "trial-002")
    assert given["model"] == str(CLEAN)
    with pytest.raises(UsageError, match="Rebuild a trial with the quantizer that made it"):
        rebuild(CLEAN, {"input": digits(2)}, stored, tmp_path / "x.onnx")
    made = rebuild(CLEAN, {"input": digits(2)}, stored, tmp_path / "x.onnx", quantizer=Copying())
    assert way_of(made) == 1


def test_trials_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no tuning"):
        find_trial(tmp_path, "trial-001")
    assert not any(tmp_path.iterdir())
    tune_copies(tmp_path, scored(*SCORES))
    with pytest.raises(UsageError, match=r"trial-0042: no such trial .* trial-004"):
        find_trial(tmp_path, "trial-0042")


def test_where_model_and_data_came_from_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "data.npz", input=digits(8))
    (tmp_path / "m.onnx").write_bytes(CLEAN.read_bytes())
    monkeypatch.chdir(tmp_path)
    options: dict[str, Any] = {
        "strategy": "basic", "objectives": (), "diagnosis_samples": 0, "quantizer": Copying(), "samples": 3,
    }  # fmt: skip
    tune("m.onnx", "data.npz", scored(1), logdir="log", **options)
    monkeypatch.chdir("/")
    _, given = find_trial(tmp_path / "log", "trial-001")
    assert given == {"model": str(tmp_path / "m.onnx"), "calibration": str(tmp_path / "data.npz"), "samples": 3}
    first = json.loads((tmp_path / "log" / FILE).read_bytes().splitlines()[0])
    assert first["about"]["strategy"] == "basic"
