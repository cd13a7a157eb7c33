"""The stored form of every record: what goes in comes out, and damage is noticed."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import inc_tb
from inc_tb import records
from inc_tb.errors import RecordError
from inc_tb.records import (
    ChannelRow,
    Column,
    Effect,
    GraphNode,
    HistogramRow,
    OpTable,
    Preview,
    ProfileRow,
    SampleRow,
    Span,
    Suggestion,
    Trial,
)
from inc_tb.records.rows import BINS
from tests.hostile import gzip_bomb, sealed

GOLDEN = Path(__file__).parents[1] / "golden"
ODD = 'naïve "quoted" \\ 日本 \x00\n\t 🙂 \u2028 </script>'
quick = settings(max_examples=60)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.floats(allow_nan=False, allow_infinity=False)
not_finite = st.sampled_from([math.nan, math.inf, -math.inf])


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Column], list[dict[str, records.Value]]]:
    names = draw(st.lists(texts, min_size=1, max_size=4, unique=True))
    columns = [
        Column(name, type=draw(st.sampled_from(["number", "text"])), label=draw(texts), help=draw(texts))
        for name in names
    ]
    cell = {"text": texts, "number": numbers | not_finite | texts.filter(bool)}
    rows = [{c.name: draw(cell[c.type]) for c in columns} for _ in range(draw(st.integers(0, 6)))]
    return [Column("name", type="text"), *columns], [{"name": f"op {i}", **row} for i, row in enumerate(rows)]


def small_table() -> list[bytes]:
    columns = [Column("name", type="text", label="op"), Column("x", unit="dB", normal=(25, None), help=ODD)]
    rows: list[dict[str, records.Value]] = [
        {"name": ODD, "x": 1.5}, {"name": "b", "x": "not measured"}, {"name": "c", "x": math.nan},
    ]  # fmt: skip
    return records.encode_table(OpTable.from_rows(columns, rows), {"reference": "a.onnx", "samples": 3})


def with_elements(blobs: Sequence[bytes], elements: Sequence[bytes], **changes: Any) -> list[bytes]:
    checksums = [f"{google_crc32c.value(e):08x}" for e in elements]
    return [sealed({**json.loads(blobs[0]), "checksums": checksums, **changes}), *elements]


class TestTable:
    @quick
    @given(tables())
    def test_comes_back(self, made: tuple[list[Column], list[dict[str, records.Value]]]) -> None:
        columns, rows = made
        stored = records.encode_table(OpTable.from_rows(columns, rows), {"notes": [ODD]})
        table, meta = records.decode_table(stored)
        assert meta == {"notes": [ODD]}
        assert [(c.name, c.type, c.label, c.help) for c in table.columns] == [
            (c.name, c.type, c.label, c.help) for c in columns
        ]
        assert table.count == len(rows)
        for column in columns:
            for i, row in enumerate(rows):
                value, found = row[column.name], table[column.name][i]
                if column.type == "number" and isinstance(value, str):
                    assert math.isnan(found)
                    assert table.why_null(column.name, i) == value
                elif isinstance(value, float) and not math.isfinite(value):
                    assert math.isnan(found)
                    assert table.why_null(column.name, i) == "not a finite number"
                elif isinstance(value, float):  # whole numbers come back exactly, others to float32's seven digits
                    assert found == value or (value % 1 and found == pytest.approx(value, rel=2**-24, abs=0))
                    assert table.why_null(column.name, i) == ""
                else:
                    assert found == value

    def test_missing_numbers_are_none_in_rows(self) -> None:
        table, _ = records.decode_table(small_table())
        assert list(table.rows()) == [
            {"name": ODD, "x": 1.5}, {"name": "b", "x": None}, {"name": "c", "x": None},
        ]  # fmt: skip

    def test_an_empty_reason_is_still_no_number(self) -> None:
        table = OpTable.from_rows([Column("name", type="text"), Column("x")], [{"name": "a", "x": ""}])
        assert math.isnan(table["x"][0])
        assert table.why_null("x", 0) == "no reason was given"

    @pytest.mark.parametrize(
        ("values", "stored_as"),
        [
            ([1.5, 0.1, math.nan, -3.0], "f4"),
            ([0.0, 16777216.0], "f4"),
            ([16777217.0], "f8"),  # a count that float32 cannot hold
            ([0.1, 1e300], "f8"),
            ([0.1, 1e-300], "f8"),
            ([], "f4"),
        ],
    )
    def test_a_column_is_little_endian_floats_that_a_browser_reads_directly(
        self, values: list[float], stored_as: str
    ) -> None:
        rows: list[dict[str, records.Value]] = [{"name": "a", "x": value} for value in values]
        stored = records.encode_table(OpTable.from_rows([Column("name", type="text"), Column("x")], rows), {})
        assert json.loads(stored[0])["columns"][1].get("stored", "f8") == stored_as
        found = np.frombuffer(gzip.decompress(stored[2]), f"<{stored_as}", len(values))
        np.testing.assert_array_equal(found, np.array(values, stored_as))

    def test_a_reason_that_the_row_gives_is_not_stored_again(self) -> None:
        columns = [Column("name", type="text"), Column("reason", type="text"), Column("x"), Column("y")]
        rows: list[dict[str, records.Value]] = [
            {"name": f"op {i}", "reason": f"part of op {i - 1}", "x": f"part of op {i - 1}", "y": "not profiled"}
            for i in range(3)
        ]
        stored = records.encode_table(OpTable.from_rows(columns, rows), {})
        assert b"part of" not in gzip.decompress(stored[3])
        table, _ = records.decode_table(stored)
        assert [table.why_null("x", i) for i in range(3)] == ["part of op -1", "part of op 0", "part of op 1"]
        assert [table.why_null("y", i) for i in range(3)] == ["not profiled"] * 3
        assert table.why_null("name", 0) == ""

    def test_texts_are_a_dictionary_and_codes(self) -> None:
        raw = gzip.decompress(small_table()[1])
        length = int.from_bytes(raw[:4], "little")
        assert length % 4 == 0  # so that the codes can be read in place
        distinct = json.loads(raw[4 : 4 + length])
        assert [distinct[i] for i in np.frombuffer(raw, "<u4", offset=4 + length)] == [ODD, "b", "c"]

    def test_a_name_that_is_no_utf8_is_escaped(self) -> None:
        columns = [Column("name", type="text")]
        stored = records.encode_table(OpTable.from_rows(columns, [{"name": "a\udcff"}]), {"reference": "b\udcfe"})
        table, meta = records.decode_table(stored)
        assert table["name"].tolist() == ["a\\udcff"]
        assert meta == {"reference": "b\\udcfe"}


counts = st.lists(st.tuples(st.integers(0, BINS - 1), st.integers(0, 1 << 53)), max_size=3).map(
    lambda pairs: [number for pair in pairs for number in pair]
)
maybe = st.lists(numbers | st.none(), max_size=4)
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 60), 1 << 60) | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
histogram_rows = st.builds(
    HistogramRow, texts, st.sampled_from(["output", "weight"]), st.integers(16, 254), counts, counts,
    st.integers(16, 254), counts, st.none() | st.tuples(numbers, numbers), st.none() | numbers,
)  # fmt: skip
channel_rows = st.builds(ChannelRow, texts, st.sampled_from(["output", "weight"]), *[maybe] * 5)
bases = st.sampled_from(["measured", "counted", "estimated"])
suggestions = st.builds(
    Suggestion, st.lists(texts, max_size=3), texts, texts, st.dictionaries(texts, anything, max_size=3),
    st.dictionaries(texts, texts, max_size=3), texts, st.integers(0, 99),
    st.lists(st.builds(Effect, st.sampled_from(["recovers", "costs"]), texts, numbers, texts, bases, texts)),
)  # fmt: skip
graph_nodes = st.builds(GraphNode, texts, texts, st.lists(texts, max_size=3), texts)
trials = st.builds(
    Trial, texts, st.none() | numbers, st.none() | numbers, st.lists(texts, max_size=3),
    st.dictionaries(texts, anything, max_size=3), st.dictionaries(texts, numbers, max_size=3), st.none() | numbers,
    st.lists(texts, max_size=3), st.none() | numbers, st.booleans(),
)  # fmt: skip
times = st.floats(0, 1e9)
spans = st.builds(Span, st.sampled_from(["fp32", "int8"]), st.integers(0, 64), times, times)
profile_rows = st.builds(
    ProfileRow, texts, texts, st.none() | times, st.none() | times, times, st.none() | times, st.none() | times,
    st.none() | st.booleans(), st.lists(spans, max_size=3), st.none() | times, st.none() | times,
    st.lists(texts, max_size=3), st.none() | times, st.none() | times, st.none() | times,
)  # fmt: skip

some_bytes = st.binary(max_size=12)
sample_rows = st.builds(SampleRow, texts, some_bytes, some_bytes, some_bytes, st.booleans())


previews = st.builds(Preview, st.integers(0, 9), texts, st.sampled_from(["image", "audio", "text"]), some_bytes, texts)


class TestRows:
    @quick
    @given(
        st.one_of(
            st.tuples(st.just("suggestions"), st.lists(suggestions, max_size=4)),
            st.tuples(st.just("graph"), st.lists(graph_nodes, max_size=70)),
            st.tuples(st.just("trial"), st.lists(trials, max_size=2)),
            st.tuples(st.just("profile"), st.lists(profile_rows, max_size=3, unique_by=lambda row: row.op)),
            st.tuples(st.just("previews"), st.lists(previews, max_size=3)),
            st.tuples(st.just("samples"), st.lists(sample_rows, max_size=3, unique_by=lambda row: row.op)),
        )
    )
    def test_come_back_in_their_order(self, made: tuple[records.RowKind, list[Any]]) -> None:
        kind, rows = made
        assert records.decode_rows(kind, records.encode_rows(kind, rows)) == rows

    @quick
    @given(
        st.one_of(
            st.tuples(st.just("histograms"), st.lists(histogram_rows, max_size=6)),
            st.tuples(st.just("channels"), st.lists(channel_rows, max_size=6)),
        )
    )
    def test_come_back_op_by_op(self, made: tuple[records.RowKind, list[Any]]) -> None:
        kind, rows = made
        ops = dict.fromkeys(row.op for row in rows)
        grouped = [row for op in ops for row in rows if row.op == op]
        assert records.decode_rows(kind, records.encode_rows(kind, rows)) == grouped

    def test_all_rows_of_an_op_are_in_the_element_that_the_index_names(self) -> None:
        """A diagnosis measures all weights first and the outputs later, so an op's rows do not stand together."""
        rows = [
            ChannelRow(f"op {i}", role, [float(i)], [], [], [], []) for role in ("weight", "output") for i in range(100)
        ]
        header, *elements = records.encode_rows("channels", rows)
        index = json.loads(header)["index"]
        for i in range(100):
            there = json.loads(gzip.decompress(elements[index[f"op {i}"] - 1]))
            found = [row for row in there if row["op"] == f"op {i}"]
            assert [(row["role"], row["min"]) for row in found] == [("weight", [i]), ("output", [i])]
        sizes = [len(json.loads(gzip.decompress(element))) for element in elements]
        assert sum(sizes) == 200
        assert max(sizes) <= records.ROWS_PER_CHUNK + 1  # one more than the limit, so that an op's two stay together

    def test_what_makers_put_into_configs(self) -> None:
        config = {
            "a": np.float32(0.5), "b": np.arange(3), "c": Path("/x"), ("d", 1): {1}, "e\ud800": b"x", "f": 1 << 70,
        }  # fmt: skip
        made = Trial("t", np.float64(0.25), config=config)
        (trial,) = records.decode_rows("trial", records.encode_rows("trial", [made]))
        assert trial.accuracy == 0.25
        assert trial.config == {
            "a": 0.5, "b": [0, 1, 2], "c": "/x", "('d', 1)": [1], "e\\ud800": "b'x'", "f": 1 << 70,
        }  # fmt: skip

    def test_numbers_of_a_trial_that_are_not_finite_become_a_note(self) -> None:
        given_trial = Trial("t", math.nan, 0.9, objectives={"latency": math.inf, "size": 2.0}, notes=["first"])
        (trial,) = records.decode_rows("trial", records.encode_rows("trial", [given_trial]))
        assert trial.accuracy is None
        assert trial.objectives == {"size": 2.0}
        assert trial.notes == ["first", "accuracy was nan, not a finite number", "latency was inf, not a finite number"]

    def test_a_scale_that_is_not_finite_leaves_a_histogram_without_limits(self) -> None:
        row = HistogramRow("a", "output", 130, [512, 4], [512, 4], 16, [], (-math.inf, math.inf), math.nan)
        (found,) = records.decode_rows("histograms", records.encode_rows("histograms", [row]))
        assert found.limits is None
        assert found.step is None
        assert found.reference == [512, 4]

    @pytest.mark.parametrize("counts", [[512], [512, 4, 513], [-1, 4], [BINS, 4]])
    def test_a_histogram_is_bins_and_counts(self, counts: list[int]) -> None:
        with pytest.raises(ValueError, match="a bin below 1025 and its count in turn"):
            HistogramRow("a", "output", 130, counts, [512, 4], 16, [])


