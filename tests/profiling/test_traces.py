"""What ran when, as other tools read it: checked with their own definitions."""

from __future__ import annotations

import gzip
import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from inc_tb.errors import DataError
from inc_tb.frameworks.traces import LARGEST_TRACE, Slice, read_chrome
from inc_tb.profiling.traces import to_chrome, to_xplane, write_traces

SLICES = [
    Slice("fp32", "main", "model_run", 1_700_000_000_000_000.0, 100.0),
    Slice("fp32", "main", "/conv1/Conv", 1_700_000_000_000_002.5, 40.25, {"type": "Conv", "node_index": 3}),
    Slice("fp32", "worker 1", "/conv1/Conv", 1_700_000_000_000_003.0, 30.0),
    Slice("int8", "main", "é <b>\n", 1_700_000_000_000_200.0, 0.001, {"type": "QLinearConv", "size": 0.5}),
]
BROKEN = ["not a number", None, math.nan, math.inf, -math.inf, -1.0, 1e300, 10**400, True, [], {}]


def tensorflows_xspace() -> Any:
    """The message as TensorFlow defines it, without importing TensorFlow: its file holds the definition as bytes."""
    found = importlib.util.find_spec("tensorflow")
    if found is None or found.origin is None:
        pytest.skip("TensorFlow is not installed")
    source = Path(found.origin).parent / "tsl" / "profiler" / "protobuf" / "xplane_pb2.py"
    start = source.read_text(encoding="utf-8").split("AddSerializedFile(")[1]
    literal = start[: start.rindex("')", 0, start.index("\n")) + 1]
    described = descriptor_pb2.FileDescriptorProto.FromString(eval(literal))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(described)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{described.package}.XSpace"))


XSpace = tensorflows_xspace()


def read_xplane(content: bytes) -> list[tuple[str, str, str, int, int, dict[str, Any]]]:
    """Model, thread, name, start and duration in picoseconds, details."""
    found = []
    for plane in XSpace.FromString(content).planes:
        model = plane.name.removeprefix("/device:CUSTOM:")
        for line in plane.lines:
            for event in line.events:
                kinds = [(plane.stat_metadata[stat.metadata_id].name, stat) for stat in event.stats]
                details = {name: getattr(stat, stat.WhichOneof("value")) for name, stat in kinds}
                start_ps = line.timestamp_ns * 1000 + event.offset_ps
                name = plane.event_metadata[event.metadata_id].name
                found.append((model, line.name, name, start_ps, event.duration_ps, details))
    return found


def test_xplane_holds_exact_times() -> None:
    content = to_xplane(SLICES, "a host")
    assert read_xplane(content) == [
        ("fp32", "main", "model_run", 0, 100_000_000, {}),
        ("fp32", "main", "/conv1/Conv", 2_500_000, 40_250_000, {"type": "Conv", "node_index": 3.0}),
        ("fp32", "worker 1", "/conv1/Conv", 3_000_000, 30_000_000, {}),
        ("int8", "main", "é <b>\n", 200_000_000, 1000, {"type": "QLinearConv", "size": 0.5}),
    ]
    space = XSpace.FromString(content)
    assert list(space.hostnames) == ["a host"]
    assert [plane.id for plane in space.planes] == [1, 2]
    assert [[line.id for line in plane.lines] for plane in space.planes] == [[1, 2], [1]]
    assert all(number == found.id for plane in space.planes for number, found in plane.event_metadata.items())


text = st.text(max_size=20)
times = st.floats(0, 1e9)
details = st.dictionaries(text, text | st.floats(allow_nan=False, allow_infinity=False), max_size=3)
slices = st.lists(st.builds(Slice, st.sampled_from(["fp32", "int8"]), text, text, times, times, details), max_size=20)


@given(slices)
def test_xplane_holds_everything(given_slices: list[Slice]) -> None:
    first = min((s.start_us for s in given_slices), default=0.0)
    expected = [
        (s.model, s.thread, s.name, round((s.start_us - first) * 1e6), round(s.duration_us * 1e6), dict(s.details))
        for s in given_slices
    ]
    found = read_xplane(to_xplane(given_slices, "host"))
    assert sorted(found, key=repr) == sorted(expected, key=repr)


