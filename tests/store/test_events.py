"""Event files: both of TensorBoard's loaders read what we write, and nothing is lost to a kill or a cut."""

from __future__ import annotations

import json
import math
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.summary_pb2 import Summary

import inc_tb
from inc_tb import records
from inc_tb.commands.runs import run_folder
from inc_tb.errors import DataError, RecordError, UsageError
from inc_tb.records import Column, HistogramRow, OpTable, ProfileRow
from inc_tb.sources.source import storable
from inc_tb.store import dashboards, summaries
from inc_tb.store.encoded import diagnosis_records
from inc_tb.store.eventfile import EventFile, event_files, read_events
from tests.example_run import OPS, make_diagnosis, make_trial
from tests.made_runs import make_diagnosis as make_large
from tests.tensorboards import LOADERS, Contents, serve

RECORDS = {f"quantization/{kind}" for kind in ("ops", "histograms", "channels", "suggestions", "graph", "samples")}
HPARAMS = {f"_hparams_/{name}" for name in ("session_start_info", "session_end_info", "experiment")}
each_loader = pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)


@pytest.fixture(scope="module")
def diagnosis(tmp_path_factory: pytest.TempPathFactory) -> inc_tb.Diagnosis:
    return make_diagnosis(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def logdir(diagnosis: inc_tb.Diagnosis, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trials, of which the first has two diagnoses."""
    folder = tmp_path_factory.mktemp("logdir")
    for name, steps in (("trial-001", [0, 5]), ("trial-002", [0])):
        with inc_tb.SummaryWriter(folder / name) as writer:
            for step in steps:
                writer.add_diagnosis(diagnosis, step)
            writer.add_trial(make_trial(name))
    return folder


def stored(values: list[Summary.Value]) -> dict[str, list[bytes]]:
    return {value.tag: list(value.tensor.string_val) for value in values}


def made_by_hand(ops: list[str], worst: str = "", reference: str = "fp32.onnx") -> inc_tb.Diagnosis:
    """As much of a diagnosis as the dashboards need; `worst` is the op that adds the most noise."""
    columns = [
        Column("name", type="text", label="op"), Column("type", type="text"), Column("verdict", type="text"),
        *(Column(f"{which}_sqnr_db", better="higher") for which in ("added", "arrived", "total")),
    ]  # fmt: skip
    rows = [
        {"name": op, "type": "Conv", "verdict": "ok", "added_sqnr_db": 3.0 if op == worst else 30.0,
         "arrived_sqnr_db": "nothing", "total_sqnr_db": 20.0}
        for op in ops
    ]  # fmt: skip
    histograms = [HistogramRow(op, "output", 130, [512, 4, 600, 2], [512, 6], 120, []) for op in ops]
    return inc_tb.Diagnosis(OpTable.from_rows(columns, rows), histograms=histograms, reference=reference)


@pytest.fixture(scope="class", params=LOADERS)
def contents(request: pytest.FixtureRequest, logdir: Path) -> Iterator[Contents]:
    with LOADERS[request.param](logdir) as found:
        yield found


class TestBothLoaders:
    def test_runs(self, contents: Contents) -> None:
        assert contents.runs() == ["fp32", "trial-001", "trial-002"]

    def test_records_byte_for_byte(self, contents: Contents, diagnosis: inc_tb.Diagnosis) -> None:
        expected = stored(diagnosis_records(diagnosis))
        assert set(expected) == RECORDS
        found = contents.blobs()
        assert set(found) == {"trial-001", "trial-002"}
        assert set(found["trial-001"]) == RECORDS | {"quantization/trial"}
        for tag, elements in expected.items():
            assert found["trial-001"][tag] == {0: elements, 5: elements}
            assert found["trial-002"][tag] == {0: elements}

    def test_scalars(self, contents: Contents, diagnosis: inc_tb.Diagnosis) -> None:
        found = contents.scalars()["trial-001"]
        added = dict(zip(diagnosis.ops["name"], diagnosis.ops["added_sqnr_db"], strict=True))
        assert found["added_sqnr_db/conv2/Conv"] == {
            0: np.float32(added["/conv2/Conv"]),
            5: np.float32(added["/conv2/Conv"]),
        }
        for tag, column, op in (("activation_mse", "a_mse", "conv2/Conv"), ("weight_mse", "w_mse", "fc/Gemm")):
            mse = dict(zip(diagnosis.ops["name"], diagnosis.ops[column], strict=True))
            assert found[f"{tag}/{op}"] == dict.fromkeys((0, 5), np.float32(mse[f"/{op}"]))
            told = contents.descriptions()["trial-001"][f"{tag}/{op}"]
            assert told == diagnosis.ops.column(column).help
        assert found["ops/bad"][5] == diagnosis.ops["verdict"].tolist().count("bad")
        assert found["trial/accuracy"] == {0: np.float32(0.91)}
        assert found["trial/accuracy_drop"] == {0: np.float32(0.97 - 0.91)}
        assert found["trial/latency_ms"] == {0: 1.25}
        assert found["trial/fallback_ops"] == {0: 1}

    def test_histograms_of_both_sides_under_one_tag(self, contents: Contents, diagnosis: inc_tb.Diagnosis) -> None:
        row = next(row for row in diagnosis.histograms if row.op == "/conv1/Conv" and row.role == "output")
        found = contents.tensors("histograms")
        for run, side, counts in (("fp32", "reference", row.reference), ("trial-001", "quantized", row.quantized)):
            buckets = found[run]["activations/conv1/Conv"][0]
            assert np.array_equal(buckets, dashboards.buckets(row, side))
            assert buckets[:, 2].sum() == sum(counts[1::2])
        assert set(found["fp32"]) == set(found["trial-001"])

    def test_text(self, contents: Contents) -> None:
        found = contents.tensors("text")
        assert found["trial-001"]["diagnosis"][5][0].decode().startswith("`int8.onnx` against `fp32.onnx`, 16 samples")
        assert b"`fp32.onnx`" in found["fp32"]["reference"][0][0]

    def test_graph_and_run_metadata(self, contents: Contents) -> None:
        (graph,) = contents.blobs("graphs")["trial-001"]["__run_graph__"].values()
        assert [node.name for node in GraphDef.FromString(graph[0]).node] == [name.lstrip("/") for name in OPS]
        assert contents.tags("blob_sequences", "graph_tagged_run_metadata")["trial-001"] == {
            "noise at step 0 (1 µs = 1 ppm)", "noise at step 5 (1 µs = 1 ppm)",
        }  # fmt: skip

    def test_hparams(self, contents: Contents) -> None:
        assert contents.tags("tensors", "hparams") == {"trial-001": HPARAMS, "trial-002": HPARAMS}


@pytest.fixture(scope="class", params=["true", "false"] if "fast" in LOADERS else ["false"])
def server(request: pytest.FixtureRequest, logdir: Path, entry_point: Path) -> Iterator[Any]:
    path = os.pathsep.join([str(entry_point), str(Path(inc_tb.__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": path}
    with serve(logdir, f"--load_fast={request.param}", environment=environment) as found:
        found.wait_for_trials(2)
        yield found


@pytest.fixture(scope="module")
def entry_point(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that makes the package look installed, so that TensorBoard finds and uses our loader."""
    folder = tmp_path_factory.mktemp("installed")
    info = folder / "inc_tb-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: inc-tb\nVersion: 0.1.0\n")
    entry = "[tensorboard_plugins]\nquantization = tb_plugin.loader:QuantizationLoader\n"
    (info / "entry_points.txt").write_text(entry)
    return folder


def test_an_update_has_a_new_table_and_keeps_the_rest(tmp_path: Path) -> None:
    found = make_diagnosis(tmp_path)
    ranks = [str(i) for i in range(found.ops.count)]
    later = replace(found, ops=found.ops.replaced({"sensitivity_rank": ranks}), suggestions=[])
    with inc_tb.SummaryWriter(tmp_path / "run") as writer:
        writer.add_diagnosis(found)
        writer.update_diagnosis(later)
    run = inc_tb.load(tmp_path / "run")
    assert list(run.diagnoses) == [0, 1]
    assert run.ops["sensitivity_rank"].tolist() == ranks
    assert run.suggestions == []
    assert run.diagnoses[0].suggestions == found.suggestions != []
    assert run.diagnosis.histograms == run.diagnoses[0].histograms != []
    assert run.diagnosis.graph == found.graph


def test_an_update_encodes_nothing_that_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = make_diagnosis(tmp_path)
    encoded: list[str] = []

    def encode(kind: records.RowKind, *given: Any) -> list[bytes]:
        encoded.append(kind)
        return encode_rows(kind, *given)

    encode_rows = records.encode_rows
    with inc_tb.SummaryWriter(tmp_path / "run") as writer:
        writer.add_diagnosis(found)
        monkeypatch.setattr(records, "encode_rows", encode)
        writer.update_diagnosis(found)
    assert encoded == ["suggestions"]


def test_tensorboard_finds_and_takes_our_loader(entry_point: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(entry_point)!r})\n"
        "from tensorboard import default\n"
        "from tensorboard.backend.application import make_plugin_loader\n"
        "print([type(make_plugin_loader(found)).__name__ for found in default.get_dynamic_plugins()])"
    )
    assert "QuantizationLoader" in python(code).stdout


