"""The routes of the plugin, on the data providers of both loaders and on a whole TensorBoard."""

from __future__ import annotations

import gzip
import json
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

import grpc
import msgspec
import numpy as np
import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.data.grpc_provider import GrpcDataProvider, make_stub
from tensorboard.plugins.base_plugin import TBContext
from werkzeug.test import Client, TestResponse

from tests.tensorboards import LOADERS, Server, serve  # first: it silences what the plugin's imports warn about

# isort: split
import inc_tb
from inc_tb import records
from inc_tb.records import Column, HistogramRow, OpTable
from inc_tb.store import summaries
from inc_tb.store.eventfile import EventFile, event_files
from tb_plugin import source
from tb_plugin.loader import QuantizationLoader
from tb_plugin.plugin import QuantizationPlugin
from tests.example_run import OPS, make_diagnosis, make_trial
from tests.hostile import gzip_bomb, sealed
from tests.waiting import PATIENCE_S, until

each_loader = pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
LOAD_FAST = ["true", "false"] if "fast" in LOADERS else ["false"]
Query = Sequence[tuple[str, Any]]


class Counting:
    """A data provider that notes which blobs are read, and how much is asked of the sequences."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider
        self.blobs: list[str] = []
        self.sequences: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    def read_blob(self, context: Any, *, blob_key: str) -> bytes:
        self.blobs.append(blob_key)
        return bytes(self._provider.read_blob(context, blob_key=blob_key))

    def read_blob_sequences(self, context: Any, **asked: Any) -> Any:
        found = self._provider.read_blob_sequences(context, **asked)
        self.sequences.append({tag for tags in found.values() for tag in tags})
        return found


class Tab:
    """The plugin's routes without a server."""

    def __init__(self, provider: Any, **options: Any) -> None:
        self.provider = Counting(provider)
        self.plugin = QuantizationPlugin(TBContext(data_provider=self.provider), **options)
        self._apps = self.plugin.get_plugin_apps()
        self._client = Client(self._app)

    def _app(self, environ: Any, start_response: Any) -> Any:
        path = environ["PATH_INFO"]
        return self._apps["/static/*" if path.startswith("/static/") else path](environ, start_response)

    def ask(self, path: str, query: Query = (), method: str = "GET", **headers: str) -> TestResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self._client.open(path, method=method, query_string=urlencode(query), headers=named)

    def contents(self, path: str, query: Query) -> tuple[dict[str, Any], list[bytes]]:
        reply = self.ask(path, query)
        assert reply.status_code == 200, reply.text
        assert reply.content_type == "application/octet-stream"
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert "Content-Encoding" not in reply.headers
        return unpack(reply.data)


def unpack(body: bytes) -> tuple[dict[str, Any], list[bytes]]:
    (length,) = struct.unpack("<I", body[:4])
    contents = json.loads(body[4 : 4 + length])
    place, blobs = 4 + length, []
    for size in contents.pop("blobs"):
        blobs.append(body[place : place + size])
        place += size
    assert place == len(body)
    return contents, blobs


def numbers(part: Mapping[str, Any], blobs: Sequence[bytes]) -> list[Any]:
    """A column as the page reads it; None where there is no number."""
    data = gzip.decompress(blobs[part["blob"]])
    if part["column"].get("type") == "text":
        length = int.from_bytes(data[:4], "little")
        texts = json.loads(data[4 : 4 + length])
        return [texts[code] for code in np.frombuffer(data, "<u4", part["rows"], 4 + length)]
    values: list[Any] = np.frombuffer(data, "<" + part["column"].get("stored", "f8"), part["rows"]).tolist()
    return [None if value != value else value for value in values]


def rows(part: Mapping[str, Any], blobs: Sequence[bytes]) -> list[Any]:
    return [row for index in part["blobs"] for row in json.loads(gzip.decompress(blobs[index]))]


def without_storage(column: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in column.items() if key != "stored"}


def plain(found: Any) -> Any:
    return json.loads(msgspec.json.encode(found))


def by_hand(ops: Sequence[str], value: float = 30.0) -> inc_tb.Diagnosis:
    columns = [
        Column("name", type="text", label="op"), Column("type", type="text"), Column("verdict", type="text"),
        *(Column(f"{which}_sqnr_db", better="higher") for which in ("added", "arrived", "total")),
    ]  # fmt: skip
    table = [
        {"name": op, "type": "Conv", "verdict": "ok", "added_sqnr_db": value,
         "arrived_sqnr_db": "nothing", "total_sqnr_db": 20.0}
        for op in ops
    ]  # fmt: skip
    histograms = [HistogramRow(op, "output", 130, [512, 4, 600, 2], [512, 6], 120, []) for op in ops]
    return inc_tb.Diagnosis(OpTable.from_rows(columns, table), histograms=histograms)


def write(folder: Path, tag: str, elements: Sequence[bytes], step: int = 0) -> None:
    file = EventFile(folder)
    file.write(Event(wall_time=time.time(), step=step, summary=Summary(value=[summaries.blobs(tag, elements)])))
    file.close()


