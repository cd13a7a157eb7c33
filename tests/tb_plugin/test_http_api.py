"""tb_plugin/http_api.md tells what the routes do: all of them, all that they read, and how an answer is decoded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from tensorboard.plugins.base_plugin import TBContext
from werkzeug.datastructures import ImmutableMultiDict
from werkzeug.test import Client, TestResponse
from werkzeug.wrappers import Request

from tests.tensorboards import python_loader  # first: it silences what the plugin's imports warn about

# isort: split
import inc_tb
from inc_tb import records
from tb_plugin import plugin as plugin_module
from tb_plugin.plugin import QuantizationPlugin

GOLDEN = Path(__file__).parents[1] / "golden"
TEXT = Path(plugin_module.__file__).with_name("http_api.md").read_text(encoding="utf-8")
SECTIONS = {title.strip("`"): body for title, body in re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", TEXT, re.MULTILINE)}
ROUTES = {title: body for title, body in SECTIONS.items() if title.startswith("/")}
GIVEN = {
    "run": "v2", "name": "name", "header": "1", "kind": "trial", "op": "/conv1/Conv", "step": "3", "stamp": "1.5",
}  # fmt: skip


def parameters(route: str) -> list[str]:
    return re.findall(r"^\| `(\w+)` \|", ROUTES[route], re.MULTILINE)


@pytest.fixture(scope="module")
def plugin() -> Iterator[QuantizationPlugin]:
    with python_loader(GOLDEN) as found:
        yield QuantizationPlugin(TBContext(data_provider=found.provider))


@pytest.fixture(scope="module")
def decoder() -> dict[str, Any]:
    """The functions that the description ends with."""
    (code,) = re.findall(r"```python\n(.+?)```", TEXT, re.DOTALL)
    found: dict[str, Any] = {}
    exec(code, found)
    return found


def ask(plugin: QuantizationPlugin, route: str, **query: Any) -> TestResponse:
    client = Client(plugin.get_plugin_apps()[route])
    return client.get(route.replace("*", "index.js"), query_string=query)


def test_every_route_is_described_and_no_other(plugin: QuantizationPlugin) -> None:
    assert list(ROUTES) == list(plugin.get_plugin_apps())


@pytest.mark.parametrize("route", ROUTES)
def test_every_parameter_that_is_read_is_described(
    route: str, plugin: QuantizationPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: set[str] = set()

    class Noted(ImmutableMultiDict[str, str]):
        def getlist(self, key: str, *rest: Any) -> list[Any]:
            read.add(key)
            return super().getlist(key, *rest)

        def __contains__(self, key: object) -> bool:
            read.add(str(key))
            return super().__contains__(key)

        def __getitem__(self, key: str) -> str:
            read.add(key)
            return super().__getitem__(key)

    monkeypatch.setattr(Request, "parameter_storage_class", Noted)
    told = parameters(route)
    assert ask(plugin, route, **{name: GIVEN[name] for name in told}).status_code == 200
    assert read == set(told)
    assert ("No parameters." in ROUTES[route]) == (not told)


def test_the_kinds_are_all_told() -> None:
    (row,) = re.findall(r"^\| `kind` \|.*$", ROUTES["/record"], re.MULTILINE)
    assert re.findall(r"`(\w+)`", row) == ["kind", "ops", *get_args(records.RowKind)]


def test_the_runs_are_as_described(plugin: QuantizationPlugin) -> None:
    example = json.loads(re.search(r"^    \{.*?^    \}", ROUTES["/runs"], re.M | re.S)[0].replace(", …", ""))  # type: ignore[index]
    found = json.loads(ask(plugin, "/runs").data)
    assert example.keys() == found.keys()
    (told,), run = example["runs"], next(run for run in found["runs"] if run["name"] == "v2")
    assert told.keys() == run.keys()
    for kind, about in told["kinds"].items():
        assert about.keys() == run["kinds"][kind].keys()


@pytest.mark.parametrize("run", ["v1", "v2"])
def test_a_table_decoded_as_described(run: str, plugin: QuantizationPlugin, decoder: dict[str, Any]) -> None:
    table = inc_tb.load(GOLDEN / run).ops
    reply = ask(plugin, "/columns", run=run, name=list(table), header=1)
    contents, blobs = decoder["read_container"](reply.data)
    assert set(contents) == {"parts", "headers"}
    assert [part["name"] for part in contents["parts"]] == list(table)
    for part in contents["parts"]:
        values, reasons = decoder["read_column"](part["column"], blobs[part["blob"]], part["rows"])
        np.testing.assert_array_equal(np.array(values, table[part["name"]].dtype), table[part["name"]])
        for row, reason in enumerate(reasons):
            assert not reason or reason == table.why_null(part["name"], row)


@pytest.mark.parametrize("kind", get_args(records.RowKind))
def test_rows_decoded_as_described(kind: str, plugin: QuantizationPlugin, decoder: dict[str, Any]) -> None:
    run = f"later/{kind}" if (GOLDEN / "later" / kind).is_dir() else "v2"
    contents, blobs = decoder["read_container"](ask(plugin, "/record", run=run, kind=kind).data)
    (part,) = contents["parts"]
    assert sum(len(decoder["read_rows"](blobs[place])) for place in part["blobs"]) == part["rows"] > 0
    if kind in records.CHUNKED:
        route = {"histograms": "/histogram"}.get(kind, f"/{kind}")
        contents, blobs = decoder["read_container"](ask(plugin, route, run="v2", op="/conv1/Conv").data)
        assert "/conv1/Conv" in {row["op"] for row in decoder["read_rows"](blobs[contents["parts"][0]["blob"]])}
