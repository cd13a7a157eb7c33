"""Tunings of an ONNX model under log(), with the real Neural Compressor."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest

import inc_tb
from inc_tb.integrations.neural_compressor import log
from inc_tb.sources.neural_compressor.snapshot import read_history
from tests.neural_compressor_2.tuned import CULPRITS, HARD, IMAGES, Loader, config, evaluate, fit, history, said
from tests.tensorboards import LOADERS, serve
from tests.waiting import until


def trials(logdir: Path) -> dict[str, Any]:
    """By the names of their runs."""
    return {path.name: inc_tb.load(path) for path in sorted(logdir.glob("trial-*"))}


def test_every_trial_is_in_a_running_tensorboard(tmp_path: Path, workspace: Path) -> None:
    evaluated = 0

    def evaluate_and_look(model: Any) -> float:
        """Called while the tuning runs: first with the fp32 model, then once in each trial."""
        nonlocal evaluated
        server.wait_for_trials(max(0, evaluated - 1))  # every trial before this one
        evaluated += 1
        return evaluate(model)

    with serve(tmp_path / "logs", "--reload_interval=1") as server, log(tmp_path / "logs") as logged:
        assert fit(evaluate_and_look, config("mse_v2", 8)) is not None
    own = history(workspace)
    found = trials(tmp_path / "logs")
    assert list(found) == [f"trial-{number:03d}" for number in own]
    assert [path.name for path in logged.runs] == list(found)
    assert [run.trial.accuracy for run in found.values()] == list(own.values())
    assert len(own) == evaluated - 1 >= 4
    for loader in LOADERS.values():
        with loader(tmp_path / "logs") as contents:
            assert set(contents.blobs(fetch=False)) == set(found)
            scalars = contents.scalars()
            shown = [scalars[run]["trial/accuracy"][0] for run in found]
            np.testing.assert_allclose(shown, list(own.values()), rtol=1e-6)  # TensorBoard has float32


def test_what_a_trial_says(tmp_path: Path, workspace: Path) -> None:
    with log(tmp_path):
        fit(conf=config("mse_v2", 8))
    runs = list(trials(tmp_path).values())
    first = runs[0]
    assert first.trial.baseline == evaluate_file(HARD)
    assert first.trial.target == first.trial.baseline * 0.99
    assert first.trial.accuracy < first.trial.target
    assert first.trial.fallback == []
    assert first.trial.config["activation_quant_mode"] == "static"
    assert first.trial.objectives["evaluation_s"] > 0
    assert first.trial.wall_s > first.trial.objectives["evaluation_s"]
    assert first.diagnosis.samples == 32
    assert (first.diagnosis.reference, first.diagnosis.quantized) == ("hard.onnx", "hard.onnx, trial-001")
    assert set(CULPRITS) <= set(first.suggestions[0].ops)
    (best,) = [run for run in runs if run.trial.accuracy >= run.trial.target]
    assert sorted(best.trial.fallback) == CULPRITS
    assert best.suggestions == []
    partly = next(run for run in runs if len(run.trial.fallback) == 1)
    assert f'"{partly.trial.fallback[0]}"' in partly.suggestions[0].recipes["inc"]  # what is kept already stays so
    places = {int(run.name[-3:]): place for place, run in enumerate(runs, 1)}
    assert any(number != place for number, place in places.items())
    for run, (number, place) in zip(runs, places.items(), strict=True):
        assert any(f"trial {number} of" in note for note in run.trial.notes) == (number != place)
    assert {tuple(run.trial.config) for run in runs} == {tuple(first.trial.config)}  # HParams has the columns of one
    (imported,) = read_history(workspace / "history.snapshot")
    assert [msgspec.structs.replace(run.trial, wall_s=None) for run in runs] == [a.trial for a in imported.attempts]


def evaluate_file(path: str) -> float:
    import onnx

    return evaluate(onnx.load(path))


def test_a_tuning_is_the_same_without(tmp_path: Path) -> None:
    from neural_compressor import set_workspace

    conf = config(trials=3)
    set_workspace(str(tmp_path / "plain"))
    fit(conf=conf)
    set_workspace(str(tmp_path / "logged"))
    with log(tmp_path / "logs"):
        fit(conf=conf)
    assert history(tmp_path / "plain") == history(tmp_path / "logged")
    assert len(trials(tmp_path / "logs")) == 3


KILLED = """
import sys, time
from pathlib import Path
from neural_compressor import set_workspace
from inc_tb.integrations.neural_compressor import log
from tests.neural_compressor_2.tuned import config, evaluate, fit

