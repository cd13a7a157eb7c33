"""TensorBoard as its users have it: its two loaders, and the whole server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import grpc
import tensorboard_data_server
from tensorboard.backend.event_processing.data_ingester import DEFAULT_TENSOR_SIZE_GUIDANCE
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.data.grpc_provider import GrpcDataProvider, make_stub

from tests.waiting import PATIENCE_S, until

# TensorBoard's own switch for "work without TensorFlow", which takes 10 s to load where it is installed.
sys.modules.setdefault("tensorboard.compat.notf", ModuleType("tensorboard.compat.notf"))
with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of a library that TensorBoard contains
    import tensorboard.plugin_util  # noqa: F401
START = """
import sys
from types import ModuleType
sys.modules["tensorboard.compat.notf"] = ModuleType("tensorboard.compat.notf")
from tensorboard import default
from tensorboard.main import run_main
"""
WITH_XPROF = """
sys.modules["tensorflow"] = None  # xprof imports it where it is, for what we do not need
"""
WITHOUT_XPROF = """
found = default.get_dynamic_plugins
default.get_dynamic_plugins = lambda: [plugin for plugin in found() if not plugin.__module__.startswith("xprof")]
"""


@contextmanager
def python_loader(logdir: Path) -> Iterator[Contents]:
    multiplexer = EventMultiplexer(tensor_size_guidance={**DEFAULT_TENSOR_SIZE_GUIDANCE, "quantization": 0})
    multiplexer.AddRunsFromDirectory(str(logdir))
    multiplexer.Reload()
    yield Contents(MultiplexerDataProvider(multiplexer, str(logdir)))


@contextmanager
def fast_loader(logdir: Path) -> Iterator[Contents]:
    """The data server in Rust, when it has read everything."""
    command = [tensorboard_data_server.server_binary(), "--logdir", logdir, "--reload", "once", "--port", "0"]
    command += ["--verbose", "--die-after-stdin", "--samples-per-plugin", "quantization=all"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        port = next(m[1] for line in server.stderr if (m := re.search(r"listening on .*:(\d+)", line)))
        next(line for line in server.stderr if "Finished load cycle" in line)
        with grpc.insecure_channel(f"localhost:{port}") as channel:
            yield Contents(GrpcDataProvider(port, make_stub(channel)))
        assert server.stdin is not None
        server.stdin.close()  # tells it to end
        server.stderr.read()


LOADERS: Mapping[str, Callable[[Path], AbstractContextManager[Contents]]] = {"python": python_loader}
if tensorboard_data_server.server_binary():  # only where TensorBoard has one: x86-64 Linux and macOS
    LOADERS = {"fast": fast_loader, **LOADERS}


class Contents:
    """What a loader holds: run -> tag -> step -> value."""

    def __init__(self, provider: Any) -> None:
        self.provider = provider

    def runs(self) -> list[str]:
        return sorted(run.run_name for run in self.provider.list_runs(RequestContext(), experiment_id=""))

    def blobs(
        self, plugin: str = "quantization", *, fetch: bool = True
    ) -> dict[str, dict[str, dict[int, list[bytes]]]]:
        """Fetching takes long where there are many."""

        def elements(datum: Any) -> list[bytes]:
            keys = [ref.blob_key for ref in datum.values] if fetch else []
            return [self.provider.read_blob(RequestContext(), blob_key=key) for key in keys]

        return self._read("read_blob_sequences", plugin, elements)

    def scalars(self) -> dict[str, dict[str, dict[int, float]]]:
        return self._read("read_scalars", "scalars", lambda datum: datum.value)

    def descriptions(self) -> dict[str, dict[str, str]]:
        """Of scalars."""
        listed = self.provider.list_scalars(RequestContext(), experiment_id="", plugin_name="scalars")
        return {run: {tag: series.description for tag, series in tags.items()} for run, tags in listed.items()}

    def tensors(self, plugin: str) -> dict[str, dict[str, dict[int, Any]]]:
        return self._read("read_tensors", plugin, lambda datum: datum.numpy)

    def tags(self, kind: str, plugin: str) -> dict[str, set[str]]:
        listed = getattr(self.provider, f"list_{kind}")(RequestContext(), experiment_id="", plugin_name=plugin)
        return {run: set(tags) for run, tags in listed.items()}

    def _read(self, method: str, plugin: str, value: Callable[[Any], Any]) -> Any:
        read = getattr(self.provider, method)
        found = read(RequestContext(), experiment_id="", plugin_name=plugin, downsample=1000)
        return {
            run: {tag: {datum.step: value(datum) for datum in data} for tag, data in tags.items()}
            for run, tags in found.items()
        }


class Server:
    """A running TensorBoard."""

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self.pid = pid
        self.said: list[str] = []

    def get(self, path: str, **query: str) -> Any:
        text = self.text(path, **query)
        return json.loads(text)

    def text(self, path: str, **query: str) -> str:
        with urlopen(f"{self.url}data/{path}?{urlencode(query)}", timeout=PATIENCE_S) as reply:
            return str(reply.read().decode())

    def post(self, path: str, **body: Any) -> Any:
        asked = Request(f"{self.url}data/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urlopen(asked, timeout=PATIENCE_S) as reply:
            return json.loads(reply.read())

    def trials(self) -> list[Any]:
        every = ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"]
        query = {"experimentName": "", "allowedStatuses": every, "colParams": [], "startIndex": 0, "sliceSize": 99}
        return list(self.post("plugin/hparams/session_groups", **query)["sessionGroups"])

    def wait_for_trials(self, count: int) -> None:
        """TensorBoard answers before it has read everything; a trial's settings are the last thing in its file."""
        until(lambda: len(self.trials()) >= count, self.trials)

    def wait_for_any_run(self) -> None:
        """In the Quantization tab."""
        until(self.runs)

    def runs(self) -> list[Any]:
        """In the Quantization tab."""
        return list(self.get("plugin/quantization/runs")["runs"])

    def wait_for_records(self, last: Mapping[str, str]) -> None:
        """The same for runs with anything in them; `last` says which record is the last one of each."""

        def found() -> set[tuple[str, str]]:
            return {(run["name"], kind) for run in self.runs() for kind in run["kinds"]}

        until(lambda: found() >= set(last.items()), found)


@contextmanager
def serve(
    logdir: Path | None, *flags: str, environment: Mapping[str, str] | None = None, xprof: bool = False
) -> Iterator[Server]:
    """Without a logdir the flags have to say where the runs are. `xprof` is the Profile tab."""
    start = f"{START}{WITH_XPROF if xprof else WITHOUT_XPROF}run_main()"
    command = [sys.executable, "-c", start, "--host", "127.0.0.1", "--port", "0", *flags]
    command += ["--logdir", str(logdir)] if logdir else []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"at (http://\S+)", line):
                break
        else:
            raise AssertionError("".join(said))
        server = Server(found[1], process.pid)
        server.said = said
        listener = threading.Thread(target=lambda: said.extend(process.stderr or ()))
        listener.start()
        try:
            yield server
        finally:
            process.terminate()
            listener.join()
