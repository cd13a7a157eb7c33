"""Logs that live elsewhere: in fsspec's memory, where anything can be made to fail, and on a real S3 server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import inc_tb
from inc_tb.errors import UsageError
from inc_tb.store import remote
from tests.example_run import make_diagnosis, make_models, make_trial
from tests.waiting import PATIENCE_S

PLACE = "memory://logs/trial-001"


@pytest.fixture(autouse=True)
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INC_TB_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setattr(remote, "_WAITS_S", (0.0, 0.0))
    MemoryFileSystem.store.clear()
    return tmp_path / "spool"


@pytest.fixture(scope="module")
def diagnosis(tmp_path_factory: pytest.TempPathFactory) -> inc_tb.Diagnosis:
    return make_diagnosis(tmp_path_factory.mktemp("models"))


def stored() -> dict[str, bytes]:
    return {name: file.getvalue() for name, file in MemoryFileSystem.store.items()}


def left(spool: Path) -> list[Path]:
    return [path for path in spool.rglob("*") if path.is_file()] if spool.exists() else []


def test_what_is_logged_there_is_read_from_there(diagnosis: inc_tb.Diagnosis, spool: Path) -> None:
    with inc_tb.SummaryWriter(PLACE) as writer:
        writer.add_diagnosis(diagnosis)
        after_one = stored()
        writer.add_trial(make_trial())
    events = [name for name in stored() if "tfevents" in name]
    assert sorted(name.split("/")[2] for name in events) == ["fp32", "trial-001"]
    (own,) = (name for name in events if "trial-001" in name)
    assert stored()[own].startswith(after_one[own]), "each call sends the file whole"
    assert len(stored()[own]) > len(after_one[own])
    found = inc_tb.load(PLACE)
    assert found.name == PLACE
    assert found.trial == make_trial()
    assert found.diagnosis.by_sample == diagnosis.by_sample
    assert found.diagnosis.logged is None
    assert left(spool) == []


def test_a_later_writer_goes_on_with_the_steps(diagnosis: inc_tb.Diagnosis) -> None:
    for _ in range(2):
        with inc_tb.SummaryWriter(PLACE) as writer:
            writer.add_diagnosis(diagnosis)
    assert list(inc_tb.load(PLACE).diagnoses) == [0, 1]
    with inc_tb.SummaryWriter("memory://logs/trial-002") as writer:
        writer.add_diagnosis(diagnosis)
    references = [name for name in stored() if name.startswith("/logs/fp32") and "tfevents" in name]
    assert len(references) == 1, "the reference that is there already is found"


class BrokenError(Exception):
    pass


def test_a_store_that_stumbles_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    works, failures = MemoryFileSystem.put_file, iter([True, True])

    def stumble(self: Any, *given: Any, **more: Any) -> None:
        if next(failures, False):
            raise BrokenError("slow down")
        works(self, *given, **more)

    monkeypatch.setattr(MemoryFileSystem, "put_file", stumble)
    with inc_tb.SummaryWriter(PLACE) as writer:
        writer.add_trial(make_trial())
    assert inc_tb.load(PLACE).trial == make_trial()


def test_without_a_network_everything_is_kept_and_sent_later(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any, **__: Any) -> None:
        raise BrokenError("no route to host\nand more")

    writer = inc_tb.SummaryWriter(PLACE)
    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "put_file", gone)
        with pytest.warns(
            UserWarning, match=r"cannot write there \(no route to host\).*tried again when more is logged"
        ):
            writer.add_trial(make_trial())
        with pytest.raises(UsageError) as error:
            writer.close()
        writer.close()
    (folder,) = spool.iterdir()
    assert f"What was logged is kept in {folder}, and sent when something is logged there again." in str(error.value)
    assert stored() == {}
    (folder / ".owner").write_text("999999999 gone\n")  # its process has ended
    with inc_tb.SummaryWriter("memory://logs/trial-002") as later:
        later.add_trial(make_trial("trial-002"))
    assert inc_tb.load(PLACE).trial == make_trial()
    assert left(spool) == []


def test_the_spool_of_a_process_that_is_running_is_left_alone(spool: Path) -> None:
    first = inc_tb.SummaryWriter(PLACE)
    with inc_tb.SummaryWriter("memory://logs/trial-002") as writer:
        writer.add_trial(make_trial())
    first.add_trial(make_trial())
    first.close()
    assert inc_tb.load(PLACE).trial == make_trial()


def test_a_run_that_is_written_whole_is_not_seen_before(diagnosis: inc_tb.Diagnosis) -> None:
    with inc_tb.SummaryWriter(PLACE, whole=True) as writer:
        writer.add_trial(make_trial())
        assert not [name for name in stored() if "trial-001" in name]
    assert inc_tb.load(PLACE).trial == make_trial()
    MemoryFileSystem.store.clear()

    def fail() -> None:
        with inc_tb.SummaryWriter(PLACE, whole=True) as writer:
            writer.add_trial(make_trial())
            raise BrokenError

    with pytest.raises(BrokenError):
        fail()
    assert not [name for name in stored() if "tfevents" in name]


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("nowhere://a/b", "nowhere:// is not known; expected s3://"),
        ("memory://", "expected the address of a run"),
        ("s3://bucket", "expected the address of a run"),
    ],
)
def test_addresses_that_cannot_be_used(address: str, words: str) -> None:
    for use in (inc_tb.SummaryWriter, inc_tb.load):
        with pytest.raises(UsageError) as error:
            use(address)
        assert words in str(error.value)
        assert "\n" not in str(error.value)


def test_a_place_without_rights_is_told_at_once(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def denied(*_: Any, **__: Any) -> None:
        tries.append(1)
        raise PermissionError("Access Denied")

    monkeypatch.setattr(MemoryFileSystem, "find", denied)
    for use in (inc_tb.SummaryWriter, inc_tb.load):
        with pytest.raises(UsageError) as error:
            use(PLACE)
        assert str(error.value) == (
            "memory://logs: cannot read there (Access Denied). Check address, rights and network."
        )
    assert len(tries) == 2, "another try would not help"
    monkeypatch.undo()
    monkeypatch.setenv("INC_TB_SPOOL", str(spool))
    monkeypatch.setattr(MemoryFileSystem, "put_file", denied)
    writer = inc_tb.SummaryWriter(PLACE)
    with pytest.warns(UserWarning, match=r"memory://logs: cannot write there \(Access Denied\)"):
        writer.add_trial(make_trial())
    with pytest.raises(UsageError, match=r"cannot write there \(Access Denied\).* What was logged is kept in "):
        writer.close()
    assert stored() == {}


def test_without_the_package_of_a_store_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UsageError, match=r"s3://bucket/logs: .*; for s3:// pip install 'inc-tb\[remote\]'\.$"):
        inc_tb.load("s3://bucket/logs/run")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(UsageError, match=r"needs fsspec\.core, which is not installed: pip install"):
        inc_tb.load("s3://bucket/logs/run")


def test_an_address_without_a_run_says_so() -> None:
    with pytest.raises(inc_tb.IncTbError, match="memory://logs/none: no event files there"):
        inc_tb.load("memory://logs/none")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    """A server of its own, which listens on this machine only, with one bucket and what is needed to reach it."""
    port = free_port()
    there = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], env={**os.environ, **there},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                request = urllib.request.Request(f"{there['AWS_ENDPOINT_URL']}/logs", method="PUT")
                urllib.request.urlopen(request).close()
                break
            except OSError:
                assert server.poll() is None
                assert time.monotonic() < end
                time.sleep(0.1)
        yield there
    finally:
        server.kill()
        server.wait()


RUNS = "/data/plugin/quantization/runs"
LOGGING = """
import inc_tb
from tests.example_run import make_trial
with inc_tb.SummaryWriter("s3://logs/tb/run") as writer:
    writer.add_trial(make_trial())
