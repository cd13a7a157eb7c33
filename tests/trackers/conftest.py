"""Trackers that write below a temporary folder, and a proxy that knows if anybody was called."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from inc_tb.cli import main

# Before anything imports them: MLflow writes an id into the home folder at once.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")


class Printed(NamedTuple):
    code: object
    stdout: str
    stderr: str


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current folder; whoever would leave this machine reaches a proxy, and fails the tests."""
    folder = tmp_path_factory.mktemp("trackers")
    with socket.create_server(("127.0.0.1", 0)) as proxy, pytest.MonkeyPatch.context() as patch:
        address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            patch.setenv(name, address)
        for name in ("no_proxy", "NO_PROXY"):
            patch.setenv(name, "127.0.0.1,localhost")
        for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_CONFIG_DIR"):
            (folder / name).mkdir()
            patch.setenv(name, str(folder / name))
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_SILENT", "true")
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database takes seconds to be made
        patch.setenv("MLFLOW_TRACKING_URI", (folder / "mlruns").as_uri())
        patch.chdir(folder)
        yield folder
        called, _, _ = select.select([proxy], [], [], 0)
        assert not called, "a tracker called somebody"


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Callable[..., Printed]:
    def call(*arguments: object) -> Printed:
        with pytest.raises(SystemExit) as left:
            main([*map(str, arguments)])
        return Printed(left.value.code, *capfd.readouterr())

    return call
