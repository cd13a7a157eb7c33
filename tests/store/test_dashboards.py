"""What somebody without the Quantization tab sees of a run."""

from __future__ import annotations

import math
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.compat.proto.config_pb2 import RunMetadata
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_BLOB_SEQUENCE, DATA_CLASS_SCALAR, DATA_CLASS_TENSOR
from tensorboard.compat.proto.types_pb2 import DT_DOUBLE, DT_FLOAT, DT_STRING
from tensorboard.plugins.hparams import metadata as hparams

import inc_tb
from inc_tb.measure.histogram import SIDE, edges
from inc_tb.measure.op_table import COLUMNS
from inc_tb.records import GraphNode, HistogramRow, OpTable, Suggestion, Trial
from inc_tb.store import dashboards, summaries
from tests.example_run import OPS, make_diagnosis, make_trial

TEXTS = [column.name for column in COLUMNS if column.type == "text"]


@pytest.fixture(scope="module")
def diagnosis(tmp_path_factory: pytest.TempPathFactory) -> inc_tb.Diagnosis:
    return make_diagnosis(tmp_path_factory.mktemp("models"))


def by_hand(ops: dict[str, float], **more: Any) -> inc_tb.Diagnosis:
    """Op -> the dB of noise that it adds, or NaN."""
    rows: list[dict[str, float | str]] = []
    for name, noise in ops.items():
        row: dict[str, float | str] = {c.name: "" if c.name in TEXTS else "not measured" for c in COLUMNS}
        rows.append(
            row | {"name": name, "type": "Conv", "verdict": "ok", "added_sqnr_db": noise, "total_sqnr_db": noise}
        )
    return inc_tb.Diagnosis(OpTable.from_rows(COLUMNS, rows), **more)


def as_numbers(found: list[Any]) -> dict[str, float]:
    return {value.tag: value.tensor.float_val[0] for value in found}


class TestScalars:
    def test_are_what_both_loaders_take(self) -> None:
        value = summaries.scalar("a/b", 0.5)
        assert value.metadata.data_class == DATA_CLASS_SCALAR
        assert value.metadata.plugin_data.plugin_name == "scalars"
        assert value.tensor.dtype == DT_FLOAT  # doubles vanish under the fast loader
        assert not value.tensor.tensor_shape.dim
        assert list(value.tensor.float_val) == [0.5]

    def test_of_a_diagnosis(self) -> None:
        found = as_numbers(dashboards.scalars_of(by_hand({"/a/Conv": 12.5, "/b": math.nan, "/c": 40.0})))
        assert found == {
            "added_sqnr_db/a/Conv": 12.5, "total_sqnr_db/a/Conv": 12.5,
            "added_sqnr_db/c": 40.0, "total_sqnr_db/c": 40.0,
            "ops/bad": 0, "ops/watch": 0, "ops/ok": 3, "output/sqnr_db": 40.0,
        }  # fmt: skip

    def test_only_of_the_worst_ops(self) -> None:
        many = by_hand({f"op{i}": float(i) for i in range(200)})
        tags = set(as_numbers(dashboards.scalars_of(many)))
        assert {tag for tag in tags if tag.startswith("added_sqnr_db/")} == {f"added_sqnr_db/op{i}" for i in range(5)}
        assert {tag for tag in as_numbers(dashboards.scalars_of(many, 2)) if "/op" in tag} == {
            f"{column}/op{i}" for column in ("added_sqnr_db", "total_sqnr_db") for i in range(2)
        }

    def test_mse_of_the_worst_ops_alone(self) -> None:
        ops = by_hand({f"op{i}": float(i) for i in range(40)}).ops.replaced(
            {
                "a_mse": [2.0 * i for i in range(40)],
                "w_mse": [0.25 if i % 2 else "this op has no weight to compare" for i in range(40)],
                "w_sqnr_db": [50.0 - i for i in range(40)],
            }
        )
        found = dashboards.scalars_of(inc_tb.Diagnosis(ops), 4)
        numbers = as_numbers(found)
        # By what they add, and by the SQNR of their weights, of which only odd ones have any.
        assert {t: n for t, n in numbers.items() if "_mse/" in t} == {
            **{f"activation_mse/op{i}": 2.0 * i for i in range(4)},
            **{f"weight_mse/op{i}": 0.25 for i in (39, 37, 35, 33)},
        }
        (mse,) = (value for value in found if value.tag == "weight_mse/op39")
        assert mse.metadata.summary_description.startswith("Average squared difference.")

    def test_a_curve_that_was_begun_goes_on(self) -> None:
        before = as_numbers(dashboards.scalars_of(by_hand({"a": 1.0, "b": 2.0, "c": 3.0}), 1))
        now = by_hand({"a": 9.0, "b": 2.0, "c": 3.0})
        assert {tag for tag in as_numbers(dashboards.scalars_of(now, 1, before)) if tag.startswith("added")} == {
            "added_sqnr_db/a", "added_sqnr_db/b",
        }  # fmt: skip

    def test_of_a_trial(self) -> None:
        found = as_numbers(dashboards.trial_scalars(make_trial()))
        assert list(found) == [
            "trial/accuracy", "trial/accuracy_drop", "trial/latency_ms", "trial/fallback_ops", "trial/wall_s",
        ]  # fmt: skip
        assert found["trial/accuracy_drop"] == pytest.approx(0.06)
        assert found["trial/fallback_ops"] == 1

    def test_of_a_trial_without_result(self) -> None:
        assert as_numbers(dashboards.trial_scalars(Trial("t", baseline=0.9))) == {"trial/fallback_ops": 0}