@given(slices)
def test_chrome_is_read_back(tmp_path_factory: pytest.TempPathFactory, given_slices: list[Slice]) -> None:
    path = tmp_path_factory.getbasetemp() / "trace.json"
    path.write_bytes(to_chrome(given_slices))
    if not given_slices:
        return
    first = min(s.start_us for s in given_slices)
    events = read_chrome(path).events
    found = [Slice(e.process, e.thread, e.name, e.start_us, e.duration_us) for e in events]
    assert found == [s._replace(start_us=s.start_us - first, details={}) for s in given_slices]
    assert [e.args for e in events] == [s.details for s in given_slices]


def test_chrome_has_what_perfetto_asks_for() -> None:
    events = json.loads(to_chrome(SLICES))["traceEvents"]
    named = [(e["name"], e["pid"], e.get("tid"), e["args"]["name"]) for e in events if e["ph"] == "M"]
    assert named == [
        ("process_name", 1, None, "fp32"), ("process_name", 2, None, "int8"),
        ("thread_name", 1, 1, "main"), ("thread_name", 1, 2, "worker 1"), ("thread_name", 2, 3, "main"),
    ]  # fmt: skip
    assert events[6] == {
        "ph": "X", "name": "/conv1/Conv", "cat": "op", "pid": 1, "tid": 1, "ts": 2.5, "dur": 40.25,
        "args": {"type": "Conv", "node_index": 3},
    }  # fmt: skip


def test_times_that_are_none_are_left_out() -> None:
    odd = [math.nan, math.inf, -math.inf, -1.0, 1e300]
    broken = [Slice("fp32", "main", "x", us, 1.0) for us in odd] + [Slice("fp32", "main", "x", 1.0, us) for us in odd]
    far = Slice("fp32", "main", "a century later", 3e15 + SLICES[0].start_us, 1.0)
    assert read_xplane(to_xplane([*SLICES, *broken, far], "host")) == read_xplane(to_xplane(SLICES, "host"))
    assert json.loads(to_chrome([*SLICES, *broken, far])) == json.loads(to_chrome(SLICES))
    assert read_xplane(to_xplane(broken, "host")) == []


def test_names_that_are_not_utf8() -> None:
    name = b"conv\xff".decode("utf-8", "surrogateescape")
    odd = [Slice(name, name, name, 0.0, 1.0, {name: name})]
    assert read_xplane(to_xplane(odd, name)) == [("conv?", "conv?", "conv?", 0, 1_000_000, {"conv?": "conv?"})]
    assert json.loads(to_chrome(odd))["traceEvents"][2]["args"] == {"conv?": "conv?"}


def test_files_for_the_profile_tab(tmp_path: Path) -> None:
    folder = tmp_path / "plugins" / "profile" / "2026_11_17"
    paths = write_traces(tmp_path, "2026_11_17", "my/host", SLICES, {"../fp32.pt.trace.json": b"{}"})
    assert paths == [folder / "my_host.xplane.pb", folder / "_fp32.pt.trace.json"]
    assert paths[0].read_bytes() == to_xplane(SLICES, "my/host")
    assert paths[1].read_bytes() == b"{}"
    write_traces(tmp_path, "2026_11_17", "my/host", SLICES[:1])
    assert paths[0].read_bytes() == to_xplane(SLICES[:1], "my/host")
    assert sorted(folder.iterdir()) == sorted(paths)
    assert write_traces(tmp_path / "nothing", "session", "host", []) == []
    assert not (tmp_path / "nothing").exists()


def event(**changed: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "Node", "name": "a", "pid": 1, "tid": 2, "ts": 5, "dur": 7, "args": {"x": 1}} | changed


def written(path: Path, events: Any) -> Path:
    path.write_text(json.dumps(events), encoding="utf-8")
    return path


