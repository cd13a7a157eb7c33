"""The view that opens, on runs that lack one thing or another; tests/browser/test_tasks.py has it of a run with all."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

import inc_tb
from tests.browser.chromium import sync_api
from tests.browser.tab import drawer, open_tab, press_copy
from tests.example_run import make_diagnosis, make_trial
from tests.tensorboards import Server, serve

expect = sync_api.expect
pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def server(diagnosis: inc_tb.Diagnosis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`diagnosed` was neither evaluated nor probed nor timed; `healthy` lost nothing."""
    logdir = tmp_path_factory.mktemp("logdir")
    healthy = make_diagnosis(tmp_path_factory.mktemp("healthy"), outlier=1.0)
    for name, logged, accuracy in (("diagnosed", diagnosis, None), ("healthy", healthy, 0.97)):
        with inc_tb.SummaryWriter(logdir / name) as writer:
            writer.add_diagnosis(logged)
            if accuracy is not None:
                writer.add_trial(make_trial(name, accuracy))
    with serve(logdir) as found:
        found.wait_for_records({"diagnosed": "graph", "healthy": "trial"})
        yield found


def part(frame: sync_api.FrameLocator, name: str) -> sync_api.Locator:
    return frame.get_by_role("region", name="Overview", exact=True).get_by_role("region", name=name, exact=True)


def test_a_healthy_model_says_so(server: Server, page: sync_api.Page) -> None:
    frame = open_tab(page, server, run="healthy")
    overview = frame.get_by_role("region", name="Overview", exact=True)
    expect(overview.get_by_role("heading").first).to_have_text(
        "Meets its target: accuracy 0.9700, at least 0.9600 was asked for."
    )
    expect(overview).to_contain_text("Healthy: no op adds enough error to be worth a change.")
    expect(part(frame, "Do this first")).to_contain_text("Nothing: no op adds enough error")
    worst = overview.get_by_role("list", name="Worst ops").get_by_role("listitem")
    assert {tag.strip() for tag in worst.locator(".tag").all_inner_texts()} == {"normal"}


def test_what_was_not_measured_is_told_with_the_command_that_does(
    server: Server, page: sync_api.Page, diagnosis: inc_tb.Diagnosis
) -> None:
    frame = open_tab(page, server, run="diagnosed")
    overview = frame.get_by_role("region", name="Overview", exact=True)
    (last,) = (row for row, name in enumerate(diagnosis.ops["name"]) if name == "/fc/Gemm")
    total = f"{diagnosis.ops['total_sqnr_db'][last]:.1f} dB"
    expect(overview.get_by_role("heading").first).to_have_text(
        f"The output is off: {total} signal to noise at /fc/Gemm, over 25 is usual."
    )
    cure = part(frame, "Do this first")
    expect(cure).to_contain_text("removes 99.9 % of the added noise estimated")
    expect(cure).to_contain_text("What it gives at the output was not measured.")
    command = "inc-tb {} fp32.onnx int8.onnx --data samples.npz --logdir LOGDIR --run diagnosed"
    probe = press_copy(page, cure.get_by_role("button", name="Copy the command that measures it"))
    assert probe == command.format("diagnose") + " --probe 60"
    time = part(frame, "Time of a run").get_by_role("button", name="Copy the command that measures it")
    assert press_copy(page, time) == command.format("profile")


def test_everything_leads_on(server: Server, page: sync_api.Page) -> None:
    frame = open_tab(page, server, run="diagnosed")
    frame.get_by_role("list", name="Worst ops").get_by_role("button", name="/conv2/Conv").click()
    expect(drawer(frame, "/conv2/Conv")).to_be_visible()
    frame.get_by_role("button", name="Close").click()
    frame.get_by_role("img", name="The model, op by op").click(position={"x": 5, "y": 5})
    expect(drawer(frame, "/conv1/Conv")).to_be_visible()
    for region, link, view in (
        ("Do this first", "the reasons", "Suggestions"), ("Where in the model", "all ops", "Ops"),
        ("Trials", "all trials", "Trials"), ("Time of a run", "time per op", "Profile"),
    ):  # fmt: skip
        frame.get_by_role("tab", name="Overview").click()
        part(frame, region).get_by_role("button", name=re.compile(f"^{link}")).click()
        expect(frame.get_by_role("tab", name=view, exact=True)).to_have_attribute("aria-selected", "true")


def test_one_tool_for_the_whole_page_is_remembered(server: Server, page: sync_api.Page) -> None:
    frame = open_tab(page, server, run="diagnosed")
    tools = part(frame, "Do this first").get_by_role("combobox", name="Framework")
    others = tools.locator("optgroup[label='Other frameworks'] option")
    expect(others.filter(has_text="PyTorch FX: qconfig mapping")).to_have_count(1)
    expect(tools.get_by_role("option").first).to_have_text("ONNX Runtime: nodes_to_exclude")
    tools.select_option(label="NNCF: ignored scope")
    page.reload()
    frame.get_by_role("tab", name="Suggestions").click()
    expect(frame.get_by_role("article").first.get_by_role("group", name="Config")).to_contain_text("nncf.IgnoredScope")
