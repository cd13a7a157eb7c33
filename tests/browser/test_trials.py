"""The table of trials and their comparison, in a real TensorBoard with real logs."""

from __future__ import annotations

import csv
import io
import re
import time
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary

import inc_tb
from inc_tb import records
from inc_tb.store import summaries
from inc_tb.store.eventfile import EventFile
from tests.browser.chromium import sync_api, watch
from tests.browser.tab import cell, drawer, expect_names, head, names, open_tab, press_copy
from tests.example_run import OPS, make_diagnosis
from tests.tensorboards import Server, serve

expect = sync_api.expect
pytestmark = pytest.mark.browser

BASELINE, TARGET = 0.97, 0.96
ACCURACY = {
    "trial-001": 0.9, "trial-002": 0.965, "trial-003": 0.94, "trial-004": 0.93, "trial-005": 0.968, "trial-006": 0.96,
}  # fmt: skip
LATENCY_MS = dict(zip(ACCURACY, (2.0, 3.0, 2.5, 2.8, 4.0, 3.5), strict=True))
FP32_MS = 3.2
BY_ACCURACY = ["trial-005", "trial-002", "trial-006", "trial-003", "trial-004", "trial-001"]
BROKEN, UNTRIED = "broken", "untried"
FALLBACK = OPS[:4]
CONFIG = ("weight_dtype", "weight_granularity", "act_dtype", "act_scheme")
Diagnoses = Mapping[str, inc_tb.Diagnosis]


@pytest.fixture(scope="module")
def diagnoses(tmp_path_factory: pytest.TempPathFactory) -> Diagnoses:
    """The first is plain int8, the second keeps the bad edge in fp32, the third has a scale for each channel."""
    settings = ({}, {"nodes_to_exclude": FALLBACK}, {"per_channel": True})
    plain, fallback, channels = (make_diagnosis(tmp_path_factory.mktemp("models"), **some) for some in settings)
    others = dict.fromkeys([*ACCURACY, BROKEN, UNTRIED], plain)
    return {**others, "trial-002": fallback, "trial-003": channels}