def test_both_forms_packed_or_not(tmp_path: Path) -> None:
    events = [{"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "main"}}, event()]
    plain = read_chrome(written(tmp_path / "list.json", events))
    assert plain.is_whole
    assert plain.events == [("Node", "a", "1", "main", 5.0, 7.0, {"x": 1})]
    assert read_chrome(written(tmp_path / "object.json", {"schemaVersion": 1, "traceEvents": events})) == plain
    (tmp_path / "list.json.gz").write_bytes(gzip.compress((tmp_path / "list.json").read_bytes()))
    assert read_chrome(tmp_path / "list.json.gz") == plain


@pytest.mark.parametrize("broken", BROKEN, ids=repr)
@pytest.mark.parametrize("field", ["ts", "dur"])
def test_numbers_that_are_no_times_are_left_out(tmp_path: Path, field: str, broken: Any) -> None:
    path = written(tmp_path / "trace.json", [event(**{field: broken}), event(name="b")])
    assert [e.name for e in read_chrome(path).events] == ["b"]


def test_odd_fields(tmp_path: Path) -> None:
    odd = [event(args=None), event(args=[1]), event(name=3, cat=None, pid="Spans", tid=[]), event(ts="5", dur="7")]
    found = read_chrome(written(tmp_path / "trace.json", [*odd, 1, "x", None, [], {}, event(ph="i")]))
    assert [(e.name, e.start_us, dict(e.args)) for e in found.events] == [
        ("a", 5.0, {}), ("a", 5.0, {}), ("3", 5.0, {"x": 1}), ("a", 5.0, {"x": 1}),
    ]  # fmt: skip


@pytest.mark.parametrize("wrap", ["{}", '{{"schemaVersion": 1,\n "traceEvents": {}}}'], ids=["list", "object"])
def test_a_file_that_was_cut_off(tmp_path: Path, wrap: str) -> None:
    content = wrap.format(json.dumps([event(name=f"op{i}") for i in range(5)], indent=1))
    path = tmp_path / "trace.json"
    path.write_text(content[: content.index("op3") + 10], encoding="utf-8")
    found = read_chrome(path)
    assert not found.is_whole
    assert [e.name for e in found.events] == ["op0", "op1", "op2"]
    packed = gzip.compress(b" " * 1000 + bytes(range(256)) * 9)
    path.write_bytes(gzip.compress(content.encode() + packed)[: -len(packed) // 2])
    found = read_chrome(path)
    assert not found.is_whole
    assert len(found.events) <= 5


def test_names_that_onnx_runtime_did_not_escape(tmp_path: Path) -> None:
    lines = [json.dumps(event(name=name)) for name in ("one", "QUOTED", "two", "PATH", "three")]
    content = "[\n" + ",\n".join(lines).replace("QUOTED", 'say "hi"').replace("PATH", r"C:\x") + "\n]\n"
    (tmp_path / "trace.json").write_text(content, encoding="utf-8")
    found = read_chrome(tmp_path / "trace.json")
    assert not found.is_whole
    assert [e.name for e in found.events] == ["one", "two", "three"]


def test_names_in_the_file_that_are_not_utf8(tmp_path: Path) -> None:
    content = json.dumps([event(name="NAME")]).encode().replace(b"NAME", b"conv\xff")
    (tmp_path / "trace.json").write_bytes(b"\xef\xbb\xbf" + content)
    (found,) = read_chrome(tmp_path / "trace.json").events
    assert found.name == "conv\ufffd"
    content = json.dumps([event(name="NAME")]).replace("NAME", r"\ud800 \udc00 \uD83D\uDE00 \\ud7ff")
    (tmp_path / "trace.json").write_text(content, encoding="utf-8")
    (found,) = read_chrome(tmp_path / "trace.json").events
    assert found.name == "\ufffd \ufffd 😀 \\ud7ff"


@pytest.mark.parametrize(
    "content",
    [b"", b" \n", b"[]", b"{}", b'"text"', b"3", b"null", b"hello", b"[" * 100_000, b"{" * 100_000,
     b'{"a":' * 100_000, b'\n{"a":\n' * 100_000, b"\x80\x04\x95\x10\x00\x00", b'{"traceEvents": {"a": 1}}'],
    ids=lambda content: repr(content[:20]),
)  # fmt: skip
def test_what_is_no_trace(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "trace.json").write_bytes(content)
    with pytest.raises(DataError, match=r"trace\.json: (is empty|holds no events); expected a trace of ONNX Runtime"):
        read_chrome(tmp_path / "trace.json")


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.json: cannot be read \(No such file or directory\)"):
        read_chrome(tmp_path / "nowhere.json")
    with pytest.raises(DataError, match=r"cannot be read \(Is a directory\)"):
        read_chrome(tmp_path)
    (tmp_path / "damaged.json.gz").write_bytes(b"\x1f\x8b\x08\x00" + b"x" * 100)
    with pytest.raises(DataError, match=r"damaged\.json\.gz: is damaged .* that gunzip takes"):
        read_chrome(tmp_path / "damaged.json.gz")


def test_a_packed_file_may_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert LARGEST_TRACE >= 1 << 30
    monkeypatch.setattr("inc_tb.frameworks.traces.LARGEST_TRACE", 1 << 20)
    (tmp_path / "large.json.gz").write_bytes(gzip.compress(b" " * (1 << 22)))
    with pytest.raises(DataError, match=r"large\.json\.gz: holds over .* Profile fewer"):
        read_chrome(tmp_path / "large.json.gz")