"""
WITHOUT_TENSORFLOW = """
import sys, types
sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")  # as where it is not installed
from tensorboard.main import run_main
run_main()
"""


@pytest.mark.slow
def test_tensorboard_reads_the_run_from_the_bucket(s3: dict[str, str], spool: Path) -> None:
    environment = {**os.environ, **s3, "INC_TB_SPOOL": str(spool), "S3_ENDPOINT": s3["AWS_ENDPOINT_URL"]}
    subprocess.run([sys.executable, "-c", LOGGING], env=environment, check=True)
    port = free_port()
    options = ["--logdir", "s3://logs/tb", "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(
        [sys.executable, "-c", WITHOUT_TENSORFLOW, *options], env=environment, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        found: list[Any] = []
        end = time.monotonic() + PATIENCE_S
        while not found:
            assert server.poll() is None
            assert time.monotonic() < end
            time.sleep(0.2)
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}{RUNS}") as reply:
                found = json.load(reply)["runs"]
        assert [run["name"] for run in found] == ["run"]
    finally:
        server.kill()
        server.wait()


def command(s3: dict[str, str], spool: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **s3, "INC_TB_SPOOL": str(spool)}
    return subprocess.run(
        [sys.executable, "-m", "inc_tb.cli", *arguments], cwd=folder, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_commands_with_a_real_s3_server(s3: dict[str, str], spool: Path, tmp_path: Path) -> None:
    import numpy as np

    make_models(tmp_path, outlier=1.0)
    np.savez(tmp_path / "data.npz", input=np.random.default_rng(5).normal(size=(16, 2, 6, 6)).astype(np.float32))
    diagnose = ["diagnose", "fp32.onnx", "int8.onnx", "--data", "data.npz", "--logdir", "s3://logs/project"]
    done = command(s3, spool, tmp_path, *diagnose, "--run", "base")
    assert done.returncode == 0, done.stderr
    assert "tensorboard --logdir s3://logs/project" in done.stdout
    assert "s3://logs/project/base" in done.stdout.replace("\n", "")
    assert str(spool) not in done.stdout + done.stderr
    taken = command(s3, spool, tmp_path, *diagnose, "--run", "base")
    assert taken.returncode == 2
    assert "--run base: s3://logs/project/base exists already" in taken.stderr
    for share in ("1/2", "2/2"):
        done = command(s3, spool, tmp_path, *diagnose, "--run", "new", "--batch-size", "8", "--shard", share)
        assert done.returncode == 0, done.stderr
    merge = ["merge", "s3://logs/project/new.shards", "--logdir", "s3://logs/project", "--run", "new"]
    assert command(s3, spool, tmp_path, *merge).returncode == 0
    compared = command(s3, spool, tmp_path, "compare", "s3://logs/project/base", "s3://logs/project/new", "--json")
    assert compared.returncode == 0, compared.stderr
    assert json.loads(compared.stdout)["paired"] == 16
    assert command(s3, spool, tmp_path, "check", "s3://logs/project/new").returncode == 0
    assert command(s3, spool, tmp_path, "report", "s3://logs/project", "-o", "report.md").returncode == 0
    assert "base" in (tmp_path / "report.md").read_text()
    missing = command(s3, spool, tmp_path, *diagnose[:-1], "s3://no-such-bucket/project")
    assert (missing.returncode, missing.stdout) == (2, "")
    (line,) = missing.stderr.splitlines()
    assert "s3://no-such-bucket/project: cannot read there (there is no bucket no-such-bucket)" in line
    elsewhere = command(
        s3, spool, tmp_path, "tune", "fp32.onnx", "--data", "data.npz", "--eval", "x.py:f", *diagnose[-2:]
    )
    assert elsewhere.returncode == 2
    assert "s3://logs/project was given; expected a folder of this machine" in elsewhere.stderr
    assert left(spool) == []
    assert not (tmp_path / "nc_workspace").exists()
    assert not (tmp_path / "s3:").exists()


def test_fsspec_is_what_it_is_thought_to_be() -> None:
    """An address of a store is split as ours is."""
    store, root = fsspec.core.url_to_fs("memory://logs/project")
    assert (type(store), root) == (MemoryFileSystem, "/logs/project")