@pytest.fixture(scope="module")
def server(diagnoses: Diagnoses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    logdir = tmp_path_factory.mktemp("logdir")
    for name, diagnosis in diagnoses.items():
        with inc_tb.SummaryWriter(logdir / name) as writer:
            writer.add_diagnosis(diagnosis)
            if name in ACCURACY:
                writer.add_trial(trial(name))
    header, rows = records.encode_rows("trial", [trial("trial-001")])
    damaged = summaries.blobs("quantization/trial", [header, rows[:-1] + b"?"])
    file = EventFile(logdir / BROKEN, ".later")
    file.write(Event(wall_time=time.time(), step=0, summary=Summary(value=[damaged])))
    file.close()
    with serve(logdir) as found:
        found.wait_for_records({**dict.fromkeys([*ACCURACY, BROKEN], "trial"), UNTRIED: "graph"})
        yield found


def trial(name: str) -> inc_tb.Trial:
    fallback = FALLBACK if name == "trial-002" else []
    config = {"per_channel": name == "trial-003"}
    objectives = {"latency_ms": LATENCY_MS[name]}
    return inc_tb.Trial(
        name, ACCURACY[name], BASELINE, fallback, {**config, "format": "QDQ"}, objectives, 3.5, target=TARGET,
        int8_macs=0.5, baseline_objectives={"latency_ms": FP32_MS},
    )  # fmt: skip


def shown(frame: sync_api.FrameLocator, op: str, run: str) -> sync_api.Locator:
    return cell(frame, "Ops by trial", op, run)


def written(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.1f}"


def signed(value: float) -> str:
    text = written(abs(value))
    return text if text in ("–", "0.0") else f"{'+' if value > 0 else '−'}{text}"


def test_all_runs_with_what_came_of_them(server: Server, page: sync_api.Page) -> None:
    frame = open_tab(page, server, view="trials")
    expect(frame.get_by_text("8 runs, 6 with a trial, 3 of them meet the target")).to_be_visible()
    expect_names(frame, "Trials", ["fp32", *BY_ACCURACY, BROKEN, UNTRIED])
    best = {"trial-001": "★ 0.9000", "trial-002": "★ 0.9650", "trial-003": "0.9650", "trial-004": "0.9650",
            "trial-005": "★ 0.9680", "trial-006": "0.9680"}  # fmt: skip
    for run, accuracy in ACCURACY.items():
        expect(cell(frame, "Trials", run, "Accuracy")).to_have_text(f"{accuracy:.4f}")
        expect(cell(frame, "Trials", run, "Drop")).to_have_text(f"{BASELINE - accuracy:.4f}")
        expect(cell(frame, "Trials", run, "Target")).to_have_text("✓ met" if accuracy >= TARGET else "✗ missed")
        expect(cell(frame, "Trials", run, "Best so far")).to_have_text(best[run])
        expect(cell(frame, "Trials", run, "Latency")).to_have_text(f"{LATENCY_MS[run]:g}")
        expect(cell(frame, "Trials", run, "per_channel")).to_have_text(str(run == "trial-003").lower())
    expect(cell(frame, "Trials", BROKEN, "Accuracy")).to_contain_text(
        re.compile("could not be read: the trial record is damaged")
    )
    expect(cell(frame, "Trials", UNTRIED, "Accuracy")).to_have_text("no trial logged")


def test_fp32_is_one_of_them(server: Server, page: sync_api.Page) -> None:
    frame = open_tab(page, server, view="trials")
    expect(cell(frame, "Trials", "fp32", "Accuracy")).to_have_text(f"{BASELINE:.4f}")
    expect(cell(frame, "Trials", "fp32", "Latency")).to_have_text(f"{FP32_MS:g}")
    expect(frame.get_by_role("checkbox", name="Compare fp32")).to_have_count(0)
    expect(cell(frame, "Trials", "trial-001", "In int8")).to_have_text("50 %")
    expect(head(frame, "Trials", "format")).to_have_count(0)  # all of them were told the same
    expect(frame.get_by_text("All of them: format QDQ")).to_be_visible()
    expect(frame.get_by_text("Of the trials that meet the target, trial-002 saves most: only")).to_contain_text(
        "only 6.25 % against fp32: latency 3 ms instead of 3.2 ms."  # 1 - 3 / 3.2
    )


def test_sort_and_copy_the_table(server: Server, page: sync_api.Page) -> None:
    frame = open_tab(page, server, view="trials")
    expect(head(frame, "Trials", "Accuracy")).to_have_attribute("aria-sort", "descending")
    head(frame, "Trials", "Accuracy").get_by_role("button").click()
    expect_names(frame, "Trials", ["fp32", *reversed(BY_ACCURACY), BROKEN, UNTRIED])
    head(frame, "Trials", "Latency").get_by_role("button").click()
    expect(head(frame, "Trials", "Latency")).to_have_attribute("aria-sort", "ascending")
    by_latency = sorted(LATENCY_MS, key=LATENCY_MS.__getitem__)
    expect_names(frame, "Trials", ["fp32", *by_latency, BROKEN, UNTRIED])
    copied = press_copy(page, frame.get_by_role("button", name="Copy table"))
    rows = list(csv.DictReader(io.StringIO(copied)))
    assert [row["run"] for row in rows] == ["fp32", *by_latency, BROKEN, UNTRIED]
    assert [float(row["accuracy"]) for row in rows[1:7]] == [ACCURACY[run] for run in by_latency]
    assert rows[-1]["accuracy"] == ""


def test_ops_in_fp32_are_listed(server: Server, page: sync_api.Page) -> None:
    frame = open_tab(page, server, view="trials")
    frame.get_by_role("button", name="4 ops in fp32 in trial-002: show which").click()
    listed = frame.get_by_role("region", name="Ops in fp32 in trial-002")
    expect(listed.get_by_role("listitem")).to_have_text(FALLBACK)
    assert press_copy(page, listed.get_by_role("button", name="Copy names")).split("\n") == FALLBACK
    listed.get_by_role("button", name="/conv2/Conv").click()
    expect(drawer(frame, "/conv2/Conv")).to_be_visible()
    expect(frame.get_by_role("option", name=re.compile("trial-002"))).to_have_attribute("aria-selected", "true")


def test_pick_up_to_six(server: Server, page: sync_api.Page) -> None:
    frame = open_tab(page, server, view="trials")
    expect(frame.get_by_text("Tick 2 to 6 runs above")).to_be_visible()
    for i, run in enumerate(ACCURACY):
        frame.get_by_role("checkbox", name=f"Compare {run}").check()
        if i == 0:
            expect(frame.get_by_text("Tick one more run to compare it with the base.")).to_be_visible()
    picked = frame.get_by_role("list", name="Compared runs").locator("strong")
    expect(picked).to_have_text(list(ACCURACY))
    frame.get_by_role("checkbox", name=f"Compare {UNTRIED}").click()
    expect(frame.get_by_role("alert")).to_contain_text("At most 6 runs")
    expect(frame.get_by_role("checkbox", name=f"Compare {UNTRIED}")).not_to_be_checked()
    expect(picked).to_have_count(6)
    frame.get_by_role("button", name="Do not compare trial-004").click()
    expect(frame.get_by_role("alert")).to_have_count(0)
    frame.get_by_role("checkbox", name=f"Compare {UNTRIED}").check()
    expect(picked).to_have_text([run for run in ACCURACY if run != "trial-004"] + [UNTRIED])
    frame.get_by_role("checkbox", name="Compare trial-004").click()
    expect(frame.get_by_role("alert")).to_be_visible()
    frame.get_by_role("button", name="Compare the first 8").click()
    expect(picked).to_have_text([*BY_ACCURACY, BROKEN, UNTRIED])
    expect(frame.get_by_role("alert")).to_have_count(0)
    frame.get_by_role("checkbox", name="Compare trial-004").uncheck()
    expect(picked).to_have_count(7)


def test_ops_side_by_side(server: Server, page: sync_api.Page, diagnoses: Diagnoses) -> None:
    runs = ["trial-001", "trial-003", "trial-002", BROKEN]
    frame = open_tab(page, server, view="trials", compare=runs)
    values = {run: diagnoses[run].ops["added_sqnr_db"] for run in runs}
    order = frame.get_by_role("combobox", name="Order")
    order.select_option("as in the graph")
    expect_names(frame, "Ops by trial", OPS)
    for i, op in enumerate(OPS):
        for run in ("trial-001", "trial-003", BROKEN):
            expect(shown(frame, op, run)).to_contain_text(re.compile(re.escape(written(values[run][i])) + "$"))
    expect(shown(frame, "/conv2/Conv", "trial-002")).to_have_text("int8 → fp32none")
    color = "cell => getComputedStyle(cell).getPropertyValue('--cell')"
    assert "hsl" in shown(frame, "/conv2/Conv", "trial-001").evaluate(color)
    assert shown(frame, "/fc/Gemm", "trial-001").evaluate(color) == "transparent"
    frame.get_by_label("difference against the base").check()
    for i, op in enumerate(OPS):
        expect(shown(frame, op, "trial-001")).to_have_text(written(values["trial-001"][i]))
        by = values["trial-003"][i] - values["trial-001"][i]
        expect(shown(frame, op, "trial-003")).to_contain_text(re.compile(re.escape(signed(by)) + "$"))
    frame.get_by_role("button", name="make base: trial-003").click()
    expect(frame.get_by_role("list", name="Compared runs").get_by_role("listitem").first).to_contain_text("trial-003")
    by = values["trial-001"][2] - values["trial-003"][2]
    assert by < 0
    expect(shown(frame, "/conv2/Conv", "trial-001")).to_contain_text(signed(by))
    frame.get_by_role("combobox", name="Metric").select_option("total_sqnr_db")
    by = diagnoses["trial-001"].ops["total_sqnr_db"][6] - diagnoses["trial-003"].ops["total_sqnr_db"][6]
    expect(shown(frame, "/fc/Gemm", "trial-001")).to_contain_text(signed(by))


def test_ops_stay_sorted_by_a_run(server: Server, page: sync_api.Page, diagnoses: Diagnoses) -> None:
    frame = open_tab(page, server, view="trials", compare=["trial-001", "trial-002", "trial-003"])
    usual = head(frame, "Ops by trial", "Largest difference")
    expect(usual).to_have_attribute("aria-sort", "descending")
    sorted_by = head(frame, "Ops by trial", "trial-003")
    sorted_by.get_by_role("button").click()
    added = diagnoses["trial-003"].ops["added_sqnr_db"]
    by_value = sorted((i for i in range(len(OPS)) if not np.isnan(added[i])), key=added.__getitem__)
    worst_first = [OPS[i] for i in by_value]
    expect_names(frame, "Ops by trial", worst_first)
    frame.get_by_role("button", name="make base: trial-003").click()
    expect(sorted_by).to_have_attribute("aria-colindex", "2")
    expect(sorted_by).to_have_attribute("aria-sort", "ascending")
    expect_names(frame, "Ops by trial", worst_first)
    page.reload()
    expect(sorted_by).to_have_attribute("aria-sort", "ascending")
    expect_names(frame, "Ops by trial", worst_first)
    frame.get_by_role("button", name="Do not compare trial-003").click()
    expect(usual).to_have_attribute("aria-sort", "descending")
    expect(frame.get_by_role("combobox", name="Order")).to_have_value("largest")


def test_ops_whose_config_changed(server: Server, page: sync_api.Page, diagnoses: Diagnoses) -> None:
    frame = open_tab(page, server, view="trials", compare=["trial-001", "trial-003"])
    base, other = (diagnoses[run].ops for run in ("trial-001", "trial-003"))
    changed = [op for i, op in enumerate(OPS) if any(base[c][i] != other[c][i] for c in CONFIG)]
    assert changed == ["/conv1/Conv", "/conv2/Conv", "/fc/Gemm"]
    frame.get_by_label(f"only ops whose config changed ({len(changed)})").check()
    by = {op: float(other["added_sqnr_db"][OPS.index(op)] - base["added_sqnr_db"][OPS.index(op)]) for op in changed}
    expect_names(frame, "Ops by trial", sorted(by, key=lambda op: -abs(by[op])))
    for op in changed:
        expect(shown(frame, op, "trial-003")).to_contain_text("weights → per channel")
        expect(shown(frame, op, "trial-003")).to_have_attribute("title", re.compile("weights per tensor → per channel"))
        expect(shown(frame, op, "Largest difference")).to_have_text(signed(by[op]))
    frame.get_by_role("checkbox", name="Compare trial-002").check()
    expect(frame.get_by_label("only ops whose config changed (4)")).to_be_checked()
    expect(shown(frame, "/conv1/Conv", "Largest difference")).to_have_text("in fp32")
    expect(shown(frame, "/conv1/Conv", "trial-002")).to_have_text(re.compile("none$"))
    kept = re.compile("^kept in fp32: no error is added here")
    expect(shown(frame, "/conv1/Conv", "trial-002")).to_have_attribute("title", kept)
    frame.get_by_role("rowheader", name="/conv2/Conv", exact=True).click()
    expect(drawer(frame, "/conv2/Conv").get_by_role("img", name="Activation histogram")).to_be_visible()


def test_a_copied_link_opens_the_same_comparison(server: Server, page: sync_api.Page, diagnoses: Diagnoses) -> None:
    runs = ["trial-003", "trial-001"]
    frame = open_tab(page, server, view="trials", compare=runs)
    frame.get_by_label("difference against the base").check()
    frame.get_by_role("searchbox", name="Filter ops").fill("conv")
    frame.get_by_role("combobox", name="Metric").select_option("total_sqnr_db")
    base, total = (diagnoses[run].ops["total_sqnr_db"][2] for run in runs)
    value = re.compile(re.escape(signed(total - base)) + "$")
    expect(shown(frame, "/conv2/Conv", "trial-001")).to_contain_text(value)
    other = page.context.new_page()
    wrong = watch(other)
    other.goto(press_copy(page, frame.get_by_role("button", name="Copy link")))
    again = other.frame_locator("iframe")
    expect(shown(again, "/conv2/Conv", "trial-001")).to_contain_text(value)
    expect(again.get_by_role("list", name="Compared runs").locator("strong")).to_have_text(runs)
    assert (
        names(again, "Ops by trial")
        == names(frame, "Ops by trial")
        == ["/conv2/Conv", "/conv1/Conv", "/conv1/Relu", "/conv2/Relu"]
    )
    assert wrong == []


def test_charts(server: Server, page: sync_api.Page) -> None:
    frame = open_tab(page, server, view="trials", compare=["trial-001", "trial-005"])
    tradeoff = frame.get_by_role("img", name="Accuracy against latency_ms")
    front = ["trial-001", "trial-003", "trial-002", "fp32"]  # fp32 is better than trial-005 and faster
    expect(tradeoff.locator("title").first).to_have_text(f"6 trials; on the Pareto front: {', '.join(front)}")
    dots = frame.get_by_role("group", name="Runs in Accuracy against latency_ms").get_by_role("button")
    for run, accuracy in ACCURACY.items():
        told = f"{run}: accuracy {accuracy:.4f}, Latency {LATENCY_MS[run]:g} ms"
        dot = dots.filter(has=frame.locator(f"xpath=self::*[starts-with(@aria-label, '{run}')]"))
        expect(dot).to_have_accessible_name(told + (", on the Pareto front" if run in front else ""))
    expect(tradeoff.locator(".trials-dot.compared")).to_have_count(2)
    for level in ("baseline 0.9700", "target 0.9600"):
        expect(tradeoff.get_by_text(level)).to_be_visible()
    frame.get_by_role("combobox", name="Which Latency is better").select_option("higher is better")
    expect(tradeoff.locator("title").first).to_have_text("6 trials; on the Pareto front: trial-005, fp32")
    progress = frame.get_by_role("img", name="Progress over trials")
    expect(progress.locator("title").first).to_have_text("6 trials; the best is 0.9680")
    steps = frame.get_by_role("group", name="Runs in Progress over trials").get_by_role("button")
    expect(steps.nth(3)).to_have_accessible_name("trial-004: accuracy 0.9300, best so far 0.9650")
    expect(steps.nth(4)).to_have_accessible_name("trial-005: accuracy 0.9680, the best yet")
    steps.nth(4).click()
    expect(frame.get_by_role("option", name=re.compile("trial-005"))).to_have_attribute("aria-selected", "true")
