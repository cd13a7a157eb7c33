"""Work on engines: what workers find is what one process finds, also when one of them is killed on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import inc_tb
from inc_tb.cli import main
from inc_tb.engines.engine import TRIES, Sent
from inc_tb.engines.named import opened
from inc_tb.errors import EngineError, UsageError
from tests.example_run import make_models

WORK = '''
import contextlib
import os
import shutil
import signal
from pathlib import Path

import inc_tb
import numpy as np
import onnxruntime

HERE = Path(__file__).parent


def die_once(what):
    """A worker; never the process that the work is for."""
    died = HERE / f"died of {what}"
    if os.getpid() != int((HERE / "driver").read_text()):
        with contextlib.suppress(FileExistsError):
            died.open("x").close()
            os.kill(os.getpid(), signal.SIGKILL)


def samples():
    return np.load(HERE / "data.npz")["input"]


def batches():
    for number, batch in enumerate(np.split(samples(), 11)):
        if number == 2:
            die_once("statistics")
        yield {"input": batch}


def fp32():
    die_once("probe")
    return HERE / "fp32.onnx"


def results(model):
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return session.run(None, {"input": samples()})[0]


def likeness(model):
    die_once("trials")
    wanted = results(HERE / "fp32.onnx")
    return 1 - float(np.square(results(model) - wanted).sum() / np.square(wanted).sum())


class Quantizer(inc_tb.OnnxRuntimeQuantizer):
    def prepare(self, model, folder):
        """Without shapes that are inferred, by what takes seconds to be loaded; ORT writes beside what it is given."""
        return Path(shutil.copy(model, folder / "own.onnx"))


def kill_driver(model):
    """While the sixth trial of a worker is on its way."""
    driver = int((HERE / "driver").read_text())
    if os.getpid() != driver:
        with (HERE / "trials").open("a") as file:
            file.write("x")
        if (HERE / "trials").stat().st_size == 6:
            os.kill(driver, signal.SIGKILL)
    return likeness(model)
'''
TRIALS = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("engines")
    make_models(place)
    np.savez(place / "data.npz", input=np.random.default_rng(5).normal(size=(44, 2, 6, 6)).astype(np.float32))
    (place / "work.py").write_text(WORK)
    (place / "driver").write_text(str(os.getpid()))
    return place


@pytest.fixture(scope="module", params=["processes", "dask", pytest.param("ray", marks=pytest.mark.slow)])
def on(request: pytest.FixtureRequest) -> Iterator[str]:
    """Two nodes, or processes, of one worker each."""
    if request.param == "processes":
        yield "processes:2"
    elif request.param == "dask":
        distributed = pytest.importorskip("distributed")
        with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
            yield cluster.scheduler_address.replace("tcp://", "dask://")
    else:
        ray = pytest.importorskip("ray")
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        cluster.add_node(num_cpus=1)
        ray.init(cluster.address, log_to_driver=False, logging_level="error")
        yield "ray://auto"
        ray.shutdown()
        cluster.shutdown()


def diagnosed(folder: Path, **options: Any) -> inc_tb.Diagnosis:
    return inc_tb.diagnose(folder / "fp32.onnx", folder / "int8.onnx", f"{folder / 'work.py'}:batches", **options)


def test_statistics_are_those_of_one_process(folder: Path, on: str) -> None:
    found, alone = diagnosed(folder, on=on), diagnosed(folder)
    assert (folder / "died of statistics").exists()
    (folder / "died of statistics").unlink()
    assert found.samples == alone.samples == 44
    assert found.histograms == alone.histograms
    assert found.by_sample == alone.by_sample
    assert found.graph == alone.graph
    assert [one.because for one in found.suggestions] == [one.because for one in alone.suggestions] != []
    for name in alone.ops:
        column = alone.ops[name]
        if column.dtype.kind == "f":
            np.testing.assert_allclose(found.ops[name], column, rtol=1e-7, err_msg=name)
        else:
            np.testing.assert_array_equal(found.ops[name], column, err_msg=name)


def told(found: inc_tb.Probe) -> Any:
    units = [(unit.name, unit.sensitivity, unit.low, unit.high, unit.recovery) for unit in found.units]
    return units, found.explaining, found.evaluations, found.complete


def test_a_probe_finds_the_same(folder: Path, on: str) -> None:
    models = f"{folder / 'work.py'}:fp32", folder / "int8.onnx"
    found = inc_tb.probe(*models, folder / "data.npz", on=on)
    assert (folder / "died of probe").exists()
    (folder / "died of probe").unlink()
    assert told(found) == told(inc_tb.probe(folder / "fp32.onnx", models[1], folder / "data.npz"))


def tuned(folder: Path, logdir: Path, evaluate: str = "likeness", strategy: str = "random", **options: Any) -> Any:
    """Goes on when the criterion is met, by what does not depend on the time that anything takes."""
    return inc_tb.tune(
        folder / "fp32.onnx", folder / "data.npz", f"{folder / 'work.py'}:{evaluate}", strategy=strategy, logdir=logdir,
        quantizer=f"{folder / 'work.py'}:Quantizer",
        max_trials=TRIALS, timeout=36_000, objectives=("size",), minimize="ops", random_seed=3, **options,
    )  # fmt: skip


def trials(found: inc_tb.Tuned) -> Any:
    told = [{**msgspec.structs.asdict(trial), "wall_s": 0} for trial in found.trials]
    return told, found.best.name, found.met, found.quantizations, found.front


@pytest.fixture(scope="module")
def one_by_one(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> inc_tb.Tuned:
    return tuned(folder, tmp_path_factory.mktemp("one by one") / "logs")


def test_trials_are_those_of_one_after_the_other(
    folder: Path, on: str, one_by_one: inc_tb.Tuned, tmp_path: Path
) -> None:
    found = tuned(folder, tmp_path, on=on)
    assert (folder / "died of trials").exists()
    (folder / "died of trials").unlink()
    assert trials(found)[:3] == trials(one_by_one)[:3]
    assert found.front == one_by_one.front
    assert found.model.read_bytes() == one_by_one.model.read_bytes()
    assert inc_tb.load(tmp_path / f"trial-00{TRIALS}").diagnosis.samples == 8


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with ProcessPoolExecutor(2, get_context("spawn")) as found:
        yield found


@pytest.mark.parametrize("strategy", ["basic", "exhaustive", "tpe"])
def test_strategies_try_the_same_with_workers(folder: Path, executor: Executor, tmp_path: Path, strategy: str) -> None:
    (folder / "died of trials").touch()  # nobody has to
    found = tuned(folder, tmp_path / "two", strategy=strategy, diagnosis_samples=0, on=executor)
    alone = tuned(folder, tmp_path / "one", strategy=strategy, diagnosis_samples=0)
    (folder / "died of trials").unlink()
    assert trials(found)[:3] == trials(alone)[:3]


def test_a_killed_driver_goes_on(folder: Path, one_by_one: inc_tb.Tuned, tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(
        "import os, sys\nfrom pathlib import Path\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "from tests.engines.test_engines import tuned\n"
        "if __name__ == '__main__':\n"
        f"    folder = Path({str(folder)!r})\n"
        "    (folder / 'driver').write_text(str(os.getpid()))\n"
        f"    tuned(folder, Path({str(tmp_path / 'logs')!r}), 'kill_driver', on='processes:2')\n"
    )
    (folder / "died of trials").touch()
    try:
        killed = subprocess.run([sys.executable, str(script)], capture_output=True, check=False)
    finally:
        (folder / "driver").write_text(str(os.getpid()))
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    before = sorted(path.name for path in (tmp_path / "logs").glob("trial-*"))
    assert 1 <= len(before) < TRIALS
    found = tuned(folder, tmp_path / "logs", "kill_driver", on="processes:2", resume=True)
    (folder / "died of trials").unlink()
    assert trials(found)[:3] == trials(one_by_one)[:3]
    assert found.quantizations <= TRIALS - len(before) + 3, "what the history has was not made again, but the best"


# What goes wrong


def die(sent: Sent) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail(sent: Sent, kind: str) -> None:
    raise UsageError("bad") if kind == "ours" else ZeroDivisionError("by nothing")


def test_a_task_that_kills_its_workers_is_given_up() -> None:
    with opened("processes:1") as engine:
        shared = engine.share(None, "nothing")
        with pytest.raises(EngineError, match=r"processes:1: a worker did not end its task, .*BrokenProcessPool"):
            engine.result(engine.submit(die, shared))
        with pytest.raises(UsageError, match=r"^bad$"):  # and others still get one
            engine.result(engine.submit(fail, shared, "ours"))
        with pytest.raises(EngineError, match="a worker failed: ZeroDivisionError: by nothing"):
            engine.result(engine.submit(fail, shared, "theirs"))
    assert TRIES > 1


REFUSED = [
    ("spark://host", "--on spark://host was given; expected processes:N, ray://HOST:PORT"),
    ("processes:0", "--on processes:0 was given; expected a number of processes from 1 on"),
    ("processes:two", "--on processes:two was given; expected a number of processes from 1 on"),
    ("dask://", "--on dask:// was given; expected host:port behind ://, or local."),
    ("dask://127.0.0.1:1", "dask://127.0.0.1:1: cannot be reached ("),
    ("ray://127.0.0.1:1", "ray://127.0.0.1:1: cannot be reached ("),
]


@pytest.mark.parametrize(("name", "said"), REFUSED)
@pytest.mark.parametrize("command", ["diagnose", "tune"])
def test_engines_that_are_none(
    folder: Path, command: str, name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(name.partition(":")[0].replace("dask", "distributed")) if "1:1" in name else None
    fp32, data = str(folder / "fp32.onnx"), str(folder / "data.npz")
    given = [str(folder / "int8.onnx")] if command == "diagnose" else ["--eval", f"{folder / 'work.py'}:likeness"]
    with pytest.raises(SystemExit) as left:
        main([command, fp32, *given, "--data", data, "--logdir", str(tmp_path / "logs"), "--on", name])
    assert left.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not (tmp_path / "logs").exists(), "nothing half written"


@pytest.mark.parametrize(("name", "package"), [("dask://local", "distributed"), ("ray://local", "ray")])
def test_engines_that_are_not_installed(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    extra = name.partition(":")[0]
    with (
        pytest.raises(UsageError, match=rf"--on {name} needs {package}.*: pip install 'inc-tb\[{extra}\]'"),
        opened(name),
    ):
        pass


def test_threads_are_no_workers() -> None:
    with (
        ThreadPoolExecutor(1) as threads,
        pytest.raises(UsageError, match="a ThreadPoolExecutor was given; expected an executor of processes"),
        opened(threads),
    ):
        pass


def test_what_cannot_be_sent(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="what the tuning was given cannot be sent to the workers of processes:2"):
        inc_tb.tune(
            folder / "fp32.onnx", folder / "data.npz", lambda _: 1.0, logdir=tmp_path / "logs", on="processes:2"
        )
    assert not (tmp_path / "logs").exists()


def test_options_that_need_one_process(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=r"on='processes:2' was given together with distributed"):
        diagnosed(folder, on="processes:2", distributed=True)
    models = [str(folder / "fp32.onnx"), str(folder / "int8.onnx"), "--data", str(folder / "data.npz")]
    with pytest.raises(SystemExit):
        main(["diagnose", *models, "--on", "processes:2", "--shard", "1/2"])
    assert "--on was given with --shard" in capsys.readouterr().err


def test_the_command_logs_the_run(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    models = [str(folder / "fp32.onnx"), str(folder / "int8.onnx"), "--data", str(folder / "data.npz")]
    place = ["--logdir", str(tmp_path), "--run", "two"]
    with pytest.raises(SystemExit) as left:
        main(["diagnose", *models, *place, "--batch-size", "4", "--probe", "30", "--on", "processes:2", "--json"])
    assert left.value.code == 0
    said = json.loads(capfd.readouterr().out)
    assert said["samples"] == inc_tb.load(tmp_path / "two").diagnosis.samples == 44
    assert said["complete"] is True