class TestServer:
    """What a person's TensorBoard answers, with our entry point installed."""

    def test_starts_without_complaint(self, server: Any) -> None:
        said = "".join(server.said)
        assert "Traceback" not in said
        assert "more than one" not in said  # graph or run metadata of one name

    def test_runs_and_plugins(self, server: Any) -> None:
        assert sorted(server.get("runs")) == ["fp32", "trial-001", "trial-002"]
        listing = server.get("plugins_listing")
        for plugin in ("timeseries", "scalars", "histograms", "distributions", "graphs", "text", "hparams"):
            assert listing[plugin]["enabled"], plugin

    def test_scalars(self, server: Any) -> None:
        assert "added_sqnr_db/conv2/Conv" in server.get("plugin/scalars/tags")["trial-001"]
        (point,) = server.get("plugin/scalars/scalars", run="trial-002", tag="trial/accuracy")
        assert point[1:] == [0, pytest.approx(0.91)]

    def test_histograms(self, server: Any) -> None:
        tags = server.get("plugin/histograms/tags")
        assert set(tags["fp32"]) == set(tags["trial-001"]) >= {"activations/conv1/Conv", "weights/conv1/Conv"}
        (found,) = server.get("plugin/histograms/histograms", run="fp32", tag="weights/conv1/Conv")
        assert sum(bucket[2] for bucket in found[2]) == 4 * 2 * 3 * 3

    def test_text(self, server: Any) -> None:
        assert "diagnosis" in server.get("plugin/text/tags")["trial-001"]
        html = server.get("plugin/text/text", run="trial-001", tag="diagnosis", markdown="true")[-1]["text"]
        assert "<td><code>/conv2/Conv</code></td>" in html
        assert "<h4>1. outlier_channels</h4>" in html
        assert "nodes_to_exclude" in html

    def test_graph(self, server: Any) -> None:
        info = server.get("plugin/graphs/info")["trial-001"]
        assert info["run_graph"]
        assert info["tags"]["noise at step 5 (1 µs = 1 ppm)"]["profile"]
        assert 'name: "conv2/Conv"' in server.text("plugin/graphs/graph", run="trial-001")
        stats = server.text("plugin/graphs/run_metadata", run="trial-001", tag="noise at step 5 (1 µs = 1 ppm)")
        assert 'node_name: "conv2/Conv"' in stats

    def test_hparams(self, server: Any) -> None:
        experiment = server.post("plugin/hparams/experiment", experimentName="")
        assert {h["name"] for h in experiment["hparamInfos"]} == {"calibration", "per_channel", "samples", "fallback"}
        metrics = [m["name"]["tag"] for m in experiment["metricInfos"]]
        assert metrics[0] == "trial/accuracy"
        assert not [tag for tag in metrics if not tag.startswith("trial/")]  # no column for every op
        groups = server.trials()
        assert {group["name"] for group in groups} == {"trial-001", "trial-002"}
        (session,) = groups[0]["sessions"]
        assert session["status"] == "STATUS_SUCCESS"
        assert session["endTimeSecs"] - session["startTimeSecs"] == pytest.approx(3.5)
        assert groups[0]["hparams"]["fallback"] == "/conv1/Conv"