folder, count = Path(sys.argv[1]), 0
set_workspace(str(folder / "workspace"))

def evaluate_until_killed(model):
    global count
    count += 1
    if count == 4:  # the fp32 model, two trials, and this one
        (folder / "here").touch()
        time.sleep(6000)
    return evaluate(model)

with log(folder / "logs"):
    fit(evaluate_until_killed, config(trials=9))
"""


def test_a_kill_in_the_third_trial_leaves_two(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        until(lambda: (tmp_path / "here").exists() or process.poll() is not None)
        process.send_signal(signal.SIGKILL)
    found = trials(tmp_path / "logs")
    assert list(found) == ["trial-001", "trial-002"]
    for run in found.values():
        assert run.trial.accuracy is not None
        assert len(run.ops["name"]) == 17
        assert run.diagnosis.histograms
    for loader in LOADERS.values():
        with loader(tmp_path / "logs") as contents:
            kept = contents.blobs(fetch=False)
            assert set(kept) == set(found)
            kinds = ("ops", "histograms", "channels", "suggestions", "graph", "samples", "trial")
            assert [set(of) for of in kept.values()] == [{f"quantization/{kind}" for kind in kinds}] * 2
    with serve(tmp_path / "logs") as server:
        server.wait_for_trials(2)


def test_no_evaluation(tmp_path: Path) -> None:
    with log(tmp_path):
        assert fit(None) is not None
    (run,) = trials(tmp_path).values()
    assert run.trial.accuracy is run.trial.baseline is run.trial.target is None
    assert any("no evaluation function" in note for note in run.trial.notes)
    assert run.trial.wall_s > 0
    assert set(CULPRITS) <= set(run.suggestions[0].ops)


def test_a_loss(tmp_path: Path) -> None:
    from neural_compressor.config import AccuracyCriterion

    criterion = AccuracyCriterion(higher_is_better=False, criterion="absolute", tolerable_loss=0.02)
    with log(tmp_path):
        fit(lambda model: 1 - evaluate(model), config(accuracy_criterion=criterion))
    first = trials(tmp_path)["trial-001"].trial
    assert first.lower_is_better
    assert first.target == first.baseline + 0.02
    assert first.drop > 0.5


def test_the_strategies_of_one_fit_are_one_tuning(tmp_path: Path, workspace: Path) -> None:
    """quant_level="auto", the default: one trial, then the conservative strategy, then the basic one."""
    from neural_compressor.config import PostTrainingQuantConfig, TuningCriterion

    with log(tmp_path / "logs") as logged:
        fit(conf=PostTrainingQuantConfig(tuning_criterion=TuningCriterion(max_trials=4)))
    assert {path.parent for path in logged.runs} == {tmp_path / "logs"}
    assert [run.trial.accuracy for run in trials(tmp_path / "logs").values()] == list(history(workspace).values())
    assert len(logged.runs) > 1


def test_two_fits(tmp_path: Path) -> None:
    with log(tmp_path) as logged:
        fit(None)
        fit(None)
    assert logged.runs == [tmp_path / "trial-001", tmp_path / "tuning-2" / "trial-001"]
    expected = "has trials of an earlier tuning; those of this one are in .*tuning-3"
    with pytest.warns(UserWarning, match=expected), log(tmp_path) as logged:
        fit(None)
    assert logged.runs == [tmp_path / "tuning-3" / "trial-001"]


def test_a_model_in_memory_and_other_data(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", input=IMAGES[:40])
    with log(tmp_path / "logs", data=tmp_path / "data.npz", samples=24):
        fit(None, model=onnx.load(HARD))
    run = inc_tb.load(tmp_path / "logs" / "trial-001")
    assert (run.diagnosis.samples, run.diagnosis.reference) == (24, "ModelProto")
    assert run.diagnosis.notes == []


def test_no_calibration_data(tmp_path: Path) -> None:
    """Dynamic ranges need none; those of the evaluation are taken."""
    from neural_compressor import quantization

    conf = config(trials=1, approach="dynamic")
    with log(tmp_path / "evaluated"):
        quantization.fit(HARD, conf, eval_dataloader=Loader(), eval_metric=Last())
    assert trials(tmp_path / "evaluated")["trial-001"].diagnosis.samples == 32
    with pytest.warns(RuntimeWarning, match="expected some with log"), log(tmp_path / "none"):
        quantization.fit(HARD, conf, eval_func=evaluate)
    (run,) = trials(tmp_path / "none").values()
    assert any("expected some with log(data=…)" in note for note in run.trial.notes)


def test_dynamic_convolutions_with_a_bias(tmp_path: Path) -> None:
    """Neural Compressor rounds the bias and adds it to the integer sums; held to both models run as they are."""
    from neural_compressor import quantization

    made = quantization.fit(HARD, config(trials=1, approach="dynamic"), eval_func=lambda _: 1.0).model
    assert "ConvInteger" in {node.op_type for node in made.graph.node}
    found = {row["name"]: row for row in inc_tb.diagnose(HARD, made, {"input": IMAGES[:32]}).ops.rows()}
    outputs = []
    for model in (onnx.load(HARD), made):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        copy.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in ("c1", "c2"))
        session = onnxruntime.InferenceSession(copy.SerializeToString(), providers=["CPUExecutionProvider"])
        outputs.append(session.run(["c1", "c2"], {"input": IMAGES[:32]}))
    for op, fp32, int8 in zip(("/conv1/Conv", "/conv2/Conv"), *outputs, strict=True):
        sqnr = 10 * np.log10(np.sum(np.square(fp32)) / np.sum(np.square(fp32 - int8)))
        assert found[op]["total_sqnr_db"] == pytest.approx(sqnr, abs=0.01)
        assert found[op]["weight_dtype"] in ("int8", "uint8")
    assert found["/conv1/Conv"]["added_sqnr_db"] == pytest.approx(found["/conv1/Conv"]["total_sqnr_db"], abs=0.01)


class Last:
    """A metric, as Neural Compressor wants one."""

    def reset(self) -> None:
        self.value = 0.0

    def update(self, predictions: Any, labels: Any) -> None:
        self.value = float(np.mean(predictions[0]))

    def result(self) -> float:
        return self.value


def test_without_diagnoses(tmp_path: Path) -> None:
    with log(tmp_path, diagnose=False):
        fit()
    assert [run.diagnoses for run in trials(tmp_path).values()] == [{}, {}]
    assert not (tmp_path / "fp32").exists()


# What goes wrong


def test_a_folder_that_cannot_be_written_does_not_break_the_tuning(tmp_path: Path, workspace: Path) -> None:
    (tmp_path / "logs").write_text("a file")
    with pytest.warns(RuntimeWarning) as warned, log(tmp_path / "logs") as logged:
        fit()
    ours = [str(w.message) for w in warned if "the tuning goes on" in str(w.message)]
    assert len(ours) == 1
    assert ours[0].startswith("a trial was not logged, the tuning goes on: ")
    assert len(history(workspace)) == 2
    assert logged.runs == []


def test_a_folder_that_is_gone_for_a_while(tmp_path: Path, workspace: Path) -> None:
    count = 0

    def evaluate_and_break(model: Any) -> float:
        nonlocal count
        count += 1
        if count == 3:  # in the second trial
            (tmp_path / "logs").rename(tmp_path / "moved")
            (tmp_path / "logs").write_text("a file")
        if count == 4:
            (tmp_path / "logs").unlink()
            (tmp_path / "moved").rename(tmp_path / "logs")
        return evaluate(model)

    with pytest.warns(RuntimeWarning, match="a trial was not logged, the tuning goes on"), log(tmp_path / "logs"):
        fit(evaluate_and_break, config(trials=3))
    assert len(history(workspace)) == 3
    assert list(trials(tmp_path / "logs")) == ["trial-001", "trial-003"]


def test_data_that_does_not_fit(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning) as warned, log(tmp_path, data={"input": IMAGES[:4, 0]}):
        fit()
    ours = [str(w.message) for w in warned if "the tuning goes on" in str(w.message)]
    assert len(ours) == 1
    assert ours[0].startswith("a trial was not diagnosed, the tuning goes on: ")
    for run in trials(tmp_path).values():
        assert run.trial.accuracy is not None
        assert run.diagnoses == {}
        assert any(note.startswith("not diagnosed: ") for note in run.trial.notes)


def test_data_that_can_be_read_once(tmp_path: Path) -> None:
    class Once(Loader):
        def __iter__(self) -> Any:
            return self

        def __next__(self) -> Any:
            return next(self.rows)

    loader = Once()
    loader.rows = Loader.__iter__(loader)  # type: ignore[attr-defined]
    with pytest.warns(RuntimeWarning, match="can be gone through only once.*Give samples with log"), log(tmp_path):
        fit(None, loader=loader)
    assert list(trials(tmp_path)) == ["trial-001"]


def test_ctrl_c_in_the_log_ends_the_tuning(tmp_path: Path) -> None:
    class Interrupted:
        def __iter__(self) -> Any:
            raise KeyboardInterrupt

    with log(tmp_path, data=Interrupted()):
        fit(conf=config(trials=5))  # which takes it for its own timeout, and returns
    assert list(tmp_path.glob("trial-*")) == []


def test_fit_that_fails_and_returns_none(tmp_path: Path) -> None:
    def fail(model: Any) -> float:
        raise ValueError("no such metric")

    expected = "ended before its first trial: ValueError: no such metric.$"
    with pytest.warns(RuntimeWarning, match=expected) as warned, log(tmp_path):
        assert [fit(None) is None, fit(fail) is None] == [False, True]
    assert len([w for w in warned if "no such metric" in str(w.message)]) == 1


def test_fit_that_fails_in_a_later_trial(tmp_path: Path) -> None:
    results = iter([1.0, 0.1])

    def fail(model: Any) -> float:
        found = next(results, None)
        if found is None:
            raise ImportError("no such module")
        return found

    expected = "ended in trial 2: ImportError: no such module. Installed: neural-compressor 2.*setuptools<82"
    with pytest.warns(RuntimeWarning, match=expected) as warned, log(tmp_path):
        fit(fail, config(trials=5))
    assert len([w for w in warned if "no such module" in str(w.message)]) == 1
    assert list(trials(tmp_path)) == ["trial-001"]


def test_warnings_that_are_errors(tmp_path: Path, workspace: Path, caplog: pytest.LogCaptureFixture) -> None:
    with log(tmp_path, data={"input": IMAGES[:4, 0]}):
        fit(conf=config(trials=3))
    assert len(history(workspace)) == len(trials(tmp_path)) == 3
    (told,) = said(caplog)
    assert told.startswith("a trial was not diagnosed, the tuning goes on: ")
    caplog.clear()


def test_nothing_ran(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="no tuning of Neural Compressor ran. Call quantization.fit"), log(tmp_path):
        pass


def test_patches_are_taken_back(tmp_path: Path) -> None:
    from neural_compressor.strategy.strategy import TuneStrategy

    before = dict(vars(TuneStrategy))
    with log(tmp_path / "a") as outer, log(tmp_path / "b") as inner:
        assert dict(vars(TuneStrategy)) != before
        fit(None)
    assert dict(vars(TuneStrategy)) == before
    assert (len(outer.runs), len(inner.runs)) == (1, 1)
    with pytest.raises(ZeroDivisionError), log(tmp_path / "c"):
        raise ZeroDivisionError
    assert dict(vars(TuneStrategy)) == before
    with pytest.raises(inc_tb.IncTbError, match="samples=0 was given"), log(tmp_path / "d", samples=0):
        pass
    assert dict(vars(TuneStrategy)) == before


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (
            "pkg_resources",
            "cannot be imported: .*pkg_resources.*Version 2.6 wants numpy<2, onnx<1.19 and setuptools<82",
        ),
        ("neural_compressor", "no Neural Compressor is installed; expected .*pip install neural-compressor"),
    ],
)
def test_what_is_not_installed(missing: str, said: str, tmp_path: Path) -> None:
    hide = f"import sys; sys.modules[{missing!r}] = None; import inc_tb\n"
    script = f"{hide}with inc_tb.integrations.neural_compressor.log({str(tmp_path)!r}): pass"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert re.search(f"UsageError: .*{said}", done.stderr), done.stderr
