"""What a profile leaves in a run: for Graphs, the Profile tab, Time Series and Text, read with TensorBoard itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tensorboard.compat.proto.config_pb2 import RunMetadata
from tensorboard.compat.proto.graph_pb2 import GraphDef

import inc_tb
from inc_tb.frameworks.traces import Slice
from inc_tb.profiling.profile import Profile
from inc_tb.records import GraphNode, ProfileRow
from inc_tb.store.eventfile import event_files, read_events
from tests.tensorboards import LOADERS, serve

GRAPH = [GraphNode("a/conv:0", "Conv", []), GraphNode("relu", "Relu", ["a/conv:0"]), GraphNode("fc", "Gemm", ["relu"])]
ROWS = [
    ProfileRow("a/conv:0", "Conv", 100.4, 40.0, 10.0, ops=["relu"], differs=True, difference_us=-50.0),
    ProfileRow("fc", "Gemm", 0.2, 5.0),
    ProfileRow("not in the graph", "Memcpy", 3.0, 3.0),
    ProfileRow("", "", 6.0, 2.0),
]


def make_profile(**more: Any) -> Profile:
    given: dict[str, Any] = {
        "rows": ROWS, "total": ProfileRow("", "", 110.0, 55.0), "fp32": "fp32.onnx", "int8": "int8.onnx", "runs": 50,
        "overhead": {"fp32": 0.25, "int8": 0.5}, "notes": ["slow *today*"], "graph": GRAPH,
        "slices": [Slice("fp32", "1", "a/conv:0", 0.0, 100.0), Slice("int8", "1", "a/conv:0", 200.0, 40.0)],
        "traces": {"fp32.trace.json": b"[]"},
    }  # fmt: skip
    return Profile(**{**given, **more})


def _log(folder: Path, *profiles: Profile) -> Path:
    with inc_tb.SummaryWriter(folder) as writer:
        for profile in profiles:
            writer.add_profile(profile)
    return folder


def _times(folder: Path) -> dict[str, dict[str, int]]:
    """Tag -> node -> its compute time in µs."""
    found: dict[str, dict[str, int]] = {}
    for path in event_files(folder):
        for event in read_events(path):
            if event.HasField("tagged_run_metadata"):
                stats = RunMetadata.FromString(event.tagged_run_metadata.run_metadata).step_stats.dev_stats
                nodes = [node for device in stats for node in device.node_stats]
                assert len({node.node_name for node in nodes}) == len(nodes)  # Graphs adds them up
                times = {node.node_name: node.op_end_rel_micros for node in nodes}
                assert times == {node.node_name: node.all_end_rel_micros for node in nodes}
                found[event.tagged_run_metadata.tag] = times
    return found


def _graphs(folder: Path) -> list[GraphDef]:
    events = [event for path in event_files(folder) for event in read_events(path)]
    return [GraphDef.FromString(event.graph_def) for event in events if event.graph_def]


def test_graphs_has_the_time_of_each_node_in_both_models(tmp_path: Path) -> None:
    """At least one µs, so that what ran is colored; conversions count; fused ops have no time of their own."""
    run = _log(tmp_path / "run", make_profile())
    assert _times(run) == {
        "time in fp32 at step 0": {"a/conv_0": 100, "fc": 1},
        "time in int8 at step 0": {"a/conv_0": 50, "fc": 5},
    }
    (graph,) = _graphs(run)
    assert [node.name for node in graph.node] == ["a/conv_0", "relu", "fc"]


def test_one_model_has_one_tag(tmp_path: Path) -> None:
    rows = [ProfileRow("fc", "Gemm", 7.0), ProfileRow("", fp32_us=1.0)]
    run = _log(tmp_path / "run", make_profile(rows=rows, total=ProfileRow("", fp32_us=8.0), int8=""))
    assert _times(run) == {"time in fp32 at step 0": {"fc": 7}}


def test_a_run_that_has_a_graph_keeps_it(tmp_path: Path) -> None:
    """Also where another writer goes on with the run; TensorBoard complains about a second one."""
    _log(tmp_path / "run", make_profile(), make_profile())
    run = _log(tmp_path / "run", make_profile())
    assert len(_graphs(run)) == 1
    assert len(_times(run)) == 6


def test_nothing_for_graphs_without_a_graph(tmp_path: Path) -> None:
    run = _log(tmp_path / "run", make_profile(graph=[]))
    assert _times(run) == {}
    assert _graphs(run) == []


def test_traces_lie_where_the_profile_tab_looks(tmp_path: Path) -> None:
    run = _log(tmp_path / "run", make_profile(), make_profile())
    sessions = sorted((run / "plugins" / "profile").iterdir())
    assert [session.name.rpartition("-")[2] for session in sessions] == ["0", "1"]
    for session in sessions:
        names = sorted(path.name for path in session.iterdir())
        assert [name for name in names if name.endswith(".xplane.pb")]
        assert "fp32.trace.json" in names
        assert len(names) == 2
    (plane,) = sessions[0].glob("*.xplane.pb")
    assert b"a/conv:0" in plane.read_bytes()


def test_no_traces_no_folder(tmp_path: Path) -> None:
    run = _log(tmp_path / "run", make_profile(slices=[], traces={}))
    assert not (run / "plugins").exists()


@pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
def test_scalars_text_and_records_by_step(tmp_path: Path, loader: Any) -> None:
    faster = make_profile(total=ProfileRow("", "", 110.0, 44.0))
    _log(tmp_path / "run", make_profile(), faster)
    with loader(tmp_path) as contents:
        scalars = contents.scalars()["run"]
        words = contents.tensors("text")["run"]["profile"]
        records = contents.blobs()["run"]["quantization/profile"]
    assert scalars["profile/latency_fp32_us"] == {0: 110, 1: 110}
    assert scalars["profile/latency_int8_us"] == {0: 55, 1: 44}
    assert scalars["profile/speedup"] == pytest.approx({0: 2.0, 1: 2.5})
    assert scalars["profile/profiler_overhead_fp32"] == {0: 0.25, 1: 0.25}
    assert set(words) == set(records) == {0, 1}
    text = words[0].item() if hasattr(words[0], "item") else words[0][0]
    text = text.decode() if isinstance(text, bytes) else str(text)
    assert "`a/conv:0`" in text
    assert "outside of all ops" in text
    assert r"slow \*today\*" in text
    assert text.index("`a/conv:0`") < text.index("`fc`")
    loaded = inc_tb.load(tmp_path / "run")
    assert set(loaded.profiles) == {0, 1}
    assert loaded.profile is not None
    assert loaded.profile.total.int8_us == 44


def test_tensorboard_lists_the_times(tmp_path: Path) -> None:
    _log(tmp_path / "run", make_profile())
    with serve(tmp_path) as server:
        server.wait_for_records({"run": "profile"})
        info = server.get("plugin/graphs/info")["run"]
        assert info["run_graph"]
        tags = {f"time in {side} at step 0" for side in ("fp32", "int8")}
        assert tags <= set(info["tags"])
        stats = server.text("plugin/graphs/run_metadata", run="run", tag="time in int8 at step 0")
        assert "a/conv_0" in stats
        assert "profile/speedup" in server.get("plugin/scalars/tags")["run"]