def test_trials_of_one_name_in_two_folders_are_two_in_hparams(tmp_path: Path) -> None:
    """As of two tunings, or of two workspaces that were imported."""
    for folder, accuracy in (("a", 0.25), ("b", 0.75)):
        with inc_tb.SummaryWriter(tmp_path / folder / "trial-001") as writer:
            writer.add_trial(make_trial(accuracy=accuracy))
    with serve(tmp_path) as server:
        server.wait_for_trials(2)
        found = {group["name"]: group["metricValues"][0]["value"] for group in server.trials()}
    assert found == {"a/trial-001": 0.25, "b/trial-001": 0.75}


def boundaries(path: Path) -> list[int]:
    """Where the records of an event file end, by the documented framing: length, checksum, data, checksum."""
    data, ends = path.read_bytes(), [0]
    while ends[-1] < len(data):
        (length,) = struct.unpack_from("<Q", data, ends[-1])
        ends.append(ends[-1] + 8 + 4 + length + 4)
    return ends


@pytest.fixture(scope="module")
def cuts(logdir: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[Event]]]:
    """One run for each place where a file may end: run -> the events that are whole there."""
    (original,) = event_files(logdir / "trial-001")
    data, ends, events = original.read_bytes(), boundaries(original), list(read_events(original))
    assert len(events) == len(ends) - 1
    places = {place for end in ends for place in (end - 1, end, end + 1, end + 8, end + 12)}
    places |= set(random.Random(3).sample(range(len(data)), 25))
    folder = tmp_path_factory.mktemp("cuts")
    found = {}
    for place in sorted(p for p in places if 0 <= p <= len(data)):
        run = folder / f"cut-{place:07d}"
        run.mkdir()
        (run / original.name).write_bytes(data[:place])
        found[run.name] = [event for event, end in zip(events, ends[1:], strict=True) if end <= place]
    return folder, found


class TestCutFile:
    def test_ours(self, cuts: tuple[Path, dict[str, list[Event]]]) -> None:
        folder, whole = cuts
        loaded = 0
        for run, events in whole.items():
            tags = [(event.step, value.tag) for event in events for value in event.summary.value]
            if not any(tag.startswith("quantization/") for _, tag in tags):
                with pytest.raises(RecordError, match="hold no quantization records"):
                    inc_tb.load(folder / run)
                continue
            found = inc_tb.load(folder / run)
            assert list(found.diagnoses) == [step for step, tag in tags if tag == "quantization/ops"]
            assert list(found.trials) == [step for step, tag in tags if tag == "quantization/trial"]
            assert found.ops["name"].tolist() == OPS
            loaded += 1
        assert loaded > 30

    @each_loader
    def test_tensorboards(self, loader: Any, cuts: tuple[Path, dict[str, list[Event]]]) -> None:
        folder, whole = cuts
        with loader(folder) as contents:
            found: dict[str, set[tuple[str, int]]] = {run: set() for run in whole}
            for by_run in (
                contents.blobs(fetch=False), contents.scalars(),
                contents.tensors("histograms"), contents.tensors("text"),
            ):  # fmt: skip
                for run, tags in by_run.items():
                    found[run] |= {(tag, step) for tag, points in tags.items() for step in points}
            graphs = set(contents.tags("blob_sequences", "graphs"))
        for run, events in whole.items():
            values = [(event.step, value) for event in events for value in event.summary.value]
            assert found[run] == {
                (v.tag, step) for step, v in values if v.metadata.plugin_data.plugin_name != "hparams"
            }
            assert (run in graphs) == any(event.graph_def for event in events)

    def test_at_every_byte(self, tmp_path: Path) -> None:
        run = tmp_path / "run"
        with inc_tb.SummaryWriter(run) as writer:
            writer.add_trial(inc_tb.Trial("t", 0.5))
        (path,) = event_files(run)
        data, ends = path.read_bytes(), boundaries(path)
        for place in range(len(data)):
            path.write_bytes(data[:place])
            assert len(list(read_events(path))) == sum(end <= place for end in ends[1:])

    def test_a_flipped_byte_ends_the_file_there(self, logdir: Path, tmp_path: Path) -> None:
        (original,) = event_files(logdir / "trial-001")
        data, ends = original.read_bytes(), boundaries(original)
        path = tmp_path / original.name
        for place in (ends[1] + 5, ends[1] + 10, ends[1] + 100, ends[2] - 1):
            damaged = bytearray(data)
            damaged[place] ^= 0x40
            path.write_bytes(damaged)
            assert len(list(read_events(path))) == 1

    @each_loader
    def test_a_flipped_byte_that_a_loader_lets_through_is_noticed(
        self, loader: Any, logdir: Path, diagnosis: inc_tb.Diagnosis, tmp_path: Path
    ) -> None:
        """TensorBoard's fast loader does not look at the checksum of an event that it can parse."""
        (original,) = event_files(logdir / "trial-001")
        data, column = original.read_bytes(), stored(diagnosis_records(diagnosis))["quantization/ops"][20]
        place = data.index(column) + len(column) // 2
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / original.name).write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with loader(tmp_path) as contents:
            let_through = contents.blobs().get("run", {}).get("quantization/ops", {})
        if loader is LOADERS.get("fast"):
            assert list(let_through) == [0, 5]
        for step, blobs in let_through.items():
            if step == 0:
                with pytest.raises(RecordError, match="is damaged: its checksums do not fit"):
                    records.decode_table(blobs)
            else:
                assert records.decode_table(blobs)[0]["name"].tolist() == OPS

    def test_a_foreign_event_that_is_no_utf8_is_skipped(self, tmp_path: Path) -> None:
        tagged = Event(summary=Summary(value=[Summary.Value(tag="AB")])).SerializeToString().replace(b"AB", b"\xff\xfe")
        with inc_tb.SummaryWriter(tmp_path) as writer:
            writer.add_trial(inc_tb.Trial("before"))
        (path,) = event_files(tmp_path)
        path.write_bytes(path.read_bytes() + framed(tagged) + framed(path.read_bytes()[12 : boundaries(path)[1] - 4]))
        assert [event.file_version for event in read_events(path)][-1] == "brain.Event:2"
        assert len(list(read_events(path))) == len(boundaries(path)) - 2
        assert inc_tb.load(tmp_path).trial == inc_tb.Trial("before")


def framed(data: bytes) -> bytes:
    """A record as documented, made without the code under test."""

    def masked(part: bytes) -> bytes:
        crc = google_crc32c.value(part)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