def row(reference: list[int], quantized: list[int], top: int = 127) -> HistogramRow:
    return HistogramRow("a", "output", top, reference, quantized, 16, [])


class TestHistograms:
    def test_are_buckets_of_doubles(self) -> None:
        value = summaries.histogram("a", np.array([[0, 1, 5], [1, 2, 7]], np.float64))
        assert value.metadata.data_class == DATA_CLASS_TENSOR
        assert value.metadata.plugin_data.plugin_name == "histograms"
        assert value.tensor.dtype == DT_DOUBLE
        assert [dim.size for dim in value.tensor.tensor_shape.dim] == [2, 3]
        assert np.frombuffer(value.tensor.tensor_content, "<f8").tolist() == [0, 1, 5, 1, 2, 7]

    def test_counts_go_where_the_values_were(self) -> None:
        # Top exponent 127 is the octave 1…2; its 32 bins are the last ones, so bin 2 * SIDE is [1 + 31/32, 2).
        last, first = 2 * SIDE, 2 * SIDE - 31
        assert edges(127)[first] == 1.0
        found = dashboards.buckets(row([first, 3, last, 2], [first, 5]), "reference", 4)
        assert found.tolist() == [[1, 1.25, 3], [1.25, 1.5, 0], [1.5, 1.75, 0], [1.75, 2, 2]]
        assert dashboards.buckets(row([first, 3, last, 2], [first, 5]), "quantized", 4)[:, 2].tolist() == [5, 0, 0, 0]

    def test_no_value_is_lost(self, diagnosis: inc_tb.Diagnosis) -> None:
        for one in diagnosis.histograms:
            reference, quantized = dashboards.buckets(one, "reference"), dashboards.buckets(one, "quantized")
            assert reference[:, 2].sum() == sum(one.reference[1::2])
            assert quantized[:, 2].sum() == sum(one.quantized[1::2])
            assert np.array_equal(reference[:, :2], quantized[:, :2])
            assert (np.diff(reference[:, 0]) > 0).all()
            assert np.array_equal(reference[1:, 0], reference[:-1, 1])

    def test_a_side_that_is_all_nan_has_empty_buckets(self) -> None:
        assert dashboards.buckets(row([SIDE, 3], []), "quantized")[:, 2].sum() == 0

    def test_a_tensor_of_zeros(self) -> None:
        found = dashboards.buckets(row([SIDE, 9], [SIDE, 9], 16), "reference")
        assert np.isfinite(found).all()
        assert found[:, 2].sum() == 9
        assert (found[:, 1] > found[:, 0]).all()

    def test_tags(self) -> None:
        rows = [
            HistogramRow("/a", "output", 127, [SIDE, 1], [SIDE, 1], 16, []),
            HistogramRow("/a", "weight", 127, [SIDE, 1], [SIDE, 1], 16, []),
            HistogramRow("/a", "input", 127, [SIDE, 1], [SIDE, 1], 16, []),  # only serves the op table
            HistogramRow("/nothing seen", "output", 127, [], [], 16, []),
            HistogramRow("/not among the worst", "output", 127, [SIDE, 1], [SIDE, 1], 16, []),
        ]
        made = by_hand({"/a": 1.0, "/nothing seen": 2.0, "/not among the worst": 30.0}, histograms=rows)
        assert [v.tag for v in dashboards.histograms_of(made, "reference", 2)] == ["activations/a", "weights/a"]
        found = dashboards.histograms_of(made, "reference", 2, tag="{}_fp32")
        assert [v.tag for v in found] == ["activations_fp32/a", "weights_fp32/a"]


def test_records_are_blob_sequences_with_their_version() -> None:
    value = summaries.blobs("quantization/ops", [b"head", b"\xff\0"])
    assert value.metadata.data_class == DATA_CLASS_BLOB_SEQUENCE
    assert value.metadata.plugin_data.plugin_name == "quantization"
    assert value.metadata.plugin_data.content == b'{"version":2}'
    assert value.tensor.dtype == DT_STRING
    assert [dim.size for dim in value.tensor.tensor_shape.dim] == [2]
    assert list(value.tensor.string_val) == [b"head", b"\xff\0"]


