"""Two at once keep out of each other's way, and what was killed or found no room leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import inc_tb
from inc_tb.errors import UsageError
from inc_tb.sources.logged import log_runs
from tests.digits import DATA

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the locks are those of POSIX")
ROOT = Path(inc_tb.__file__).parents[1]
HOLD = """
import sys, time
from pathlib import Path
import inc_tb
from inc_tb.locks import TemporaryFolder
from inc_tb.store.hold import TUNING, held_alone
place = Path(sys.argv[1])
writer = inc_tb.SummaryWriter(place / "run", whole=True)
writer.add_trial(inc_tb.Trial("half", 0.5))
with held_alone(place, TUNING), TemporaryFolder("tune") as folder:
    Path(folder, "model").touch()
    print(folder, flush=True)
    time.sleep(600)
"""
FILL = """
import sys
from pathlib import Path
import inc_tb
from inc_tb.errors import UsageError
from tests.made_runs import make_diagnosis
place = Path(sys.argv[1])
with inc_tb.SummaryWriter(place / "small", whole=True) as writer:
    writer.add_trial(inc_tb.Trial("small"))
try:
    with inc_tb.SummaryWriter(place / "large", whole=True) as writer:
        writer.add_diagnosis(make_diagnosis(2000))
except UsageError as error:
    print(error)
print(sorted(p.name for p in place.iterdir()))
with inc_tb.SummaryWriter(place / "next", whole=True) as writer:
    writer.add_trial(inc_tb.Trial("next"))
print(inc_tb.load(place / "next").trial.name)
"""
SPANS = [
    {"cat": "Session", "ph": "X", "name": "model_run", "ts": 0, "dur": 20, "pid": 1, "tid": 2, "args": {}},
    {"cat": "Node", "ph": "X", "name": "conv_kernel_time", "ts": 1, "dur": 5, "pid": 1, "tid": 2,
     "args": {"op_name": "Conv", "node_index": "0"}},
]  # fmt: skip


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path, subprocess.Popen[str]]]:
    """A process that tunes in a folder and writes a run of it, and its temporary folder."""
    place = tmp_path_factory.mktemp("held")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", HOLD, str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        yield place, Path(process.stdout.readline().strip()), process
        process.kill()


def test_a_second_process_is_told_who_writes(other: tuple[Path, Path, subprocess.Popen[str]]) -> None:
    place, _, process = other
    with pytest.raises(UsageError, match=rf"/run: process {process.pid} \(-c .*\) on .* writes there since .* Wait"):
        inc_tb.SummaryWriter(place / "run")
    with pytest.raises(UsageError, match=rf"{place}: process {process.pid} .* tunes there since .* Wait until"):
        inc_tb.tune(DATA / "hard.onnx", np.ones((4, 1, 8, 8), np.float32), lambda _: 1.0, logdir=place)
    with inc_tb.SummaryWriter(place / "beside") as writer:  # another run is nobody else's business
        writer.add_trial(inc_tb.Trial("beside"))


def test_a_process_that_was_killed_holds_nobody_up(other: tuple[Path, Path, subprocess.Popen[str]]) -> None:
    place, folder, process = other
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (folder / "model").exists()
    assert len(list((place / "run").glob("part.of.events.*"))) == 1
    (place / "run" / "activations_table.csv.1.2.part").touch()
    with inc_tb.SummaryWriter(place / "run") as writer:
        writer.add_trial(inc_tb.Trial("mine"))
    assert [trial.name for trial in inc_tb.load(place / "run").trials.values()] == ["mine"]
    assert not [p for p in (place / "run").iterdir() if "part" in p.name or p.name.startswith(".")]
    code = "from inc_tb.locks import TemporaryFolder\nwith TemporaryFolder(): pass"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert not folder.exists()
    assert not Path(f"{folder}.lock").exists()


def test_the_folders_of_those_that_live_stay() -> None:
    from inc_tb import locks

    with locks.TemporaryFolder() as folder:
        locks._swept.clear()
        with locks.TemporaryFolder():
            assert Path(folder).exists()
    assert not list(Path(tempfile.gettempdir()).glob(f"{Path(folder).name}*"))


def test_two_imports_at_once_log_each_run_once(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(json.dumps(SPANS))

    def imported(_: int) -> int:
        (found,) = inc_tb.import_workspace(tmp_path / "trace.json")
        return len(log_runs(found, tmp_path / "logs"))

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(imported, range(8))) == 1
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["trace"]


def test_a_disk_that_is_full_leaves_no_half_run(tmp_path: Path) -> None:
    """A real one, of 300 kB."""
    mounted = 'mount -t tmpfs -o size=300k tmpfs "$1" && exec "$2" -c "$3" "$1"'
    command = ["unshare", "-rm", "sh", "-c", mounted, "sh", str(tmp_path), sys.executable, FILL]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
    except FileNotFoundError:
        pytest.skip("this system cannot make a disk of its own")
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip("this system lets nobody make a disk of his own")
    told, there, after = done.stdout.splitlines()
    assert "/large" in told
    assert told.endswith("cannot write there (No space left on device). Make room there, or choose another folder.")
    assert "large" not in json.loads(there.replace("'", '"'))
    assert after == "next"