WRITE_AND_DIE = """
import os, signal, sys, inc_tb
with inc_tb.SummaryWriter(sys.argv[2], whole=True) as writer:
    writer.add_diagnosis(inc_tb.load(sys.argv[1]).diagnosis)
    os.kill(os.getpid(), signal.SIGKILL)
"""
WRITE_FOR_EVER = """
import sys, inc_tb
found = inc_tb.load(sys.argv[1]).diagnosis
writer = inc_tb.SummaryWriter(sys.argv[2])
while True:
    writer.add_diagnosis(found)
    print("done", flush=True)
"""


def python(code: str, *arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(Path(inc_tb.__file__).parents[1]), "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run(command, check=True, text=True, capture_output=True, env=environment, **options)


def test_numbers_of_a_trial_may_be_of_another_library(tmp_path: Path) -> None:
    number: Any = Fraction(1, 2)
    with inc_tb.SummaryWriter(tmp_path) as writer:
        writer.add_trial(inc_tb.Trial("a", number, number, objectives={"ms": number}, target=number, wall_s=number))
    assert inc_tb.load(tmp_path).trial == inc_tb.Trial("a", 0.5, 0.5, objectives={"ms": 0.5}, target=0.5, wall_s=0.5)


class TestInterrupted:
    def test_killed_while_writing(self, logdir: Path, diagnosis: inc_tb.Diagnosis, tmp_path: Path) -> None:
        run = tmp_path / "killed"
        command = [sys.executable, "-c", WRITE_FOR_EVER, logdir / "trial-001", run]
        environment = {**os.environ, "PYTHONPATH": str(Path(inc_tb.__file__).parents[1])}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            for _ in range(3):
                assert process.stdout.readline() == "done\n"
            process.send_signal(signal.SIGKILL)
            done = 3 + process.stdout.read().count("done")
        assert process.returncode == -signal.SIGKILL
        found = inc_tb.load(run)
        assert list(found.diagnoses) in (list(range(done)), list(range(done + 1)))
        expected = stored(diagnosis_records(inc_tb.load(logdir / "trial-001").diagnosis))
        for one in found.diagnoses.values():
            assert stored(diagnosis_records(one)) == expected
        with inc_tb.SummaryWriter(run) as writer:
            writer.add_diagnosis(diagnosis)
        assert list(inc_tb.load(run).diagnoses) == list(range(len(found.diagnoses) + 1))

    @each_loader
    def test_killed_while_a_run_is_to_be_whole(self, loader: Any, logdir: Path, tmp_path: Path) -> None:
        with inc_tb.SummaryWriter(tmp_path / "trial-001", whole=True) as writer:
            writer.add_trial(make_trial("trial-001"))
        with pytest.raises(subprocess.CalledProcessError) as killed:
            python(WRITE_AND_DIE, logdir / "trial-001", tmp_path / "trial-002")
        assert killed.value.returncode == -signal.SIGKILL
        assert list((tmp_path / "trial-002").iterdir()) != []
        with loader(tmp_path) as contents:
            assert contents.runs() == ["fp32", "trial-001"]
        with pytest.raises(DataError, match="no event files there"):
            inc_tb.load(tmp_path / "trial-002")

    def test_a_run_that_is_to_be_whole(self, diagnosis: inc_tb.Diagnosis, tmp_path: Path) -> None:
        with inc_tb.SummaryWriter(tmp_path / "run", whole=True) as writer:
            writer.add_diagnosis(diagnosis)
            assert event_files(tmp_path / "run") == []
        assert inc_tb.load(tmp_path / "run").ops["name"].tolist() == OPS
        with suppress(ZeroDivisionError), inc_tb.SummaryWriter(tmp_path / "run", whole=True) as writer:
            writer.add_diagnosis(diagnosis)
            raise ZeroDivisionError
        assert list(inc_tb.load(tmp_path / "run").diagnoses) == [0]
        assert len(list((tmp_path / "run").glob("*events*"))) == 1

    def test_an_error_behind_the_end_of_a_whole_run(self, tmp_path: Path) -> None:
        with suppress(ZeroDivisionError), inc_tb.SummaryWriter(tmp_path, whole=True) as writer:
            writer.add_trial(make_trial("a"))
            writer.close()
            raise ZeroDivisionError
        assert inc_tb.load(tmp_path).trial is not None

    def test_a_full_disk_leaves_no_half_record(self, diagnosis: inc_tb.Diagnosis, tmp_path: Path) -> None:
        with inc_tb.SummaryWriter(tmp_path / "run") as writer:
            writer.add_trial(inc_tb.Trial("before"))
            (path,) = event_files(tmp_path / "run")
            whole = path.stat().st_size
            limits = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (whole + 1000, limits[1]))
            try:
                with pytest.raises(
                    UsageError, match=r"tfevents.*cannot write there \(File too large\)\. Make room there"
                ):
                    writer.add_diagnosis(diagnosis)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            assert path.stat().st_size == whole
            writer.add_trial(inc_tb.Trial("after"))
        assert [trial.name for trial in inc_tb.load(tmp_path / "run").trials.values()] == ["before", "after"]

    def test_everything_is_on_disk_when_a_call_returns(self, diagnosis: inc_tb.Diagnosis, tmp_path: Path) -> None:
        writer = inc_tb.SummaryWriter(tmp_path / "run")
        writer.add_diagnosis(diagnosis)
        assert inc_tb.load(tmp_path / "run").ops["name"].tolist() == OPS
        writer.close()

    def test_threads_share_a_writer(self, tmp_path: Path) -> None:
        file = EventFile(tmp_path)

        def write(worker: int) -> None:
            for step in range(50):
                file.write(Event(step=1000 * worker + step, graph_def=bytes(20_000)))

        workers = [threading.Thread(target=write, args=(n,)) for n in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        file.close()
        steps = [event.step for event in read_events(file.path)][1:]
        assert sorted(steps) == [1000 * n + step for n in range(4) for step in range(50)]


class TestSteps:
    @each_loader
    def test_two_writers_of_a_process_count_together(self, loader: Any, tmp_path: Path) -> None:
        """TensorBoard never goes back to a file that is older than the one that it has read last."""
        with inc_tb.SummaryWriter(tmp_path / "run") as one, inc_tb.SummaryWriter(tmp_path / "run") as other:
            for writer in (one, other, one):
                writer.add_trial(inc_tb.Trial("a", 0.5))
        with loader(tmp_path) as contents:
            assert list(contents.blobs()["run"]["quantization/trial"]) == [0, 1, 2]
        assert not list((tmp_path / "run").glob(".*"))

    def test_names_sort_in_the_order_of_opening(self, tmp_path: Path) -> None:
        opened = []
        for _ in range(12):
            file = EventFile(tmp_path)
            file.close()
            opened.append(file.path)
        assert event_files(tmp_path) == opened

    def test_must_grow(self, tmp_path: Path) -> None:
        with inc_tb.SummaryWriter(tmp_path) as writer:
            writer.add_trial(inc_tb.Trial("a"), 4)
            for step in (4, 3):
                with pytest.raises(UsageError) as error:
                    writer.add_trial(inc_tb.Trial("b"), step)
                assert str(error.value) == (
                    f"step {step} was given after step 4; TensorBoard drops steps that do not grow. "
                    "Give a step from 5 on, or none."
                )
            writer.add_trial(inc_tb.Trial("c"))
        assert list(inc_tb.load(tmp_path).trials) == [4, 5]

    @pytest.mark.parametrize("step", [-1, 1.5, "3", 1 << 63])
    def test_must_be_whole_numbers(self, step: Any, tmp_path: Path) -> None:
        with inc_tb.SummaryWriter(tmp_path) as writer, pytest.raises(UsageError) as error:
            writer.add_trial(inc_tb.Trial("a"), step)
        assert str(error.value) == (
            f"step {step!r} was given; expected a whole number from 0 on, or none for the next one."
        )

    def test_may_come_from_numpy(self, tmp_path: Path) -> None:
        with inc_tb.SummaryWriter(tmp_path) as writer:
            writer.add_trial(inc_tb.Trial("a"), np.int64(7))  # type: ignore[arg-type]
        assert list(inc_tb.load(tmp_path).trials) == [7]

    def test_diagnoses_and_trials_count_apart(self, diagnosis: inc_tb.Diagnosis, tmp_path: Path) -> None:
        with inc_tb.SummaryWriter(tmp_path / "run") as writer:
            writer.add_diagnosis(diagnosis, 9)
            writer.add_trial(inc_tb.Trial("a"))
        found = inc_tb.load(tmp_path / "run")
        assert (list(found.diagnoses), list(found.trials)) == ([9], [0])

    @each_loader
    def test_a_new_writer_continues(self, loader: Any, tmp_path: Path) -> None:
        for _ in range(3):
            with inc_tb.SummaryWriter(tmp_path / "run") as writer:
                writer.add_trial(inc_tb.Trial("a", 0.5))
        assert list(inc_tb.load(tmp_path / "run").trials) == [0, 1, 2]
        with loader(tmp_path) as contents:
            assert list(contents.blobs()["run"]["quantization/trial"]) == [0, 1, 2]
            assert contents.scalars()["run"]["trial/accuracy"] == {0: 0.5, 1: 0.5, 2: 0.5}

    def test_a_folder_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(UsageError) as error:
            inc_tb.SummaryWriter(tmp_path / "file" / "run")
        assert str(error.value) == f"{tmp_path}/file/run: cannot write there (Not a directory). Choose another folder."

    def test_a_closed_writer_says_so(self, tmp_path: Path) -> None:
        writer = inc_tb.SummaryWriter(tmp_path)
        writer.close()
        with pytest.raises(UsageError, match=r"the writer is closed\. Open a new one"):
            writer.add_trial(inc_tb.Trial("a"))


LOAD_WITH_FLAGS = """
import json, sys, time
from types import ModuleType
sys.modules["tensorboard.compat.notf"] = ModuleType("tensorboard.compat.notf")
from tensorboard import default, program
from tensorboard.context import RequestContext
from tb_plugin.loader import QuantizationLoader

logdir, last, *flags = sys.argv[1:]
tensorboard = program.TensorBoard(plugins=[*default.get_static_plugins(), QuantizationLoader])
tensorboard.configure(["tensorboard", "--logdir", logdir, *flags])
provider = tensorboard._make_data_ingester().data_provider
for _ in range(6000):
    found = provider.read_blob_sequences(
        RequestContext(), experiment_id="", plugin_name="quantization", downsample=1000)
    steps = [datum.step for datum in found.get("run", {}).get("quantization/ops", ())]
    if steps and steps[-1] == int(last):  # TensorBoard reads on while it answers, and always keeps the last step
        break
    time.sleep(0.05)
print(json.dumps({"steps": steps, "flag": tensorboard.flags.samples_per_plugin}))
"""


@pytest.fixture(scope="module")
def fifty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fifty")
    with inc_tb.SummaryWriter(folder / "run") as writer:
        for _ in range(50):
            writer.add_diagnosis(made_by_hand(["a"]))
    return folder


class TestSampling:
    """TensorBoard keeps 10 steps of a tag that it does not know; our entry point makes it keep all."""

    @pytest.mark.parametrize("fast", ["true", "false"])
    def test_all_steps_are_kept(self, fast: str, fifty: Path) -> None:
        if fast == "true" and "fast" not in LOADERS:
            pytest.skip("TensorBoard has no fast loader here")
        found = json.loads(python(LOAD_WITH_FLAGS, fifty, 49, f"--load_fast={fast}").stdout)
        assert found == {"steps": list(range(50)), "flag": {"quantization": 0}}

    @pytest.mark.parametrize("fast", ["true", "false"])
    def test_the_users_wish_comes_first(self, fast: str, fifty: Path) -> None:
        if fast == "true" and "fast" not in LOADERS:
            pytest.skip("TensorBoard has no fast loader here")
        wish = "--samples_per_plugin=images=3,quantization=7"
        found = json.loads(python(LOAD_WITH_FLAGS, fifty, 49, f"--load_fast={fast}", wish).stdout)
        assert found["flag"] == {"quantization": 7, "images": 3}
        assert len(found["steps"]) == 7
        assert found["steps"][-1] == 49


LOG = """
import json, sys
from types import ModuleType
import inc_tb
found = inc_tb.load(sys.argv[1]).diagnosis
{before}
known = set(sys.modules)
inc_tb.log_diagnosis(w, found, 7)
added = {{"torch", "tensorflow", "tensorboardX", "onnx"}} & (set(sys.modules) - known)
{waits}
on_disk = list(inc_tb.load(sys.argv[2]).diagnoses)
{after}
w.close()
print(json.dumps([on_disk, sorted(added)]))
"""
WRITERS = {
    "torch": LOG.format(
        before="""
sys.modules["tensorboard.compat.notf"] = ModuleType("tensorboard.compat.notf")  # torch loads TensorFlow otherwise
from torch.utils.tensorboard import SummaryWriter
w = SummaryWriter(sys.argv[2])
w.add_scalar('loss', 1.0, 6)""",
        waits="",
        after="w.add_scalar('loss', 0.5, 8)",
    ),
    "tensorboardX": LOG.format(
        before="""
from tensorboardX import SummaryWriter
class Mine(SummaryWriter): pass
w = Mine(sys.argv[2], flush_secs=0)
w.add_scalar('loss', 1.0, 6)""",
        waits="""
import time
while True:  # its flush() does not wait for its own queue
    try:
        inc_tb.load(sys.argv[2])
        break
    except inc_tb.IncTbError:
        time.sleep(0.05)""",
        after="w.add_scalar('loss', 0.5, 8)",
    ),
    "tensorflow": LOG.format(
        before="""
import tensorflow as tf
w = tf.summary.create_file_writer(sys.argv[2])
with w.as_default(): tf.summary.scalar('loss', 1.0, 6)""",
        waits="",
        after="with w.as_default(): tf.summary.scalar('loss', 0.5, 8)",
    ),
}


class TestTidiness:
    """What a reader of TensorBoard's own dashboards finds before asking for more."""

    def test_of_one_step(self, tmp_path: Path, diagnosis: inc_tb.Diagnosis) -> None:
        with inc_tb.SummaryWriter(tmp_path / "run") as writer:
            writer.add_diagnosis(diagnosis)
            writer.add_trial(make_trial())
            writer.add_profile(inc_tb.Profile([], ProfileRow("", fp32_us=2.0, int8_us=1.0)))
        with LOADERS["python"](tmp_path) as contents:
            tags = list(contents.scalars()["run"])
            assert {tag.partition("/")[0] for tag in tags} == {
                "added_sqnr_db", "ops", "output", "profile", "total_sqnr_db", "trial",
            }  # fmt: skip
            assert len(tags) <= 25
            assert len(contents.tensors("histograms")["run"]) <= 4

    @pytest.mark.parametrize(("asked", "steps"), [(None, [0, 100]), (3, [0])])
    def test_squared_errors_of_several_steps_or_when_asked(
        self, tmp_path: Path, diagnosis: inc_tb.Diagnosis, asked: int | None, steps: list[int]
    ) -> None:
        with inc_tb.SummaryWriter(tmp_path / "run", worst_ops=asked) as writer:
            for step in steps:
                writer.add_diagnosis(diagnosis, step)
        with LOADERS["python"](tmp_path) as contents:
            scalars = contents.scalars()["run"]
            for tag in ("activation_mse/conv2/Conv", "weight_mse/fc/Gemm"):
                assert list(scalars[tag]) == steps


class TestLogDiagnosis:
    @pytest.mark.parametrize("framework", WRITERS)
    def test_into_the_users_run(self, framework: str, logdir: Path, tmp_path: Path) -> None:
        if find_spec(framework) is None:
            pytest.skip(f"{framework} is not installed")
        on_disk, loaded_by_us = json.loads(python(WRITERS[framework], logdir / "trial-001", tmp_path / "mine").stdout)
        assert on_disk == [7]
        assert loaded_by_us == []
        expected = stored(diagnosis_records(inc_tb.load(logdir / "trial-001").diagnosis))
        for loader in LOADERS.values():
            with loader(tmp_path) as contents:
                assert contents.runs() == ["mine"]
                assert contents.blobs()["mine"] == {tag: {7: elements} for tag, elements in expected.items()}
                scalars = contents.scalars()["mine"]
                assert list(scalars["added_sqnr_db/conv2/Conv"]) == [7]
                assert list(scalars["activation_mse/conv2/Conv"]) == list(scalars["weight_mse/conv2/Conv"]) == [7]
                assert scalars["loss"] == {6: 1.0, 8: 0.5}
                histograms = contents.tensors("histograms")["mine"]
                assert {"activations/conv1/Conv", "activations_fp32/conv1/Conv"} <= set(histograms)
                assert list(contents.tensors("text")["mine"]["diagnosis"]) == [7]

    def test_into_ours(self, diagnosis: inc_tb.Diagnosis, tmp_path: Path) -> None:
        with inc_tb.SummaryWriter(tmp_path / "run") as writer:
            inc_tb.log_diagnosis(writer, diagnosis, 3)
            inc_tb.log_diagnosis(writer, diagnosis)
        assert list(inc_tb.load(tmp_path / "run").diagnoses) == [3, 4]

    @pytest.mark.parametrize("writer", [object(), "runs/mine", None, Path("runs")])
    def test_another_kind_of_writer(self, writer: Any, diagnosis: inc_tb.Diagnosis) -> None:
        with pytest.raises(UsageError) as error:
            inc_tb.log_diagnosis(writer, diagnosis, 0)
        assert str(error.value) == (
            f"cannot log to a {type(writer).__module__}.{type(writer).__qualname__}; expected a SummaryWriter of "
            "torch.utils.tensorboard, tensorboardX or inc_tb, or a writer of tf.summary.create_file_writer."
        )

    def test_loads_no_framework(self) -> None:
        loaded = python(
            "import sys, inc_tb, inc_tb.store.writer\n"
            "try: inc_tb.log_diagnosis(object(), None, 0)\n"
            "except inc_tb.IncTbError: pass\n"
            "print(sorted({'torch', 'tensorflow', 'tensorboardX', 'onnx', 'onnxruntime', 'jax'} & set(sys.modules)))"
        )
        assert loaded.stdout == "[]\n"


class TestReferenceRun:
    def test_is_written_once_for_all_trials(self, logdir: Path) -> None:
        assert len(event_files(logdir / "fp32")) == 1
        tags = [v.tag for path in event_files(logdir / "fp32") for e in read_events(path) for v in e.summary.value]
        assert len(tags) == len(set(tags)) > 1

    def test_another_reference_gets_another_run(self, tmp_path: Path) -> None:
        for trial, reference in enumerate(["a.onnx", "b.onnx", "a.onnx", "b.onnx"]):
            with inc_tb.SummaryWriter(tmp_path / f"trial-{trial}") as writer:
                writer.add_diagnosis(made_by_hand(["conv"], reference=reference))
        runs = sorted(folder.name for folder in tmp_path.glob("fp32*"))
        assert len(runs) == 2
        assert runs[0] == "fp32"
        assert runs[1].startswith("fp32-")
        for run, reference in zip(runs, ["a.onnx", "b.onnx"], strict=True):
            (path,) = event_files(tmp_path / run)
            texts = [v.tensor.string_val[0] for e in read_events(path) for v in e.summary.value if v.tag == "reference"]
            assert texts == [f"`{reference}`, with which the trials beside this run are compared".encode()]

    @each_loader
    def test_has_every_op_that_some_trial_shows(self, loader: Any, tmp_path: Path) -> None:
        """Only the worst ops are shown, and the next trial may have others among them."""
        for trial, worst in enumerate(["a", "b", "a"]):
            with inc_tb.SummaryWriter(tmp_path / f"trial-{trial}", worst_ops=1) as writer:
                writer.add_diagnosis(made_by_hand(["a", "b"], worst))
        with loader(tmp_path) as contents:
            found = contents.tensors("histograms")
        assert set(found["trial-0"]) == {"activations/a"}
        assert set(found["trial-1"]) == {"activations/b"}
        assert set(found["fp32"]) == {"activations/a", "activations/b"}
        assert len(event_files(tmp_path / "fp32")) == 2

    def test_leaves_a_run_of_the_users_alone(self, tmp_path: Path) -> None:
        theirs = EventFile(tmp_path / "fp32")
        theirs.close()
        before = theirs.path.read_bytes()
        with inc_tb.SummaryWriter(tmp_path / "trial") as writer:
            writer.add_diagnosis(made_by_hand(["conv"]))
        assert event_files(tmp_path / "fp32") == [theirs.path]
        assert theirs.path.read_bytes() == before
        assert len(list(tmp_path.glob("fp32-*"))) == 1

    def test_of_a_trial_that_is_called_fp32(self, tmp_path: Path) -> None:
        with inc_tb.SummaryWriter(tmp_path / "fp32") as writer:
            writer.add_diagnosis(made_by_hand(["conv"]))
        assert len(event_files(tmp_path / "fp32")) == 1
        assert len(list(tmp_path.glob("fp32-*"))) == 1

    def test_is_completed_after_a_kill(self, tmp_path: Path) -> None:
        for trial in ("trial-1", "trial-2"):
            with inc_tb.SummaryWriter(tmp_path / trial) as writer:
                writer.add_diagnosis(made_by_hand(["conv"]))
            if trial == "trial-1":
                (path,) = event_files(tmp_path / "fp32")
                path.write_bytes(path.read_bytes()[:-1])
        files = event_files(tmp_path / "fp32")
        assert [len(list(read_events(path))) for path in files] == [1, 2]


ODD_NAMES = ["/a//b/", "a/b", "", "/", "naïve 日本/ümlaut", "a|b`c`*_<b>", "line\nbreak", "x:0", "^y", "no utf8 \udcff"]


class TestOddNames:
    @each_loader
    def test_of_ops_and_runs(self, loader: Any, tmp_path: Path) -> None:
        run = "trial é#1 %20 &?+ 日本"
        with inc_tb.SummaryWriter(tmp_path / run, worst_ops=len(ODD_NAMES)) as writer:
            writer.add_diagnosis(made_by_hand(ODD_NAMES, reference="models/é \udcff.onnx"))
            writer.add_trial(inc_tb.Trial("é#1 \udcff", 0.5, config={"x\udcff": "\udcff"}, fallback=ODD_NAMES))
        with loader(tmp_path) as contents:
            assert contents.runs() == ["fp32", run]
            tags = [tag for tag in contents.scalars()[run] if tag.startswith("added_sqnr_db/")]
            histograms = contents.tensors("histograms")
            blobs = contents.blobs()[run]
            hparams = contents.tags("tensors", "hparams")
        assert len(tags) == len(ODD_NAMES)
        assert {"added_sqnr_db/a/b", "added_sqnr_db/a/b_2", "added_sqnr_db/naïve 日本/ümlaut"} <= set(tags)
        assert len(histograms["fp32"]) == len(histograms[run]) == len(ODD_NAMES)
        assert set(blobs) == RECORDS - {"quantization/samples"} | {"quantization/trial"}
        assert hparams == {run: HPARAMS}
        names = inc_tb.load(tmp_path / run).ops["name"].tolist()
        assert names == [*ODD_NAMES[:-1], "no utf8 \\udcff"]


class TestLoad:
    def test_comes_back_whole(self, logdir: Path, diagnosis: inc_tb.Diagnosis) -> None:
        found = inc_tb.load(logdir / "trial-001").diagnosis
        for column in diagnosis.ops.columns:
            if column.type == "text":
                assert found.ops[column.name].tolist() == diagnosis.ops[column.name].tolist()
            else:  # measured numbers are stored with float32's seven digits
                np.testing.assert_allclose(found.ops[column.name], diagnosis.ops[column.name], rtol=2**-24)
        assert found.ops.columns == diagnosis.ops.columns
        assert sorted(found.histograms, key=str) == sorted(diagnosis.histograms, key=str)
        assert sorted(found.channels, key=str) == sorted(diagnosis.channels, key=str)
        assert found.meta == diagnosis.meta
        assert found.suggestions == diagnosis.suggestions
        assert found.graph == diagnosis.graph

    def test_the_newest_is_at_hand(self, logdir: Path) -> None:
        found = inc_tb.load(str(logdir / "trial-001"))
        assert list(found.diagnoses) == [0, 5]
        assert found.diagnosis is found.diagnoses[5]
        assert found.trial == make_trial()
        assert found.ops is found.diagnosis.ops

    def test_no_such_run(self, tmp_path: Path) -> None:
        for folder in (tmp_path / "missing", tmp_path):
            with pytest.raises(DataError, match="no event files there; expected the folder of one run"):
                inc_tb.load(folder)

    def test_a_run_of_somebody_else(self, tmp_path: Path) -> None:
        file = EventFile(tmp_path)
        file.write(Event(summary=Summary(value=[Summary.Value(tag="loss", simple_value=1.0)])))
        file.close()
        with pytest.raises(RecordError, match="hold no quantization records; expected a run written by inc-tb"):
            inc_tb.load(tmp_path)

    def test_a_run_without_a_diagnosis(self, tmp_path: Path) -> None:
        with inc_tb.SummaryWriter(tmp_path) as writer:
            writer.add_trial(inc_tb.Trial("t", math.nan))
        found = inc_tb.load(tmp_path)
        assert found.trial is not None
        assert found.trial.notes == ["accuracy was nan, not a finite number"]
        with pytest.raises(DataError, match="holds no diagnosis"):
            _ = found.diagnosis

    def test_a_record_of_a_newer_version(self, tmp_path: Path) -> None:
        file = EventFile(tmp_path)
        file.write(Event(summary=Summary(value=[summaries.blobs("quantization/ops", [b'{"version":9}', b"new"])])))
        file.close()
        with pytest.raises(RecordError, match=r"has version 9, this inc-tb reads up to 2\. Update inc-tb\."):
            inc_tb.load(tmp_path)


def test_writing_loads_no_framework(tmp_path: Path) -> None:
    code = (
        "import sys, inc_tb\n"
        "with inc_tb.SummaryWriter(sys.argv[1]) as w: w.add_trial(inc_tb.Trial('t', 0.5, config={'a': 1}))\n"
        "assert inc_tb.load(sys.argv[1]).trial.accuracy == 0.5\n"
        "print(sorted({'torch', 'tensorflow', 'tensorboardX', 'onnx', 'onnxruntime', 'pandas'} & set(sys.modules)))"
    )
    assert python(code, tmp_path / "run").stdout == "[]\n"


def test_a_large_graph_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard holds the graph of every run in memory: 2 MB for 20,000 ops."""
    monkeypatch.setattr("inc_tb.store.writer.GRAPH_OPS", 2)
    made = make_large(3)
    for run in ("one", "two"):
        with inc_tb.SummaryWriter(tmp_path / run) as writer:
            writer.add_diagnosis(made)
    graphs = [p.parent.name for p in sorted(tmp_path.rglob("*.tfevents.*")) for e in read_events(p) if e.graph_def]
    assert graphs == ["fp32"]


def test_a_graph_without_a_diagnosis(tmp_path: Path) -> None:
    model = Path(__file__).parents[1] / "data" / "hard.onnx"
    with inc_tb.SummaryWriter(tmp_path / "run") as writer:
        writer.add_graph(model)
    (graph,) = [e.graph_def for p in event_files(tmp_path / "run") for e in read_events(p) if e.graph_def]
    nodes = {node.name: list(node.input) for node in GraphDef.FromString(graph).node}
    assert len(nodes) == 17
    assert nodes["Add"] == ["pw/Conv", "Relu_1"]


def test_retrained_weights_are_another_reference(tmp_path: Path, diagnosis: inc_tb.Diagnosis) -> None:
    arrays = [diagnosis.ops[c.name] * 2 if c.name == "w_max" else diagnosis.ops[c.name] for c in diagnosis.ops.columns]
    retrained = inc_tb.Diagnosis(OpTable(diagnosis.ops.columns, arrays), reference=diagnosis.reference)
    for name, found in (("a", diagnosis), ("b", retrained), ("c", diagnosis)):
        with inc_tb.SummaryWriter(tmp_path / name) as writer:
            writer.add_diagnosis(found)
    assert len([path for path in tmp_path.iterdir() if path.name.startswith("fp32")]) == 2


@pytest.mark.parametrize("loader", LOADERS)
def test_a_whole_run_appears_when_it_is_complete(loader: str, tmp_path: Path, diagnosis: inc_tb.Diagnosis) -> None:
    with inc_tb.SummaryWriter(tmp_path / "whole", whole=True) as writer:
        writer.add_diagnosis(diagnosis)
        with LOADERS[loader](tmp_path) as contents:
            assert contents.runs() == ["fp32"]
        writer.add_trial(make_trial("whole"))
    with suppress(KeyboardInterrupt), inc_tb.SummaryWriter(tmp_path / "broken", whole=True) as writer:
        writer.add_diagnosis(diagnosis)
        raise KeyboardInterrupt
    with LOADERS[loader](tmp_path) as contents:
        assert contents.runs() == ["fp32", "whole"]
    assert not (tmp_path / "broken").exists()
    found = inc_tb.load(tmp_path / "whole")
    assert found.trial == make_trial("whole")
    assert list(found.ops["name"]) == list(diagnosis.ops["name"])


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "a\x01b"])
def test_names_that_the_fast_loader_cannot_read(name: str, tmp_path: Path) -> None:
    """They are told by the writer, and refused as --run; what they are replaced by is read by both loaders."""
    with pytest.warns(UserWarning, match="fast loader cannot read runs"):
        inc_tb.SummaryWriter(tmp_path / name).close()
    with pytest.raises(UsageError, match="expected one such as a_b"):
        run_folder(tmp_path, name)
    assert run_folder(tmp_path, None, name) == tmp_path / "a_b"
    assert storable(name) == "a_b"


def test_other_odd_names_are_left_as_they_are(tmp_path: Path) -> None:
    for name in ("a'b", "aéb", "a b", "a:b", "a[b]"):
        assert run_folder(tmp_path, name) == tmp_path / name


@each_loader
def test_the_last_diagnoses_are_kept_and_scalars_of_all_steps(loader: Any, tmp_path: Path) -> None:
    """A further writer goes on where the first one ended."""
    found = make_large(3)
    for steps in (range(70), range(70, 100)):
        with inc_tb.SummaryWriter(tmp_path / "run", keep_last=3) as writer:
            for _ in steps:
                writer.add_diagnosis(found)
            writer.add_trial(make_trial("a"))
    assert list(inc_tb.load(tmp_path / "run").diagnoses) == [97, 98, 99]
    with loader(tmp_path) as contents:
        blobs = contents.blobs(fetch=False)["run"]
        assert list(blobs["quantization/ops"]) == list(blobs["quantization/histograms"]) == [97, 98, 99]
        assert list(blobs["quantization/trial"]) == [0, 1]
        scalars = contents.scalars()["run"]
        assert all(list(points) == list(range(100)) for tag, points in scalars.items() if not tag.startswith("trial"))
        assert scalars
    assert len(event_files(tmp_path / "run")) < 80
    assert not list((tmp_path / "run").glob("part*"))


def test_keep_last_is_a_number_and_of_a_run_that_goes_on(tmp_path: Path) -> None:
    for odd in (0, True, 2.5):
        with pytest.raises(UsageError, match="expected a whole number from 1 on, or None for all"):
            inc_tb.SummaryWriter(tmp_path / "run", keep_last=odd)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="expected one of them"):
        inc_tb.SummaryWriter(tmp_path / "run", whole=True, keep_last=2)