def test_names_in_tags() -> None:
    given = ["/a/b", "a//b/", "a/b_2", "/", "", "naïve", "x\udcff", "a:0"]
    assert list(dashboards.shown_names(given).values()) == [
        "a/b", "a/b_2", "a/b_2_2", "unnamed", "unnamed_2", "naïve", "x\\udcff", "a:0",
    ]  # fmt: skip


def shown(diagnosis: inc_tb.Diagnosis) -> str:
    """The summary as TensorBoard's Text dashboard makes it."""
    with warnings.catch_warnings():  # TensorBoard's own copy of a library deprecates itself
        warnings.simplefilter("ignore", DeprecationWarning)
        from tensorboard import plugin_util
    return str(plugin_util.markdown_to_safe_html(dashboards.summary_text(diagnosis).tensor.string_val[0]))


class TestText:
    def test_of_a_diagnosis(self, diagnosis: inc_tb.Diagnosis) -> None:
        html = shown(diagnosis)
        assert "<code>int8.onnx</code> against <code>fp32.onnx</code>, 16 samples" in html
        assert "<h4>1. outlier_channels</h4>" in html
        assert "&quot;/conv2/Conv&quot;" in html or '"/conv2/Conv"' in html
        cells = re.findall(r"<td[^>]*>(.*?)</td>", html)
        assert cells[:2] == ["<code>/conv2/Conv</code>", "Conv"]
        assert float(cells[2]) == pytest.approx(diagnosis.ops["added_sqnr_db"][2], abs=0.05)
        assert "added here (dB)" in html

    def test_without_suggestions(self) -> None:
        assert "No op stands out." in shown(by_hand({"a": 40.0}))

    def test_names_are_shown_as_they_are(self) -> None:
        odd = ["__init__", "a|b", "*x*", "tick`s", "<b>bold</b>", "two\nlines", "x\udcff"]
        html = shown(by_hand({name: 10.0 + i for i, name in enumerate(odd)}, reference="__ref__*.onnx"))
        rows = re.findall(r"<tr>\s*(<td.*?)</tr>", html, re.DOTALL)
        first = [re.findall(r"<td[^>]*>(.*?)</td>", found, re.DOTALL)[0] for found in rows]
        assert first == [
            "<code>__init__</code>", "<code>a|b</code>", "<code>*x*</code>", "<code>tick`s</code>",
            "<code>&lt;b&gt;bold&lt;/b&gt;</code>", "<code>two lines</code>", "<code>x\\udcff</code>",
        ]  # fmt: skip
        assert all(len(re.findall("<td", found)) == 6 for found in rows)
        assert "<code>__ref__*.onnx</code>" in html

    def test_notes_are_a_list_below_the_table(self) -> None:
        html = shown(by_hand({"a": 1.0}, notes=["left *out* /a_b_c", "another <one>"]))
        assert re.findall(r"<li>(.*?)</li>", html)[:2] == ["left *out* /a_b_c", "another &lt;one&gt;"]
        assert html.index("</table>") < html.index("<li>")

    def test_suggestions_keep_their_numbers(self) -> None:
        found = [
            Suggestion([n], f"rule_{n}", f"because __{n}__ | x", {}, {"t": f"call({n})"}, "", i)
            for i, n in ((1, "a"), (2, "b"))
        ]
        html = shown(by_hand({"a": 1.0}, suggestions=found))
        assert re.findall(r"<h4>(\d\. .*?)</h4>", html) == ["1. rule_a", "2. rule_b"]
        assert "because __b__ | x" in html
        assert "call(b)" in html