@pytest.fixture(scope="module")
def diagnosis(tmp_path_factory: pytest.TempPathFactory) -> inc_tb.Diagnosis:
    return make_diagnosis(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def logdir(diagnosis: inc_tb.Diagnosis, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trials of one model; the first has two diagnoses, which differ, and a profile."""
    folder = tmp_path_factory.mktemp("logdir")
    with inc_tb.SummaryWriter(folder / "trial-001") as writer:
        writer.add_diagnosis(by_hand(OPS), 0)
        writer.add_diagnosis(diagnosis, 3)
        rows = [inc_tb.records.ProfileRow("/conv1/Conv", "Conv", 2.0, 1.0)]
        writer.add_profile(inc_tb.Profile(rows, inc_tb.records.ProfileRow("", fp32_us=2.5), runs=7))
        writer.add_trial(make_trial("trial-001"))
    with inc_tb.SummaryWriter(folder / "trial-002") as writer:
        writer.add_diagnosis(diagnosis, 0)
        writer.add_trial(make_trial("trial-002", 0.9))
    return folder


@pytest.fixture(scope="module", params=LOADERS)
def tab(request: pytest.FixtureRequest, logdir: Path) -> Iterator[Tab]:
    with LOADERS[request.param](logdir) as found:
        yield Tab(found.provider)


class TestRuns:
    def test_kinds_versions_and_steps(self, tab: Tab) -> None:
        reply = tab.ask("/runs")
        assert reply.content_type == "application/json"
        found = json.loads(reply.data)
        assert found["version"] == records.VERSION
        assert [run["name"] for run in found["runs"]] == ["trial-001", "trial-002"]
        kinds = {run["name"]: run["kinds"] for run in found["runs"]}
        in_diagnosis = {"ops", "histograms", "channels", "suggestions", "graph", "samples"}
        assert set(kinds["trial-001"]) == in_diagnosis | {"trial", "profile"}
        assert set(kinds["trial-002"]) == in_diagnosis | {"trial"}
        assert {k: about["steps"] for k, about in kinds["trial-001"].items() if "steps" in about} == {
            "ops": [0, 3], "trial": [0], "profile": [0],
        }  # fmt: skip
        for about in kinds["trial-001"].values():
            assert about["version"] == records.VERSION
            assert abs(about["wall_time"] - time.time()) < 3600

    def test_a_listing_reads_no_keys_of_histograms(self, tab: Tab) -> None:
        tab.provider.sequences.clear()
        tab.provider.blobs.clear()
        tab.ask("/runs")
        assert tab.provider.sequences == [{"quantization/ops", "quantization/trial", "quantization/profile"}]
        assert tab.provider.blobs == []

    def test_is_sent_again_only_when_it_changed(self, tab: Tab) -> None:
        reply = tab.ask("/runs")
        assert reply.headers["Cache-Control"] == "no-cache"
        again = tab.ask("/runs", If_None_Match=reply.headers["ETag"])
        assert (again.status_code, again.data) == (304, b"")
        assert tab.ask("/runs", If_None_Match='W/"other"').status_code == 200

    @each_loader
    def test_of_an_empty_folder(self, loader: Any, tmp_path: Path) -> None:
        with loader(tmp_path) as found:
            assert json.loads(Tab(found.provider).ask("/runs").data) == {"version": records.VERSION, "runs": []}

    @each_loader
    @pytest.mark.parametrize("content", [b"", b"\xff", b"[1]", b'{"version": "new"}'])
    def test_a_version_that_cannot_be_read(self, content: bytes, loader: Any, tmp_path: Path) -> None:
        value = summaries.blobs("quantization/ops", records.encode_table(by_hand(["a"]).ops, {}))
        value.metadata.plugin_data.content = content
        foreign = summaries.blobs("somebody/ops", [b"x"])
        file = EventFile(tmp_path / "run")
        file.write(Event(wall_time=5.0, step=2, summary=Summary(value=[value, foreign])))
        file.close()
        with loader(tmp_path) as found:
            (run,) = json.loads(Tab(found.provider).ask("/runs").data)["runs"]
        assert run == {"name": "run", "kinds": {"ops": {"version": None, "wall_time": 5.0, "steps": [2]}}}


class TestColumns:
    def test_every_column_is_what_was_logged(self, tab: Tab, logdir: Path) -> None:
        ops = inc_tb.load(logdir / "trial-001").ops
        contents, blobs = tab.contents("/columns", [("run", "trial-001"), *(("name", name) for name in ops)])
        assert [part["name"] for part in contents["parts"]] == list(ops)
        assert set(contents) == {"parts"}
        expected = list(ops.rows())
        for part in contents["parts"]:
            assert (part["run"], part["step"], part["rows"]) == ("trial-001", 3, len(OPS))
            assert numbers(part, blobs) == [row[part["name"]] for row in expected]
            assert without_storage(part["column"]) == plain(ops.column(part["name"]))
        assert not any("nulls" in part["column"] for part in contents["parts"])

    def test_in_the_order_asked(self, tab: Tab) -> None:
        asked = [("run", "trial-002"), ("name", "name"), ("run", "trial-001"), ("name", "index"), ("run", "trial-002")]
        contents, _ = tab.contents("/columns", asked)
        assert [(part["run"], part["name"]) for part in contents["parts"]] == [
            ("trial-002", "name"), ("trial-002", "index"), ("trial-001", "name"), ("trial-001", "index"),
        ]  # fmt: skip

    def test_equal_blobs_are_sent_once(self, tab: Tab) -> None:
        asked = [("run", "trial-001"), ("run", "trial-002"), ("name", "name"), ("name", "added_sqnr_db")]
        contents, blobs = tab.contents("/columns", asked)
        assert [part["blob"] for part in contents["parts"]] == [0, 1, 0, 1]
        assert len(blobs) == 2

    def test_steps(self, tab: Tab) -> None:
        for step, expected in (([], 3), ([("step", 3)], 3), ([("step", 0)], 0)):
            contents, blobs = tab.contents("/columns", [("run", "trial-001"), ("name", "added_sqnr_db"), *step])
            (part,) = contents["parts"]
            assert part["step"] == expected
            assert (numbers(part, blobs) == [30.0] * len(OPS)) == (expected == 0)

    def test_a_step_that_only_one_run_has(self, tab: Tab) -> None:
        contents, _ = tab.contents(
            "/columns", [("run", "trial-001"), ("run", "trial-002"), ("name", "name"), ("step", 3)]
        )
        good, bad = contents["parts"]
        assert good["step"] == 3
        text = "run trial-002 has no ops record at step 3; its last steps are 0."
        assert bad == {"run": "trial-002", "name": "name", "error": text}

    def test_headers(self, tab: Tab, logdir: Path) -> None:
        contents, blobs = tab.contents("/columns", [("run", "trial-001"), ("run", "gone"), ("header", 1)])
        assert contents["parts"] == blobs == []
        header, gone = contents["headers"]
        found = inc_tb.load(logdir / "trial-001").diagnosis
        header["columns"] = [without_storage(column) for column in header["columns"]]
        assert header == {
            "run": "trial-001", "step": 3, "version": records.VERSION, "rows": len(OPS), "meta": plain(found.meta),
            "columns": [plain(column) for column in found.ops.columns],
        }  # fmt: skip
        assert gone["run"] == "gone"
        assert "is no longer there" in gone["error"]

    def test_a_column_that_only_one_run_has(self, tab: Tab) -> None:
        """At step 0 the first trial has few columns."""
        asked = [("run", "trial-001"), ("run", "trial-002"), ("name", "w_min"), ("step", 0)]
        contents, _ = tab.contents("/columns", asked)
        without, has = contents["parts"]
        text = "run trial-001 has no column w_min. Log it again with this inc-tb, or choose another column."
        assert without == {"run": "trial-001", "name": "w_min", "error": text}
        assert has["blob"] == 0

    @each_loader
    def test_nothing_is_read_twice(self, loader: Any, logdir: Path) -> None:
        with loader(logdir) as found:
            tab = Tab(found.provider)
            asked = [("run", "trial-001"), ("run", "trial-002"), ("run", "trial-001"), ("name", "name"), ("header", 1)]
            tab.ask("/columns", [*asked, ("name", "name")])
            assert len(tab.provider.blobs) == len(set(tab.provider.blobs)) == 4  # a header and a column each
            tab.ask("/columns", [*asked, ("name", "index")])
            assert len(tab.provider.blobs) == 8  # two columns each: the headers are known


class TestRecord:
    @pytest.mark.parametrize("kind", ["histograms", "channels", "suggestions", "graph", "profile", "samples"])
    def test_is_what_was_logged(self, kind: str, tab: Tab, logdir: Path) -> None:
        run = inc_tb.load(logdir / "trial-001")
        contents, blobs = tab.contents("/record", [("run", "trial-001"), ("kind", kind)])
        (part,) = contents["parts"]
        assert run.profile is not None
        of_others = {"profile": run.profile.rows, "samples": run.diagnosis.by_sample.rows}
        expected = of_others[kind] if kind in of_others else getattr(run.diagnosis, kind)
        assert rows(part, blobs) == plain(expected)
        assert (part["run"], part["kind"], part["version"]) == ("trial-001", kind, records.VERSION)
        assert part["step"] == (0 if kind == "profile" else 3)
        assert part["rows"] == len(expected)

    def test_meta(self, tab: Tab) -> None:
        contents, _ = tab.contents("/record", [("run", "trial-001"), ("kind", "profile")])
        total = {"op": "", "fp32_us": 2.5}
        assert contents["parts"][0]["meta"] == {"runs": 7, "fp32_total_us": 2.5, "total": total}
        contents, _ = tab.contents("/record", [("run", "trial-001"), ("kind", "suggestions")])
        assert contents["parts"][0]["meta"]["recipes"]

    def test_the_trials_of_several_runs(self, tab: Tab) -> None:
        asked = [("run", "trial-002"), ("run", "fp32"), ("run", "trial-001"), ("kind", "trial")]
        contents, blobs = tab.contents("/record", asked)
        second, reference, first = contents["parts"]
        assert rows(second, blobs) == [plain(make_trial("trial-002", 0.9))]
        assert rows(first, blobs) == [plain(make_trial("trial-001"))]
        text = "run fp32 has no trial record. Log one, or choose another run."
        assert reference == {"run": "fp32", "kind": "trial", "error": text}

    def test_all_columns(self, tab: Tab, logdir: Path) -> None:
        contents, blobs = tab.contents("/record", [("run", "trial-002"), ("kind", "ops")])
        assert len(contents["parts"][0]["blobs"]) == len(inc_tb.load(logdir / "trial-002").ops)
        assert len(blobs) == len(set(blobs))


class TestOneOp:
    @pytest.mark.parametrize(("route", "kind"), [("/histogram", "histograms"), ("/channels", "channels")])
    def test_its_rows(self, route: str, kind: str, tab: Tab, logdir: Path) -> None:
        contents, blobs = tab.contents(route, [("run", "trial-001"), ("op", "/conv1/Conv")])
        (part,) = contents["parts"]
        assert part == {"run": "trial-001", "step": 3, "op": "/conv1/Conv", "blob": 0}
        found = [row for row in json.loads(gzip.decompress(blobs[0])) if row["op"] == "/conv1/Conv"]
        logged = getattr(inc_tb.load(logdir / "trial-001").diagnosis, kind)
        assert found == [plain(row) for row in logged if row.op == "/conv1/Conv"] != []

    def test_an_op_that_is_not_there(self, tab: Tab) -> None:
        contents, blobs = tab.contents("/histogram", [("run", "trial-001"), ("op", "conv9")])
        text = "run trial-001 has no histograms of op conv9; it was not compared, or is not in the model."
        assert contents["parts"] == [{"run": "trial-001", "op": "conv9", "error": text}]
        assert blobs == []

    def test_a_run_that_is_not_there(self, tab: Tab) -> None:
        contents, _ = tab.contents("/channels", [("run", "gone"), ("op", "conv9")])
        assert "run gone is no longer there" in contents["parts"][0]["error"]

    @each_loader
    def test_what_a_later_step_does_not_write_anew_still_stands(self, loader: Any, tmp_path: Path) -> None:
        with inc_tb.SummaryWriter(tmp_path / "run") as writer:
            writer.add_diagnosis(by_hand(["a"], 1.0))
            writer.update_diagnosis(by_hand(["a"], 2.0))
            writer.add_diagnosis(by_hand(["a"], 3.0))
        with loader(tmp_path) as found:
            tab = Tab(found.provider)
            for step, written in ((0, 0), (1, 0), (2, 2)):
                where = [("run", "run"), ("step", step)]
                contents, blobs = tab.contents("/columns", [*where, ("name", "added_sqnr_db")])
                assert numbers(contents["parts"][0], blobs) == [step + 1.0]
                assert tab.contents("/histogram", [*where, ("op", "a")])[0]["parts"][0]["step"] == written
                assert tab.contents("/record", [*where, ("kind", "suggestions")])[0]["parts"][0]["step"] == step

    @each_loader
    def test_of_many_only_its_chunk_is_read(self, loader: Any, tmp_path: Path) -> None:
        ops = [f"op {i}" for i in range(100)]
        with inc_tb.SummaryWriter(tmp_path / "run") as writer:
            writer.add_diagnosis(by_hand(ops))
        with loader(tmp_path) as found:
            tab = Tab(found.provider)
            for op in ops[::9]:
                _, blobs = tab.contents("/histogram", [("run", "run"), ("op", op)])
                assert op in [row["op"] for row in json.loads(gzip.decompress(blobs[0]))]
            assert len(tab.provider.blobs) == 1 + len(ops[::9])

    @each_loader
    def test_odd_names(self, loader: Any, tmp_path: Path) -> None:
        ops = ["", "a b", "100%", "a&op=b", "é/日本", "\"'`", "a+b", "a%20b", "line\nbreak", "#?;"]
        run = "trial é#1 %20 &?+ 日本"
        with inc_tb.SummaryWriter(tmp_path / run) as writer:
            writer.add_diagnosis(by_hand(ops))
        with loader(tmp_path) as found:
            tab = Tab(found.provider)
            assert [one["name"] for one in json.loads(tab.ask("/runs").data)["runs"]] == [run]
            contents, blobs = tab.contents("/columns", [("run", run), ("name", "name")])
            assert numbers(contents["parts"][0], blobs) == ops
            for op in ops:
                contents, blobs = tab.contents("/histogram", [("run", run), ("op", op)])
                assert contents["parts"] == [{"run": run, "step": 0, "op": op, "blob": 0}]
                assert op in [row["op"] for row in json.loads(gzip.decompress(blobs[0]))]


ROUTES: list[tuple[str, Query]] = [
    ("/columns", [("run", "trial-001"), ("run", "trial-002"), ("name", "name"), ("header", "1")]),
    ("/record", [("run", "trial-001"), ("run", "trial-002"), ("kind", "trial")]),
    ("/histogram", [("run", "trial-001"), ("op", "/conv1/Conv")]),
    ("/channels", [("run", "trial-001"), ("op", "/conv1/Conv")]),
]


class TestKept:
    """What a browser may keep."""

    @pytest.mark.parametrize(("path", "query"), ROUTES)
    def test_nothing_is_read_for_what_the_browser_has(self, path: str, query: Query, tab: Tab) -> None:
        reply = tab.ask(path, query)
        assert reply.headers["Cache-Control"] == "no-cache"
        tab.provider.blobs.clear()
        again = tab.ask(path, query, If_None_Match=reply.headers["ETag"])
        assert (again.status_code, again.data, again.headers["ETag"]) == (304, b"", reply.headers["ETag"])
        assert tab.provider.blobs == []

    def test_everything_asked_has_another_tag(self, tab: Tab) -> None:
        asked: list[tuple[str, Query]] = [
            *ROUTES,
            ("/columns", [("run", "trial-001"), ("name", "name")]),
            ("/columns", [("run", "trial-001"), ("name", "name"), ("step", 0)]),
            ("/columns", [("run", "trial-002"), ("name", "name")]),
            ("/columns", [("run", "trial-002"), ("name", "type")]),
            ("/record", [("run", "trial-001"), ("kind", "graph")]),
            ("/histogram", [("run", "trial-001"), ("op", "/fc/Gemm")]),
        ]
        assert len({tab.ask(path, query).headers["ETag"] for path, query in asked}) == len(asked)

    @pytest.mark.parametrize(
        ("path", "query"),
        [
            ("/columns", [("run", "trial-001"), ("run", "gone"), ("name", "name")]),
            ("/columns", [("run", "trial-001"), ("name", "name"), ("name", "no such")]),
            ("/columns", [("run", "gone"), ("header", "1")]),
            ("/record", [("run", "trial-001"), ("run", "gone"), ("kind", "trial")]),
            ("/histogram", [("run", "trial-001"), ("op", "no such")]),
        ],
    )
    def test_errors_are_not_kept(self, path: str, query: Query, tab: Tab) -> None:
        reply = tab.ask(path, query)
        assert reply.status_code == 200
        assert reply.headers["Cache-Control"] == "no-store"
        assert "ETag" not in reply.headers

    @each_loader
    def test_a_run_that_was_logged_again_is_sent_again(self, loader: Any, tmp_path: Path) -> None:
        asked = [("run", "run"), ("name", "added_sqnr_db")]
        tags = []
        for value in (1.0, 2.0):
            shutil.rmtree(tmp_path / "run", ignore_errors=True)
            with inc_tb.SummaryWriter(tmp_path / "run") as writer:
                writer.add_diagnosis(by_hand(["a"], value))
            with loader(tmp_path) as found:
                tab = Tab(found.provider)
                reply = tab.ask("/columns", asked, **({"If_None_Match": tags[0]} if tags else {}))
            assert reply.status_code == 200
            contents, blobs = unpack(reply.data)
            assert numbers(contents["parts"][0], blobs) == [value]
            tags.append(reply.headers["ETag"])
        assert tags[0] != tags[1]


class TestTrouble:
    """One run that cannot be read does not hide the others."""

    @each_loader
    @pytest.mark.parametrize(
        ("spoil", "says"),
        [
            (
                lambda elements: [b'{"version":3,"kind":"ops","new":[]}', *elements[1:]],
                "has version 3, this inc-tb reads up to 2. Update inc-tb.",
            ),
            (lambda elements: [b"no JSON", *elements[1:]], "cannot be read"),
            (lambda elements: [elements[0].replace(b'"rows":2', b'"rows":3'), *elements[1:]], "is damaged"),
            (lambda elements: [elements[0], elements[1][:-1] + b"?", *elements[2:]], "is damaged"),
            (lambda elements: elements[:-1], "is damaged: elements are missing"),
            (lambda elements: [*elements, b"more"], "is damaged: elements are missing"),
            (lambda elements: [], "is empty"),
        ],
        ids=["newer", "no header", "header", "element", "missing", "more", "empty"],
    )
    def test_a_record_that_cannot_be_read(self, spoil: Any, says: str, loader: Any, tmp_path: Path) -> None:
        elements = records.encode_table(by_hand(["a", "b"]).ops, {})
        assert spoil(elements) != elements
        for run, stored in (("a", elements), ("b", spoil(elements)), ("c", elements)):
            write(tmp_path / run, "quantization/ops", stored)
        with loader(tmp_path) as found:
            tab = Tab(found.provider)
            contents, blobs = tab.contents("/columns", [*(("run", run) for run in "abc"), ("name", "name")])
            whole, _ = tab.contents("/record", [*(("run", run) for run in "abc"), ("kind", "ops")])
        for part in (contents["parts"][0], contents["parts"][2]):
            assert numbers(part, blobs) == ["a", "b"]
        for part, key in ((contents["parts"][1], "name"), (whole["parts"][1], "kind")):
            assert set(part) == {"run", key, "error"}
            assert says in part["error"]
            assert "\n" not in part["error"]
        assert ["error" in part for part in whole["parts"]] == [False, True, False]

    @each_loader
    def test_only_the_damaged_column_is_missing(self, loader: Any, tmp_path: Path) -> None:
        elements = records.encode_table(by_hand(["a", "b"]).ops, {})
        write(tmp_path / "run", "quantization/ops", [*elements[:2], b"damaged", *elements[3:]])
        with loader(tmp_path) as found:
            contents, blobs = Tab(found.provider).contents(
                "/columns", [("run", "run"), ("name", "type"), ("name", "name")]
            )
        bad, good = contents["parts"]
        assert "is damaged" in bad["error"]
        assert numbers(good, blobs) == ["a", "b"]

    @each_loader
    def test_a_bomb_is_not_sent(self, loader: Any, tmp_path: Path) -> None:
        """2 GB of zeros in 2 MB, with checksums that hold; TensorBoard itself hands out no more than 4 MB at once."""
        elements = records.encode_table(by_hand(["a", "b"]).ops, {})
        bomb = gzip_bomb(2 << 30)
        header = json.loads(elements[0])
        header["checksums"][1] = records.checksum(bomb)
        write(tmp_path / "run", "quantization/ops", [sealed(header), elements[1], bomb, *elements[3:]])
        with loader(tmp_path) as found:
            contents, blobs = Tab(found.provider).contents(
                "/columns", [("run", "run"), ("name", "type"), ("name", "name")]
            )
        bad, good = contents["parts"]
        assert "unpacks to 2,147 MB, which no log of inc-tb does" in bad["error"]
        assert numbers(good, blobs) == ["a", "b"]

    @each_loader
    @pytest.mark.parametrize("shape", [[3], [0], [-1], [2, 2]])
    def test_a_shape_that_does_not_fit(self, shape: list[int], loader: Any, tmp_path: Path) -> None:
        """TensorBoard's Python loader cannot make an array of such a value; runs beside it are not lost."""
        elements = records.encode_table(by_hand(["a", "b"]).ops, {})
        for run in "ac":
            write(tmp_path / run, "quantization/ops", elements)
        value = summaries.blobs("quantization/ops", elements)
        del value.tensor.tensor_shape.dim[:]
        for size in shape:
            value.tensor.tensor_shape.dim.add(size=size)
        file = EventFile(tmp_path / "b")
        file.write(Event(wall_time=time.time(), step=0, summary=Summary(value=[value])))
        file.close()
        with loader(tmp_path) as found:
            tab = Tab(found.provider)
            listed = json.loads(tab.ask("/runs").data)["runs"]
            contents, blobs = tab.contents("/columns", [*(("run", run) for run in "abc"), ("name", "name")])
        assert {"a", "c"} <= {run["name"] for run in listed}
        first, second, third = contents["parts"]
        assert numbers(first, blobs) == numbers(third, blobs) == ["a", "b"]
        assert "error" in second or numbers(second, blobs) == ["a", "b"]
        assert "\n" not in second.get("error", "")

    @each_loader
    def test_a_damaged_chunk(self, loader: Any, tmp_path: Path) -> None:
        elements = records.encode_rows("histograms", by_hand(["a"]).histograms)
        write(tmp_path / "run", "quantization/histograms", [elements[0], b"damaged"])
        with loader(tmp_path) as found:
            contents, blobs = Tab(found.provider).contents("/histogram", [("run", "run"), ("op", "a")])
        assert "the histograms record is damaged" in contents["parts"][0]["error"]
        assert blobs == []

    @each_loader
    def test_a_torn_last_record(self, loader: Any, diagnosis: inc_tb.Diagnosis, tmp_path: Path) -> None:
        with inc_tb.SummaryWriter(tmp_path / "run") as writer:
            writer.add_diagnosis(diagnosis)
            (path,) = event_files(tmp_path / "run")
            size = path.stat().st_size
            writer.add_diagnosis(diagnosis)
        path.write_bytes(path.read_bytes()[: size + 5000])
        with loader(tmp_path) as found:
            tab = Tab(found.provider)
            assert json.loads(tab.ask("/runs").data)["runs"][0]["kinds"]["ops"]["steps"] == [0]
            contents, blobs = tab.contents("/columns", [("run", "run"), ("name", "name")])
        assert contents["parts"][0]["step"] == 0
        assert numbers(contents["parts"][0], blobs) == OPS

    def test_a_run_that_goes_away_while_it_is_read(self, tmp_path: Path) -> None:
        for run in ("a", "b"):
            write(tmp_path / run, "quantization/ops", records.encode_table(by_hand([run]).ops, {}))
        with LOADERS["python"](tmp_path) as found:
            reader = source.RecordSource(found.provider)
            places = reader.find({}, "ops", ["a", "b"], None)
            opened = reader.open({}, places)
            shutil.rmtree(tmp_path / "a")
            found.provider._multiplexer.Reload()
            wanted = {run: source.Element(record, 1) for run, record in opened.items()}  # type: ignore[arg-type]
            elements = reader.elements({}, wanted)
            fresh = source.RecordSource(found.provider).open({}, places)
        gone = source.Trouble("run a is no longer there; its folder was deleted or renamed. Reload the page.")
        assert elements["a"] == fresh["a"] == gone
        assert isinstance(elements["b"], tuple)
        assert isinstance(fresh["b"], source.Record)

    def test_a_data_server_that_is_gone(self) -> None:
        with grpc.insecure_channel("localhost:1") as channel:
            tab = Tab(GrpcDataProvider("localhost:1", make_stub(channel)))
            reply = tab.ask("/runs")
            assert reply.status_code == 503
            assert reply.text.startswith("TensorBoard's data cannot be read (")
            contents, _ = tab.contents("/columns", [("run", "a"), ("run", "b"), ("name", "name")])
        for part, run in zip(contents["parts"], "ab", strict=True):
            assert part["error"].startswith(f"run {run} could not be read (")
            assert "\n" not in part["error"]

    @each_loader
    def test_headers_are_kept_only_up_to_a_size(
        self, loader: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for run in "abc":
            write(tmp_path / run, "quantization/ops", elements := records.encode_table(by_hand(["x"]).ops, {}))
        monkeypatch.setattr(source, "KEPT_HEADER_BYTES", 2 * len(elements[0]))
        with loader(tmp_path) as found:
            tab = Tab(found.provider)
            read = []
            for run in "ababca":  # c takes the place of a
                before = len(tab.provider.blobs)
                tab.ask("/columns", [("run", run), ("header", 1)])
                read.append(len(tab.provider.blobs) - before)
        assert read == [1, 1, 0, 0, 1, 1]

    @each_loader
    def test_with_a_stamp_the_records_of_a_run_are_looked_for_once(self, loader: Any, tmp_path: Path) -> None:
        """The page gives a run that was written again a new stamp."""
        write(tmp_path / "a", "quantization/ops", records.encode_table(by_hand(["x"]).ops, {}))
        with loader(tmp_path) as found:
            tab = Tab(found.provider)
            asked = []
            for stamp, step in (("1", ""), ("1", ""), ("2", ""), ("1", 0), ("1", 0), ("", ""), ("", "")):
                before = len(tab.provider.sequences)
                query = [("run", "a"), ("name", "name"), ("stamp", stamp), *([("step", step)] if step != "" else [])]
                contents, _ = tab.contents("/columns", query)
                assert contents["parts"][0]["rows"] == 1
                asked.append(len(tab.provider.sequences) - before)
        assert asked == [1, 0, 1, 1, 0, 1, 1]


class TestBadRequests:
    @pytest.mark.parametrize(
        ("path", "query", "says"),
        [
            ("/columns", [("name", "name")], "no run was given; expected at least one run=…."),
            (
                "/columns", [("run", "a")],
                "no name was given; expected the name of a column, such as name=added_sqnr_db.",
            ),
            ("/columns", [("run", "a"), ("header", "yes")], "header=yes was given; expected 0 or 1."),
            ("/record", [("kind", "trial")], "no run was given; expected at least one run=…."),
            ("/record", [("run", "a")], "no kind parameters were given; expected one kind=…."),
            (
                "/record", [("run", "a"), ("kind", "cat")],
                "kind=cat was given; expected one of ops, histograms, channels, suggestions, graph, trial, profile, "
                "tokens, samples, previews.",
            ),
            ("/histogram", [("run", "a")], "no op parameters were given; expected one op=…."),
            ("/histogram", [("op", "a")], "no run parameters were given; expected one run=…."),
            ("/channels", [("run", ""), ("run", ""), ("op", "")], "2 run parameters were given; expected one run=…."),
        ],
    )  # fmt: skip
    def test_say_what_was_expected(self, path: str, query: Query, says: str, tab: Tab) -> None:
        reply = tab.ask(path, query)
        assert reply.status_code == 400
        assert reply.text == says + "\n"
        assert reply.headers["Cache-Control"] == "no-store"
        assert reply.content_type == "text/plain; charset=utf-8"

    @pytest.mark.parametrize("step", ["", "x", "-1", "1.5", "٣", "9" * 5000])
    @pytest.mark.parametrize(("path", "query"), ROUTES)
    def test_steps(self, path: str, query: Query, step: str, tab: Tab) -> None:
        reply = tab.ask(path, [*query, ("step", step)])
        assert reply.status_code == 400
        assert reply.text.startswith(f"step={step} was given; expected a whole number from 0 on")

    def test_a_step_beyond_all(self, tab: Tab) -> None:
        reply = tab.ask("/columns", [("run", "trial-001"), ("name", "name"), ("step", 10**19 - 1)])
        assert reply.status_code == 200
        assert "at step 9999999999999999999; its last steps are 0, 3." in unpack(reply.data)[0]["parts"][0]["error"]

    @pytest.mark.parametrize("path", ["/runs", "/columns", "/static/index.js"])
    def test_only_get(self, path: str, tab: Tab) -> None:
        reply = tab.ask(path, method="POST")
        assert (reply.status_code, reply.text) == (405, "POST was given; expected GET.\n")
        assert reply.headers["Allow"] == "GET, HEAD"


class TestStatic:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        folder = tmp_path / "static"
        (folder / "fonts").mkdir(parents=True)
        (folder / "index.js").write_text("export function render() {} // é\n" * 100)
        for name in ("index.css", "index.js.map", "icon.svg", "fonts/a.woff2", "odd.html", "naïve name.js"):
            (folder / name).write_bytes(b"x")
        (tmp_path / "secret.js").write_text("secret")
        (tmp_path / "static-too").mkdir()
        (tmp_path / "static-too" / "x.js").write_text("secret")
        (folder / "link.js").symlink_to(tmp_path / "secret.js")
        (folder / "loop.js").symlink_to(folder / "loop.js")
        return folder

    @pytest.fixture
    def page(self, folder: Path) -> Tab:
        return Tab(None, static=folder)

    @pytest.mark.parametrize(
        ("name", "content_type"),
        [
            ("index.js", "text/javascript; charset=utf-8"),
            ("index.css", "text/css; charset=utf-8"),
            ("index.js.map", "application/json"),
            ("icon.svg", "image/svg+xml"),
            ("fonts/a.woff2", "font/woff2"),
            ("odd.html", "application/octet-stream"),
            ("naïve name.js", "text/javascript; charset=utf-8"),
        ],
    )
    def test_files(self, name: str, content_type: str, page: Tab, folder: Path) -> None:
        reply = page.ask(f"/static/{quote(name)}")
        assert (reply.status_code, reply.content_type) == (200, content_type)
        assert reply.data == (folder / name).read_bytes()
        assert reply.headers["X-Content-Type-Options"] == "nosniff"

    @pytest.mark.parametrize(
        "name",
        [
            "../secret.js", "..%2fsecret.js", "%2e%2e/secret.js", "fonts/../../secret.js", "../static-too/x.js",
            "link.js", "loop.js", "/etc/passwd", "//etc/passwd", "..\\secret.js", "%00", "index.js%00.css",
            "", ".", "fonts", "fonts/", "missing.js", "x" * 5000, "%ff", "index.js/",  "index.js/x",
        ],
    )  # fmt: skip
    def test_nothing_else(self, name: str, page: Tab) -> None:
        reply = page.ask(f"/static/{name}")
        assert b"secret" not in reply.data.replace(b"secret.js", b"")  # an answer may repeat the name
        assert b"root:" not in reply.data
        if name == "index.js/":
            return  # the same file in other words
        assert reply.status_code == 404
        assert reply.text.startswith("There is no file ")

    def test_a_page_that_was_not_built(self, tmp_path: Path) -> None:
        for folder in (tmp_path, tmp_path / "missing"):
            reply = Tab(None, static=folder).ask("/static/index.js")
            assert reply.headers["Content-Type"] == "text/javascript; charset=utf-8"
            assert reply.headers["Cache-Control"] == "no-store"
            told = '"The page of the Quantization tab was not built. Install inc-tb again: pip install . in'
            assert reply.text.startswith(f"export const render = () => document.body.append({told}")

    def test_gzip(self, page: Tab, folder: Path) -> None:
        reply = page.ask("/static/index.js", Accept_Encoding="deflate, gzip")
        assert reply.headers["Content-Encoding"] == "gzip"
        assert reply.headers["Vary"] == "Accept-Encoding"
        assert gzip.decompress(reply.data) == (folder / "index.js").read_bytes()
        for wish in ("", "br", "gzip;q=0"):
            plainly = page.ask("/static/index.js", Accept_Encoding=wish)
            assert "Content-Encoding" not in plainly.headers
            assert plainly.headers["Vary"] == "Accept-Encoding"
        assert "Content-Encoding" not in page.ask("/static/fonts/a.woff2", Accept_Encoding="gzip").headers

    def test_is_sent_again_only_when_it_changed(self, page: Tab, folder: Path) -> None:
        reply = page.ask("/static/index.js")
        assert reply.headers["Cache-Control"] == "no-cache"
        for encoding in ("gzip", ""):
            again = page.ask("/static/index.js", If_None_Match=reply.headers["ETag"], Accept_Encoding=encoding)
            assert (again.status_code, again.data) == (304, b"")
        (folder / "index.js").write_text("// new")
        again = page.ask("/static/index.js", If_None_Match=reply.headers["ETag"])
        assert (again.status_code, again.data) == (200, b"// new")
        (folder / "index.js").unlink()
        assert page.ask("/static/index.js").text.startswith("export const render")


class Http:
    """The plugin's routes of a running TensorBoard."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.url = f"{server.url}data/plugin/quantization"

    def ask(self, path: str, query: Query = (), **headers: str) -> tuple[int, Any, bytes]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            with urlopen(Request(f"{self.url}{path}?{urlencode(query)}", headers=named), timeout=PATIENCE_S) as reply:
                return reply.status, reply.headers, reply.read()
        except HTTPError as error:
            with error:
                return error.code, error.headers, error.read()

    def contents(self, path: str, query: Query) -> tuple[dict[str, Any], list[bytes]]:
        status, _, body = self.ask(path, query)
        assert status == 200, body
        return unpack(body)

    def kinds(self) -> dict[str, dict[str, Any]]:
        return {run["name"]: run["kinds"] for run in json.loads(self.ask("/runs")[2])["runs"]}


@pytest.fixture(scope="module", params=LOAD_FAST)
def http(request: pytest.FixtureRequest, logdir: Path) -> Iterator[Http]:
    with serve(logdir, f"--load_fast={request.param}") as server:
        found = Http(server)
        until(lambda: {run for run, kinds in found.kinds().items() if "trial" in kinds} == {"trial-001", "trial-002"})
        yield found


class TestServer:
    def test_the_tab_is_there(self, http: Http) -> None:
        about = http.server.get("plugins_listing")["quantization"]
        assert about["enabled"]
        assert about["tab_name"] == "Quantization"
        module = about["loading_mechanism"]["module_path"]
        assert module.endswith("/static/index.js")
        assert '"./static/index.js"' in http.server.text("plugin_entry.html", name="quantization")

    def test_columns(self, http: Http, logdir: Path) -> None:
        contents, blobs = http.contents("/columns", [("run", "trial-001"), ("run", "trial-002"), ("name", "a_sqnr_db")])
        expected = [row["a_sqnr_db"] for row in inc_tb.load(logdir / "trial-001").ops.rows()]
        assert [numbers(part, blobs) for part in contents["parts"]] == [expected, expected]
        assert len(blobs) == 1

    def test_record_histogram_and_channels(self, http: Http) -> None:
        contents, blobs = http.contents("/record", [("run", "trial-002"), ("kind", "trial")])
        assert rows(contents["parts"][0], blobs) == [plain(make_trial("trial-002", 0.9))]
        for path in ("/histogram", "/channels"):
            contents, blobs = http.contents(path, [("run", "trial-001"), ("op", "/conv1/Conv")])
            assert "/conv1/Conv" in [row["op"] for row in json.loads(gzip.decompress(blobs[0]))]

    def test_what_the_browser_has(self, http: Http) -> None:
        for path, query in [("/runs", []), *ROUTES]:
            status, headers, _ = http.ask(path, query)
            assert status == 200
            status, headers, body = http.ask(path, query, If_None_Match=headers["ETag"])
            assert (status, body) == (304, b"")
            assert headers["Content-Type"]

    def test_bad_requests_and_files_that_are_not_there(self, http: Http) -> None:
        status, _, body = http.ask("/columns", [("run", "a")])
        assert (status, body[:17]) == (400, b"no name was given")
        for name in ("../plugin.py", "..%2fplugin.py", "%2e%2e/loader.py", "/etc/passwd", "missing.js"):
            status, _, body = http.ask(f"/static/{name}")
            assert status == 404
            assert b"import" not in body

    def test_no_complaints(self, http: Http) -> None:
        """TensorBoard warns about answers without a content type, among others."""
        said = "".join(http.server.said)
        assert "Traceback" not in said
        assert "this warning will become an error" not in said


@pytest.mark.parametrize("fast", LOAD_FAST)
def test_runs_come_grow_and_go(fast: str, diagnosis: inc_tb.Diagnosis, tmp_path: Path) -> None:
    for run in ("first", "growing"):
        with inc_tb.SummaryWriter(tmp_path / run) as writer:
            writer.add_diagnosis(diagnosis)
            (path,) = event_files(tmp_path / run)
            size = path.stat().st_size
            writer.add_diagnosis(diagnosis)
    whole = path.read_bytes()
    path.write_bytes(whole[: size + 5000])  # of "growing": in the middle of its second diagnosis
    with serve(tmp_path, f"--load_fast={fast}", "--reload_interval=1") as server:
        http = Http(server)

        def steps(run: str) -> Any:
            return http.kinds().get(run, {}).get("ops", {}).get("steps")

        until(lambda: steps("first") == [0, 1] and steps("growing") == [0])
        asked = [("run", "first"), ("run", "growing"), ("name", "name")]
        _, headers, body = http.ask("/columns", asked)
        assert [part["step"] for part in unpack(body)[0]["parts"]] == [1, 0]
        tags = {"runs": http.ask("/runs")[1]["ETag"], "columns": headers["ETag"]}

        with path.open("ab") as file:
            file.write(whole[size + 5000 :])
        until(lambda: steps("growing") == [0, 1])
        assert http.ask("/runs", If_None_Match=tags["runs"])[0] == 200
        status, _, body = http.ask("/columns", asked, If_None_Match=tags["columns"])
        assert status == 200
        assert [part["step"] for part in unpack(body)[0]["parts"]] == [1, 1]

        with inc_tb.SummaryWriter(tmp_path / "new") as writer:
            writer.add_trial(make_trial("new"))
        until(lambda: "trial" in http.kinds().get("new", {}))
        contents, blobs = http.contents("/record", [("run", "new"), ("kind", "trial")])
        assert rows(contents["parts"][0], blobs) == [plain(make_trial("new"))]

        shutil.rmtree(tmp_path / "first")
        until(lambda: "first" not in http.kinds())
        contents, blobs = http.contents("/columns", asked)
        gone, there = contents["parts"]
        text = "run first is no longer there; its folder was deleted or renamed. Reload the page."
        assert gone == {"run": "first", "name": "name", "error": text}
        assert numbers(there, blobs) == OPS


@pytest.mark.parametrize("fast", LOAD_FAST)
def test_under_a_path_prefix(fast: str, logdir: Path) -> None:
    with serve(logdir, f"--load_fast={fast}", "--path_prefix=/lab/tb") as server:
        http = Http(server)
        assert "/lab/tb/data/plugin/quantization" in http.url
        until(lambda: "ops" in http.kinds().get("trial-002", {}))
        contents, blobs = http.contents("/columns", [("run", "trial-002"), ("name", "name")])
        assert numbers(contents["parts"][0], blobs) == OPS
        assert http.ask("/static/no such file".replace(" ", "%20"))[0] == 404


def test_with_a_logdir_spec(logdir: Path) -> None:
    with serve(None, f"--logdir_spec=one:{logdir / 'trial-001'},two:{logdir}") as server:
        http = Http(server)
        expected = {"one/.", "two/trial-001", "two/trial-002"}
        until(lambda: {run for run, kinds in http.kinds().items() if "trial" in kinds} == expected)
        runs = [("run", "one/."), ("run", "two/trial-002")]
        contents, blobs = http.contents("/columns", [*runs, ("name", "name")])
        assert [numbers(part, blobs) for part in contents["parts"]] == [OPS, OPS]
        contents, blobs = http.contents("/record", [*runs, ("kind", "trial")])
        assert [rows(part, blobs)[0]["name"] for part in contents["parts"]] == ["trial-001", "trial-002"]


def test_the_loader_makes_the_plugin() -> None:
    plugin = QuantizationLoader().load(TBContext())
    assert isinstance(plugin, QuantizationPlugin)
    assert plugin.plugin_name == "quantization"
    assert not plugin.is_active()
    assert plugin.frontend_metadata().es_module_path == "/static/index.js"


def test_importing_loads_no_framework() -> None:
    names = ("torch", "tensorflow", "onnx", "onnxruntime", "mxnet", "pandas", "sklearn", "tensorboardX")
    code = f"import sys, tb_plugin.plugin; print([m for m in {names!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