def test_bytes_come_back_also_with_a_name_that_is_no_utf_8() -> None:
    (found,) = records.decode_rows("samples", records.encode_rows("samples", [SampleRow("a\udcff", b"\0\1", b"\xff")]))
    assert found == SampleRow("a\\udcff", b"\0\1", b"\xff")


def no_such_number(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def test_json_holds_no_nan() -> None:
    kept = Suggestion(["a"], "rule", "because", {"ratio": math.nan, "list": [math.inf]}, {})
    for blobs in (
        small_table(),
        records.encode_table(OpTable.from_rows([Column("name", type="text")], []), {"x": math.nan}),
        records.encode_rows("suggestions", [kept]),
        records.encode_rows("trial", [Trial("t", math.nan, config={"x": math.nan}, wall_s=math.inf)]),
    ):
        header = json.loads(blobs[0], parse_constant=no_such_number)
        assert header["version"] == records.VERSION
        if header["kind"] != "ops":
            assert json.loads(gzip.decompress(blobs[1]), parse_constant=no_such_number)


def test_equal_records_are_equal_bytes() -> None:
    assert small_table() == small_table()


class TestDamage:
    @pytest.mark.parametrize(
        ("blobs", "decode"),
        [
            pytest.param(small_table(), records.decode_table, id="ops"),
            pytest.param(
                records.encode_rows("channels", [ChannelRow(ODD, "output", [1.0, None], [], [], [], [])]),
                lambda blobs: records.decode_rows("channels", blobs),
                id="channels",
            ),
            pytest.param(
                records.encode_rows("trial", [Trial(ODD, 0.5, config={"a": [1, ODD]})]),
                lambda blobs: records.decode_rows("trial", blobs),
                id="trial",
            ),
        ],
    )
    def test_every_flipped_byte_is_noticed(self, blobs: list[bytes], decode: Any) -> None:
        decode(blobs)
        tried = 0
        for element, blob in enumerate(blobs):
            for position in range(len(blob)):
                for mask in (0x01, 0x20, 0x80, 0xFF):
                    damaged = bytearray(blob)
                    damaged[position] ^= mask
                    with pytest.raises(RecordError, match=r"Log the run again\.|Update inc-tb\."):
                        decode([*blobs[:element], bytes(damaged), *blobs[element + 1 :]])
                    tried += 1
        assert tried == 4 * sum(map(len, blobs))

    @pytest.mark.parametrize(
        "damage",
        [
            lambda b: b[:-1],
            lambda b: [*b, b[-1]],
            lambda b: [b[0], b[2], b[1]],
            lambda b: [b[0], b[1], b[2][:-1]],
            lambda b: [b[0][:-1], *b[1:]],
            lambda b: [b[0] + b" ", *b[1:]],
            lambda b: [b"", *b[1:]],
            lambda b: [b"null", *b[1:]],
            lambda b: [b"[" * 100_000, *b[1:]],
            lambda b: [],
        ],
    )
    def test_missing_and_swapped_parts(self, damage: Any) -> None:
        with pytest.raises(RecordError, match=r"Log the run again\."):
            records.decode_table(damage(small_table()))

    def test_another_kind(self) -> None:
        with pytest.raises(RecordError, match="the graph record is damaged"):
            records.decode_rows("graph", records.encode_rows("trial", [Trial("t")]))

    def test_checksums_that_fit_nonsense(self) -> None:
        """Somebody else's writer, or an edited file: the checksums hold, the contents do not."""
        table, rows = small_table(), records.encode_rows("trial", [Trial("t")])
        name, x = table[1:]
        texts_out_of_range = gzip.compress((4).to_bytes(4, "little") + b"[]  " + np.array([0, 1, 2], "<u4").tobytes())
        for elements in (
            [name, b"not gzip"], [name, x[:-9]], [name, gzip.compress(b"short")], [name], [texts_out_of_range, x],
            [gzip.compress(b"\x04\0\0\0\xff\xff\xff\xff"), x], [gzip.compress(b""), x],
        ):  # fmt: skip
            with pytest.raises(RecordError, match="the ops record: cannot be read"):
                records.decode_table(with_elements(table, elements))
        for content in (b"{}", b'[{"name":1}]', b'[{"name":"\xff"}]', b"[" * 100_000):
            with pytest.raises(RecordError, match="the trial record: cannot be read"):
                records.decode_rows("trial", with_elements(rows, [gzip.compress(content)]))


class TestBombs:
    """Whatever an element unpacks to, no more of it is made than a log of ours could hold."""

    @pytest.mark.parametrize("claimed", [None, 1000])
    def test_a_column_of_ten_gigabytes(self, claimed: int | None) -> None:
        table = small_table()
        bomb = gzip_bomb(10 << 30, claimed=claimed)
        assert len(bomb) < 11 << 20
        with pytest.raises(RecordError, match=r"the ops record: cannot be read .* unpacks to more than 134 MB"):
            records.decode_table(with_elements(table, [bomb, *table[2:]]))

    def test_settings_may_hold_less_than_columns(self) -> None:
        bomb = gzip_bomb(100 << 20)
        row = records.encode_rows("trial", [Trial("t")])
        with pytest.raises(RecordError, match="more than 24 MB"):  # 16 MiB, and 64 times its size
            records.decode_rows("trial", with_elements(row, [bomb]))

    def test_many_elements_are_not_more_than_one_may_be(self) -> None:
        """Each stays below what a single one may unpack to, all of them do not stay below what a record may."""
        part = gzip.compress(b"[" + b" " * (16 << 20) + b"]")
        rows = records.encode_rows("histograms", [])
        with pytest.raises(RecordError, match="unpacks to more than"):
            records.decode_rows("histograms", with_elements(rows, [part] * 20))

    def test_what_compresses_well_is_read(self) -> None:
        """A million equal values are 8 MB in 8 kB."""
        names = Column("name", type="text"), Column("x")
        table = OpTable(names, [np.array(["op"] * 1_000_000, object), np.zeros(1_000_000)])
        blobs = records.encode_table(table, {})
        assert sum(map(len, blobs)) < 100_000
        assert records.decode_table(blobs)[0].count == 1_000_000

    def test_ranges_and_rows_that_are_claimed(self) -> None:
        """Of version 1, which kept the reasons of empty cells in the header."""
        columns = [{"name": "x", "nulls": {"why": [[-(2**60), 2**60]]}}]
        blobs = with_elements(small_table(), [gzip.compress(np.zeros(3).tobytes())], columns=columns)
        found, _ = records.decode_table(blobs)
        assert found.own_reasons("x") == ["why"] * 3
        for rows in (2**40, 2**80, -1):
            with pytest.raises(RecordError, match="the ops record: cannot be read"):
                records.decode_table(with_elements(small_table(), small_table()[1:], rows=rows))


def test_a_newer_version_says_so() -> None:
    newer = with_elements(small_table(), small_table()[1:], version=records.VERSION + 1)
    with pytest.raises(RecordError) as error:
        records.decode_table(newer)
    assert str(error.value) == (
        f"the ops record has version {records.VERSION + 1}, this inc-tb reads up to {records.VERSION}. Update inc-tb."
    )


def test_a_newer_version_may_look_quite_different() -> None:
    with pytest.raises(RecordError, match=r"has version 9, this inc-tb reads up to \d+\. Update inc-tb\."):
        records.decode_rows("graph", [b'{"version":9,"rows":"many"}', b"something new"])


def test_every_version_has_a_golden_run() -> None:
    assert {folder.name for folder in GOLDEN.glob("v*")} == {f"v{n}" for n in range(1, records.VERSION + 1)}


def test_golden_tokens() -> None:
    found = inc_tb.load(GOLDEN / "later" / "tokens").diagnosis.tokens
    assert found is not None
    assert (found.kind, found.op, found.count, found.kl) == ("causal", "head", 6, 0.5)
    assert found.intervals == {"kl": (0.25, 0.75)}
    assert found.perplexity_quantized == pytest.approx(math.exp(1.25))
    assert (found.worst[0].quantized, found.texts[0].kl) == (" ran", [None, 0.25, 2.0])


@pytest.mark.parametrize("version", [1, 2])
def test_golden(version: int) -> None:
    """Written by tests/golden/make.py when this version was the current one; must be readable for ever."""
    run = inc_tb.load(GOLDEN / f"v{version}")
    assert list(run.diagnoses) == [3]
    found = run.diagnosis
    assert (found.reference, found.quantized, found.framework, found.samples) == ("fp32.onnx", "int8.onnx", "onnx", 16)
    assert run.ops["name"].tolist() == [
        "/conv1/Conv", "/conv1/Relu", "/conv2/Conv", "/conv2/Relu", "/pool/GlobalAveragePool", "/Flatten", "/fc/Gemm",
    ]  # fmt: skip
    assert run.ops["type"][2] == "Conv"
    assert run.ops["added_sqnr_db"][2] == pytest.approx(4.171841898, abs=1e-6)
    assert run.ops["verdict"].tolist() == ["bad"] * 4 + ["ok"] * 3
    assert math.isnan(run.ops["added_sqnr_db"][1])
    assert run.ops.why_null("sensitivity", 0) == "needs a probe of the outputs, which has not run"
    assert run.ops.column("added_sqnr_db").unit == "dB"
    assert [(s.rank, s.rule, s.ops) for s in run.suggestions] == [
        (1, "outlier_channels", ["/conv1/Conv", "/conv1/Relu", "/conv2/Conv", "/conv2/Relu"])
    ]
    assert json.loads(run.suggestions[0].recipes["json"]) == {
        "fp32": ["/conv1/Conv", "/conv1/Relu", "/conv2/Conv", "/conv2/Relu"]
    }
    weights = {row.op: row for row in found.histograms if row.role == "weight"}
    assert sum(weights["/conv1/Conv"].reference[1::2]) == 4 * 2 * 3 * 3
    channels = {(row.op, row.role): row for row in found.channels}
    assert len(channels["/conv1/Conv", "output"].sqnr_db) == 4
    assert found.graph[2] == GraphNode("/conv2/Conv", "Conv", ["/conv1/Relu"], "" if version == 1 else "r2")
    assert run.trial == Trial(
        "trial-001", 0.91, 0.97, ["/conv1/Conv"], {"calibration": "minmax", "per_channel": True, "samples": 64},
        {"latency_ms": 1.25}, 3.5, ["made for tests"], None if version == 1 else 0.96,
    )  # fmt: skip
    assert found.origin is None
    assert not found.by_sample
    if version == 2:
        assert [effect.kind for effect in run.suggestions[0].effects] == ["recovers", "costs", "costs"]
        assert run.profile is not None
        span = Span("fp32", 0, 0.0, 12.0)
        assert run.profile.rows[0] == ProfileRow("/conv1/Conv", "Conv", 12.0, 4.0, 1.0, spans=[span])


def test_golden_samples() -> None:
    """Errors of single samples and what makes a run comparable came without a new version of the records."""
    found = inc_tb.load(GOLDEN / "later" / "samples").diagnosis
    assert found.origin is not None
    assert found.origin.data == "a50a422432abf719-16"
    assert found.origin.reference.startswith("12312b3176328683")
    assert found.origin.settings == {"samples": 16, "batch_size": None}
    assert found.origin.versions["onnxruntime"] == "1.31.1"
    assert len(found.by_sample.ids) == 16 * 8
    output = found.by_sample.rows[-1]
    assert (output.op, output.is_output) == ("/fc/Gemm", True)
    power, error, added = (np.frombuffer(data, "<f4").sum() for data in (output.power, output.error, output.added))
    assert 10 * math.log10(power / error) == pytest.approx(11.885352, abs=1e-4)
    assert 10 * math.log10(power / added) == pytest.approx(47.689003, abs=1e-4)


def test_golden_previews() -> None:
    image, sound, text = inc_tb.load(GOLDEN / "later" / "previews").diagnosis.by_sample.previews
    assert (image.sample, image.kind, image.input) == (3, "image", "image")
    assert image.data.startswith(b"\x89PNG")
    assert (sound.sample, sound.kind, len(sound.data)) == (1, "audio", 2 * 128)
    assert text == Preview(0, "text", "text", text="a text")