class TestHParams:
    def parsed(self, trial: Trial) -> tuple[Any, Any, Any]:
        found = {value.tag: value.metadata.plugin_data.content for value in dashboards.trial_hparams(trial)}
        return (
            hparams.parse_experiment_plugin_data(found[hparams.EXPERIMENT_TAG]),
            hparams.parse_session_start_info_plugin_data(found[hparams.SESSION_START_INFO_TAG]),
            hparams.parse_session_end_info_plugin_data(found[hparams.SESSION_END_INFO_TAG]),
        )

    def test_settings_and_metrics(self) -> None:
        experiment, start, end = self.parsed(make_trial())
        assert {h.name for h in experiment.hparam_infos} == {"calibration", "per_channel", "samples", "fallback"}
        assert [m.name.tag for m in experiment.metric_infos] == [
            "trial/accuracy", "trial/accuracy_drop", "trial/latency_ms", "trial/fallback_ops", "trial/wall_s",
        ]  # fmt: skip
        assert experiment.metric_infos[0].display_name == "accuracy"
        assert start.group_name == ""  # the name of its run
        assert start.hparams["calibration"].string_value == "minmax"
        assert start.hparams["per_channel"].bool_value is True
        assert start.hparams["samples"].number_value == 64
        assert start.hparams["fallback"].string_value == "/conv1/Conv"
        assert end.end_time_secs - start.start_time_secs == pytest.approx(3.5)

    def test_values_of_any_kind(self) -> None:
        config = {
            "numpy": np.float32(0.5), "path": Path("/x"), "nan": math.nan, "large": 10**400, "list": [1, 2],
            "none": None, "odd\udcff": "\udcff",
        }  # fmt: skip
        _, start, _ = self.parsed(Trial("t", config=config))
        assert start.hparams["numpy"].number_value == 0.5
        assert start.hparams["path"].string_value == "/x"
        assert start.hparams["nan"].string_value == "nan"
        assert start.hparams["large"].string_value.startswith("1000")
        assert start.hparams["list"].string_value == "[1, 2]"
        assert start.hparams["none"].string_value == "None"
        assert start.hparams["odd\\udcff"].string_value == "\\udcff"
        assert start.hparams["fallback"].string_value == "none"

    def test_a_long_list_of_ops_is_cut(self) -> None:
        _, start, _ = self.parsed(Trial("t", fallback=[f"/layer{i}/Conv" for i in range(500)]))
        text = start.hparams["fallback"].string_value
        assert len(text) == dashboards.LONGEST_SETTING
        assert text.startswith("/layer0/Conv, /layer1/Conv")
        assert text.endswith("…")


class TestGraph:
    def test_nodes_and_edges(self, diagnosis: inc_tb.Diagnosis) -> None:
        graph = GraphDef.FromString(
            dashboards.graph_event(diagnosis.graph, dashboards.added_noise(diagnosis)).graph_def
        )
        assert [node.name for node in graph.node] == [name.lstrip("/") for name in OPS]
        assert [list(node.input) for node in graph.node] == [[], *([name.lstrip("/")] for name in OPS[:-1])]
        assert graph.node[2].op == "Conv"
        assert graph.node[2].attr["added_sqnr_db"].f == np.float32(diagnosis.ops["added_sqnr_db"][2])

    def test_names_that_graphs_would_misread(self) -> None:
        nodes = [
            GraphNode("/a", "Conv", []), GraphNode("a", "Conv", ["/a"]), GraphNode("b:0", "Conv", ["a"]),
            GraphNode("^c", "Conv", ["b:0"]), GraphNode("", "Conv", ["^c", "not in the graph"]),
        ]  # fmt: skip
        made = by_hand({node.name: 20.0 for node in nodes}, graph=nodes)
        graph = GraphDef.FromString(dashboards.graph_event(made.graph).graph_def)
        assert [(node.name, list(node.input)) for node in graph.node] == [
            ("a", []), ("a_2", ["a"]), ("b_0", ["a_2"]), ("_c", ["b_0"]), ("unnamed", ["_c"]),
        ]  # fmt: skip
        names = {stats.node_name for stats in self.stats(made).node_stats}
        assert names == {"a", "a_2", "b_0", "_c", "unnamed"}

    def test_noise_is_the_compute_time(self) -> None:
        # 20 dB is a hundredth of the signal, 10,000 parts per million; 300 dB is nothing, -300 dB is cut off.
        noise = {"a": 20.0, "none": math.nan, "tiny": 300.0, "huge": -300.0}
        made = by_hand(noise, graph=[GraphNode(name, "Conv", []) for name in noise])
        found = {stats.node_name: stats.all_end_rel_micros for stats in self.stats(made).node_stats}
        assert found == {"a": 10_000, "tiny": 1, "huge": 10**12}

    def test_the_device_has_a_name_that_graphs_shows(self, diagnosis: inc_tb.Diagnosis) -> None:
        assert re.search(r"device:([^:]+:[0-9]+)$", self.stats(diagnosis).device)  # from TensorBoard's page

    def test_each_step_has_its_own_tag(self, diagnosis: inc_tb.Diagnosis) -> None:
        tags = [dashboards.noise_event(diagnosis, step).tagged_run_metadata.tag for step in (0, 7)]
        assert tags == ["noise at step 0 (1 µs = 1 ppm)", "noise at step 7 (1 µs = 1 ppm)"]

    def stats(self, diagnosis: inc_tb.Diagnosis) -> Any:
        event = dashboards.noise_event(diagnosis, 0)
        (device,) = RunMetadata.FromString(event.tagged_run_metadata.run_metadata).step_stats.dev_stats
        return device
