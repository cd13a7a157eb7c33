"""What axe-core, the usual checker, says about every view: nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary

import inc_tb
from inc_tb.store import summaries
from inc_tb.store.eventfile import EventFile
from tests.browser.chromium import sync_api
from tests.browser.tab import drawer, open_tab, violations
from tests.example_run import make_diagnosis, make_trial
from tests.made_runs import make_profile
from tests.tensorboards import Server, serve

expect = sync_api.expect
pytestmark = pytest.mark.browser
each_theme = pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])

OP = "/conv2/Conv"
READY = {
    "Overview": "[role=img][aria-label='Values of the worst op']",
    "Ops": f"[role=rowheader]:has-text('{OP}')",
    "Suggestions": "article svg[role=img]",
    "Trials": "[role=grid][aria-label='Ops by trial'] [role=rowheader]",
    "Samples": "table[aria-label='What ops add to samples'] tbody td",
    "Profile": "[role=grid][aria-label='Time per op'] [role=rowheader]",
    "Graph": "button.graph-node",
}
"""What each view shows when it has all that it needs."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`bare` has nothing but a trial."""
    logdir = tmp_path_factory.mktemp("logdir")
    diagnosis = make_diagnosis(tmp_path_factory.mktemp("models"))
    for name, accuracy in (("trial-001", 0.91), ("trial-002", 0.96), ("bare", 0.9)):
        with inc_tb.SummaryWriter(logdir / name) as writer:
            if name != "bare":
                writer.add_diagnosis(diagnosis)
                writer.add_profile(make_profile(diagnosis.graph))
            writer.add_trial(make_trial(name, accuracy))
    with serve(logdir) as found:
        found.wait_for_records(dict.fromkeys(["trial-001", "trial-002", "bare"], "trial"))
        yield found


@pytest.fixture(scope="module")
def server_of_others(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A log directory that holds a curve of somebody else."""
    logdir = tmp_path_factory.mktemp("logdir")
    file = EventFile(logdir / "training")
    file.write(Event(wall_time=time.time(), step=0, summary=Summary(value=[summaries.scalar("loss", 0.5)])))
    file.close()
    with serve(logdir) as found:
        yield found


def show(frame: sync_api.FrameLocator, view: str) -> None:
    frame.get_by_role("tab", name=view, exact=True).click()
    expect(frame.locator(READY[view]).first).to_be_visible()


def assert_nothing(wrong: dict[str, list[str]]) -> None:
    assert [f"{where}: {what}" for where, found in wrong.items() for what in found] == []


@each_theme
def test_every_view(server: Server, page: sync_api.Page, dark: bool) -> None:
    frame = open_tab(page, server, dark=dark, run="trial-001", compare=["trial-001", "trial-002"])
    wrong: dict[str, list[str]] = {}
    for view in READY:
        show(frame, view)
        if view == "Suggestions":
            frame.get_by_role("button", name="Combine all").click()
        if view == "Trials":
            frame.get_by_role("button", name="1 op in fp32 in trial-001").click()
        wrong[view] = violations(page)
    assert_nothing(wrong)


@each_theme
def test_the_detail_of_an_op(server: Server, page: sync_api.Page, dark: bool) -> None:
    frame = open_tab(page, server, dark=dark, run="trial-001", op=OP, compare=["trial-001", "trial-002"])
    detail = drawer(frame, OP)
    detail.get_by_text("Error histogram").first.click()
    expect(detail.get_by_role("img", name="Activation error histogram")).to_be_visible()
    wrong: dict[str, list[str]] = {}
    for view in READY:
        show(frame, view)
        expect(detail.get_by_role("img", name="Activation histogram")).to_be_visible()
        wrong[view] = violations(page)
    assert_nothing(wrong)


@each_theme
def test_what_opens_on_demand(server: Server, page: sync_api.Page, dark: bool) -> None:
    frame = open_tab(page, server, dark=dark, view="ops", run="trial-001")
    expect(frame.locator(READY["Ops"])).to_be_visible()
    wrong: dict[str, list[str]] = {}
    for menu, shown in (("Columns", "Find columns"), ("Type", "Gemm"), ("Verdict", "bad")):
        frame.get_by_role("button", name=menu, exact=menu != "Columns").click()
        expect(frame.get_by_label(shown, exact=True).first).to_be_visible()
        wrong[menu] = violations(page)
        page.keyboard.press("Escape")
        expect(frame.get_by_label(shown, exact=True)).to_have_count(0)
    show(frame, "Graph")
    frame.get_by_role("searchbox", name="Find op").fill("conv")
    expect(frame.get_by_role("listbox", name="Found ops").get_by_role("option")).to_have_count(4)
    wrong["Find op"] = violations(page)
    assert_nothing(wrong)


@each_theme
def test_views_without_data(server: Server, page: sync_api.Page, dark: bool) -> None:
    frame = open_tab(page, server, dark=dark, run="bare")
    wrong: dict[str, list[str]] = {}
    for view in READY:
        if view == "Samples":  # no tab where there is none
            expect(frame.get_by_role("tab", name=view, exact=True)).to_have_count(0)
            continue
        frame.get_by_role("tab", name=view, exact=True).click()
        if view != "Trials":
            expect(frame.get_by_role("heading", name="bare holds no ")).to_be_visible()
        wrong[view] = violations(page)
    assert_nothing(wrong)


@each_theme
def test_nothing_logged(server_of_others: Server, page: sync_api.Page, dark: bool) -> None:
    frame = open_tab(page, server_of_others, dark=dark, empty=True)
    expect(frame.get_by_role("heading", name="No quantization runs here yet")).to_be_visible()
    assert violations(page) == []
