"""What a profile can be asked: joined with a diagnosis, as JSON, by time, as a trace, and read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import inc_tb
from inc_tb.frameworks.traces import Slice
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.measure.op_table import COLUMNS
from inc_tb.profiling.profile import Profile, speedup, stored_profile
from inc_tb.records import SLOWER, Effect, GraphNode, OpTable, ProfileRow, Suggestion

CONV = ProfileRow("conv", "Conv", 100.0, 40.0, 10.0, 120.0, 44.0, True, [], 101.0, 41.0, ["relu"], -50.0, -53.0, -47.0)
POOL = ProfileRow("pool", "MaxPool", 10.0, 30.0, 0.0, 12.0, 33.0, True, [], 10.5, 31.0, [], 20.0, 18.0, 22.0)
FC = ProfileRow("fc", "Gemm", 20.0, 20.5, 0.0, 22.0, 23.0, False, [], 20.1, 20.4, [], 0.5, -1.0, 2.0)
GONE = ProfileRow("gone", "Identity", 1.0, None)
REST = ProfileRow("", "", 9.0, 4.5)
TOTAL = ProfileRow("", "", 140.0, 105.0, 0.0, 150.0, 110.0, True, [], 141.0, 106.0, [], -35.0, -40.0, -30.0)


def _profile(**more: Any) -> Profile:
    given: dict[str, Any] = {
        "rows": [CONV, POOL, FC, GONE, REST], "total": TOTAL, "fp32": "fp32.onnx", "int8": "int8.onnx",
        "framework": "onnx", "runs": 50, "threads": 2, "samples": 4, "overhead": {"fp32": 0.1, "int8": 0.2},
        "accounted": {"fp32": 0.94, "int8": 0.96}, "notes": ["a note"],
    }  # fmt: skip
    return Profile(**{**given, **more})


def _alone() -> Profile:
    rows = [
        ProfileRow("conv", "Conv", 100.0, fp32_p95_us=120.0, fp32_mean_us=101.0, ops=["relu"]),
        ProfileRow("", fp32_us=4),
    ]
    return Profile(rows, ProfileRow("", fp32_us=104.0, fp32_p95_us=130.0), "net.onnx", runs=9, accounted={"fp32": 0.96})


def _diagnosis(*suggestions: list[str], dtype: str = "int8") -> Diagnosis:
    names = ["conv", "relu", "pool", "fc", "gone", "new"]
    empty = {c.name: "" if c.type == "text" else 0.0 for c in COLUMNS}
    rows = [empty | {"name": name, "act_dtype": dtype} for name in names]
    made = [Suggestion(ops, "clipping", "it is", {}, rank=i) for i, ops in enumerate(suggestions, 1)]
    return Diagnosis(
        OpTable.from_rows(COLUMNS, rows), made, reference="fp32.onnx", quantized="int8.onnx", framework="onnx"
    )


def _column(diagnosis: Diagnosis, column: str) -> dict[str, float | str]:
    """The number, or why there is none."""
    found = diagnosis.ops
    return {
        str(name): found.why_null(column, i) if np.isnan(found[column][i]) else float(found[column][i])
        for i, name in enumerate(found["name"])
    }


FUSED = "runs as part of conv"
UNTIMED = "the profile has no time of it"


def test_a_diagnosis_gets_the_times_or_why_there_are_none() -> None:
    found = _profile().join(_diagnosis())
    assert _column(found, "time_fp32_us") == {
        "conv": 100, "relu": FUSED, "pool": 10, "fc": 20, "gone": 1, "new": UNTIMED
    }  # fmt: skip
    assert _column(found, "time_int8_us") == {
        "conv": 40, "relu": FUSED, "pool": 30, "fc": 20.5, "gone": UNTIMED, "new": UNTIMED
    }  # fmt: skip
    assert _column(found, "convert_us") == {
        "conv": 10, "relu": FUSED, "pool": 0, "fc": 0, "gone": 0, "new": UNTIMED
    }  # fmt: skip
    noise = "the times in fp32 and int8 cannot be told apart from noise"
    assert _column(found, "speedup") == {
        "conv": 2, "relu": FUSED, "pool": pytest.approx(1 / 3), "fc": noise, "gone": UNTIMED, "new": UNTIMED
    }  # fmt: skip


def test_joining_leaves_everything_else_as_it_was() -> None:
    before = _diagnosis(["conv"])
    found = _profile().join(before)
    joined = {"time_fp32_us", "time_int8_us", "convert_us", "speedup"}
    assert list(found.ops) == list(before.ops)
    for column in set(before.ops) - joined:
        np.testing.assert_array_equal(found.ops[column], before.ops[column])
    assert before.suggestions[0].effects == []
    assert (found.reference, found.quantized) == ("fp32.onnx", "int8.onnx")


def _effect(*ops: str, profile: Profile | None = None) -> Effect | None:
    suggestion, *others = (profile or _profile()).join(_diagnosis(list(ops))).suggestions
    assert {s.rule for s in others} <= {SLOWER}
    assert len(suggestion.effects) <= 1
    return next(iter(suggestion.effects), None)


@pytest.mark.parametrize("ops", [["conv"], ["relu"], ["conv", "relu"], ["relu", "fc"], ["conv", "new"]])
def test_a_suggestion_costs_what_int8_saves(ops: list[str]) -> None:
    """Fused ops cost what the whole kernel does, once; ops inside the noise cost nothing."""
    found = _effect(*ops)
    assert found is not None
    assert (found.kind, found.label, found.value, found.unit, found.basis) == (
        "costs",
        "more time",
        50,
        "µs",
        "measured",
    )
    assert "conversions at new borders" in found.how


def test_a_suggestion_saves_what_int8_costs() -> None:
    found = _effect("pool")
    assert found is not None
    assert (found.kind, found.label, found.value) == ("recovers", "less time", 20)


def test_ops_that_take_longer_than_the_run_are_slowed_down_by_the_profiler() -> None:
    found = _profile(accounted={"fp32": 0.94, "int8": 1.6}).join(_diagnosis(["pool"]))
    (effect,) = (e for e in found.suggestions[0].effects if e.what == "time")
    assert (effect.label, effect.value, effect.basis) == ("less time", 12.5, "estimated")  # 20 / 1.6
    assert "160%" in effect.how


def test_ops_of_one_suggestion_are_priced_together() -> None:
    found = _effect("conv", "pool")
    assert found is not None
    assert (found.kind, found.value) == ("costs", 30)


def test_a_suggestion_inside_the_noise_says_so() -> None:
    found = _effect("fc")
    assert found is not None
    assert (found.kind, found.value) == ("costs", 0)
    assert "inside the noise" in found.how


def test_no_price_without_a_comparison() -> None:
    assert _effect("gone") is None
    assert _effect("new") is None
    assert _effect("conv", profile=_alone()) is None


def test_joined_twice_is_joined_once() -> None:
    """With what else the suggestion recovers, and the times of the second profile."""
    recovered = Effect("recovers", "output error", 0.5, "share", "measured", "by a probe")
    diagnosis = _diagnosis(["conv"])
    diagnosis.suggestions[0].effects = [recovered]
    once = _profile().join(diagnosis)
    twice = _profile(rows=[replace(CONV, fp32_us=90.0, difference_us=-40.0)]).join(once)
    assert [e.value for e in once.suggestions[0].effects] == [0.5, 50]
    assert [e.value for e in twice.suggestions[0].effects] == [0.5, 40]
    assert _column(twice, "time_fp32_us")["conv"] == 90


def test_ops_that_int8_made_slower_are_a_suggestion_of_their_own() -> None:
    """Behind the others; joined twice it is there once, and gone where nothing is slower any more."""
    once = _profile().join(_diagnosis(["conv"]))
    accuracy, slower = once.suggestions
    assert accuracy.rule == "clipping"
    assert (slower.rule, slower.rank, slower.ops) == (SLOWER, 2, ["pool"])
    assert [(e.kind, e.value, e.unit) for e in slower.effects] == [("recovers", 20, "µs")]
    assert slower.evidence == {"op": "pool", "slower_us": 20, "time_share": 20 / 105}
    assert "20.0 µs" in slower.because
    assert "pool" in slower.recipe
    assert [s.rule for s in _profile().join(once).suggestions] == ["clipping", SLOWER]
    assert [s.rule for s in _profile(rows=[CONV, FC]).join(once).suggestions] == ["clipping"]


def test_all_ops_of_a_slower_kernel_are_kept_together() -> None:
    slower = replace(CONV, fp32_us=10.0, difference_us=40.0, low_us=38.0, high_us=42.0)
    (found,) = _profile(rows=[slower, POOL, REST]).join(_diagnosis()).suggestions
    assert found.ops == ["conv", "relu", "pool"]
    assert found.evidence["slower_us"] == 60


@pytest.mark.parametrize(
    "row",
    [replace(POOL, differs=False), replace(POOL, difference_us=0.01), replace(POOL, op="unknown"), GONE],
    ids=["noise", "next to nothing", "not in the diagnosis", "not compared"],
)
def test_nothing_is_suggested_where_nothing_clearly_got_slower(row: ProfileRow) -> None:
    assert _profile(rows=[row, REST]).join(_diagnosis()).suggestions == []


def test_what_is_in_fp32_already_is_not_suggested() -> None:
    """Such an op may have the conversions at the borders to int8 on its account."""
    assert _profile(rows=[POOL, REST]).join(_diagnosis(dtype="")).suggestions == []


def test_speedup_counts_conversions() -> None:
    assert speedup(CONV) == 2
    assert speedup(GONE) is None
    assert speedup(ProfileRow("x", fp32_us=1.0, int8_us=0.0)) is None


def test_json_of_one_model() -> None:
    found = json.loads(json.dumps(_alone().to_json()))
    assert {"model", "runs", "total_us", "ops"} <= set(found)
    assert (found["model"], found["runs"], found["total_us"]) == ("net.onnx", 9, 104)
    for op in found["ops"]:
        assert {"name", "type", "mean_us", "p50_us", "p95_us", "share"} <= set(op)
    conv, rest = found["ops"]
    assert (conv["name"], conv["mean_us"], conv["p50_us"], conv["p95_us"]) == ("conv", 101, 100, 120)
    assert conv["share"] == pytest.approx(100 / 104)
    assert conv["fused"] == ["relu"]
    assert (rest["name"], rest["type"], rest["p50_us"]) == ("", "outside of all ops", 4)
    assert sum(op["share"] for op in found["ops"]) == pytest.approx(1)
    assert found["accounted"] == {"fp32": 0.96}
    assert {"quantized", "comparison", "total"}.isdisjoint(found)


def test_json_of_two_models() -> None:
    found = json.loads(json.dumps(_profile().to_json()))
    assert (found["model"], found["total_us"], found["total_p95_us"]) == ("fp32.onnx", 140, 150)
    assert (found["overhead"], found["notes"]) == ({"fp32": 0.1, "int8": 0.2}, ["a note"])
    second = found["quantized"]
    assert (second["model"], second["total_us"]) == ("int8.onnx", 105)
    assert [op["name"] for op in found["ops"]] == ["conv", "pool", "fc", "gone", ""]
    assert [op["name"] for op in second["ops"]] == ["conv", "pool", "fc", ""]
    assert [op["convert_us"] for op in found["ops"]] == [0] * 5
    assert second["ops"][0]["convert_us"] == 10
    assert second["ops"][0]["share"] == pytest.approx(50 / 105)
    compared = {op["name"]: op for op in found["comparison"]}
    assert compared.keys() == {"conv", "pool", "fc"}
    assert compared["conv"] == {
        "name": "conv", "difference_us": -50, "low_us": -53, "high_us": -47, "differs": True, "speedup": 2
    }  # fmt: skip
    assert compared["fc"]["differs"] is False
    assert found["total"]["speedup"] == pytest.approx(140 / 105)
    assert found["total"]["differs"] is True


def test_json_of_a_quantized_model_alone() -> None:
    rows = [ProfileRow("conv", "Conv", int8_us=3.0, convert_us=1.0), ProfileRow("relu", convert_us=1.0)]
    found = Profile(rows, ProfileRow("", int8_us=5.0), int8="int8.onnx").to_json()
    assert (found["model"], found["total_us"]) == ("int8.onnx", 5)
    assert [(op["p50_us"], op["convert_us"], op["share"]) for op in found["ops"]] == [(3, 1, 0.8), (None, 1, 0.2)]


def test_rows_by_time_with_shares_up_to_all() -> None:
    found = _profile().by_time()
    assert [row.op for row, _, _ in found] == ["conv", "pool", "fc", "", "gone"]
    total = 50 + 30 + 20.5 + 4.5
    assert [share for _, share, _ in found] == pytest.approx([50 / total, 30 / total, 20.5 / total, 4.5 / total, 0])
    np.testing.assert_allclose([upto for _, _, upto in found], np.cumsum([share for _, share, _ in found]))
    assert found[-1][2] == pytest.approx(1)
    assert [row.op for row, _, _ in _alone().by_time()] == ["conv", ""]
    nothing = Profile([ProfileRow("", fp32_us=0.0)], ProfileRow("", fp32_us=0.0)).by_time()
    assert nothing[0][1:] == (0, 0)


def test_a_trace_for_perfetto(tmp_path: Path) -> None:
    slices = [
        Slice("fp32", "1", "conv", 1000.0, 5.0, {"type": "Conv"}),
        Slice("int8", "1", "conv ümläut \"'", 2000.0, 2.0),
    ]
    _profile(slices=slices).save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    found = [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert found == [("conv", 0, 5), ("conv ümläut \"'", 1000, 2)]
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"fp32", "int8"}
    assert next(e for e in events if e["ph"] == "X")["args"] == {"type": "Conv"}


@pytest.mark.parametrize("made", [_profile, _alone], ids=["two models", "one"])
def test_what_was_logged_is_read_back(tmp_path: Path, made: Any) -> None:
    """All but the graph and the traces, which are in the run's other files."""
    profile: Profile = made()
    profile.graph = [GraphNode("conv", "Conv", [])]
    profile.slices = [Slice("fp32", "1", "conv", 0.0, 5.0)]
    with inc_tb.SummaryWriter(tmp_path / "run") as writer:
        writer.add_profile(profile)
    found = inc_tb.load(tmp_path / "run").profile
    assert found is not None
    for name in (*profile.meta.keys() - {"fp32_total_us", "int8_total_us"}, "rows", "threads", "samples"):
        assert getattr(found, name) == getattr(profile, name), name
    assert found.to_json() == profile.to_json()
    assert found.by_time() == profile.by_time()


def test_profiles_that_only_hold_totals_can_be_read() -> None:
    """As runs that were logged by hand do."""
    found = stored_profile([CONV], {"fp32": "a", "int8": "b", "fp32_total_us": 7.0, "int8_total_us": 3.0, "unknown": 1})
    assert (found.total.fp32_us, found.total.int8_us, found.fp32) == (7, 3, "a")
    assert stored_profile([CONV], {}).total.fp32_us is None


def test_meta_holds_no_empty_things_and_only_json() -> None:
    assert json.loads(json.dumps(_alone().meta)) == {
        "fp32": "net.onnx", "runs": 9, "accounted": {"fp32": 0.96}, "fp32_total_us": 104.0,
        "total": {"op": "", "fp32_us": 104.0, "fp32_p95_us": 130.0},
    }  # fmt: skip
