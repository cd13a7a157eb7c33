"""A report in one file: opened from disk with the network off, it is the page that TensorBoard shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import inc_tb
from inc_tb.cli import main
from tests import made_runs
from tests.browser.chromium import sync_api, watch
from tests.browser.tab import drawer, names, press_copy
from tests.example_run import OPS, make_trial
from tests.waiting import PATIENCE_S, until

expect = sync_api.expect
pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def report(diagnosis: inc_tb.Diagnosis, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two trials: the first with a profile, the second with two steps."""
    folder = tmp_path_factory.mktemp("report")
    for i, accuracy in enumerate((0.9, 0.965), start=1):
        with inc_tb.SummaryWriter(folder / "logs" / f"trial-{i:03}") as writer:
            writer.add_diagnosis(diagnosis)
            writer.add_trial(make_trial(f"trial-{i:03}", accuracy))
            if i == 1:
                writer.add_profile(made_runs.make_profile(diagnosis.graph))
            else:
                writer.add_diagnosis(diagnosis, step=5)
    path = folder / "report.html"
    with pytest.raises(SystemExit) as ended:
        main(["report", str(folder / "logs"), "-o", str(path)])
    assert ended.value.code == 0
    return path


@pytest.fixture
def page(browser: sync_api.Browser) -> Iterator[sync_api.Page]:
    """Of a browser without a network; fails on any error on the console, and on any request but for the file."""
    context = browser.new_context(viewport={"width": 1500, "height": 1000}, offline=True)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    context.set_default_timeout(1000 * PATIENCE_S)
    found = context.new_page()
    wrong = watch(found, origin="file://")
    asked: list[str] = []
    found.on("request", lambda request: asked.append(request.url))
    yield found
    address = found.url.partition("#")[0]
    context.close()
    assert wrong == []
    opened = [url.partition("#")[0] for url in asked if not url.startswith("blob:null/")]  # the worker, from memory
    assert set(opened) == {address}


def open_report(page: sync_api.Page, report: Path, link: str = "") -> sync_api.FrameLocator:
    """What the helpers for TensorBoard's frame take: here the page is all there is."""
    page.goto(f"{report.as_uri()}{link}")
    page.get_by_role("tablist", name="Views").wait_for()
    return page  # type: ignore[return-value]


def test_every_view(page: sync_api.Page, report: Path, diagnosis: inc_tb.Diagnosis) -> None:
    open_report(page, report)
    expect(page).to_have_title("logs: quantization")
    tabs = page.get_by_role("tablist", name="Views").get_by_role("tab")
    titles = tabs.all_inner_texts()
    assert {"Ops", "Suggestions", "Trials", "Profile", "Graph"} <= set(titles)
    for title in titles:
        page.get_by_role("tab", name=title, exact=True).click()
        expect(page.get_by_role("tabpanel", name=title)).to_be_visible()
        expect(page.get_by_text("Loading", exact=False)).to_have_count(0)
        expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.get_by_role("group", name="Model graph").locator("button.graph-node")).to_have_count(9)
    page.get_by_role("tab", name="Trials").click()
    expect(page.get_by_role("grid", name="Trials").get_by_role("rowheader")).to_have_count(3)  # and fp32
    page.get_by_role("tab", name="Profile").click()
    expect(page.get_by_role("img", name="Timeline")).to_be_visible()
    page.get_by_role("tab", name="Suggestions").click()
    expect(page.get_by_role("article")).to_have_count(len(diagnosis.suggestions))


def test_an_op_with_its_histograms(page: sync_api.Page, report: Path) -> None:
    frame = open_report(page, report, "#quantization&p.quantization.view=ops")
    page.get_by_role("rowheader", name="/conv1/Conv", exact=True).click()
    region = drawer(frame, "/conv1/Conv")
    for picture in ("Activation histogram", "Weight histogram", "Channel ranges"):
        expect(region.get_by_role("img", name=picture, exact=True)).to_be_visible()
    page.reload()  # the link holds what was open
    expect(region.get_by_role("img", name="Weight histogram", exact=True)).to_be_visible()


def test_another_run_and_an_earlier_step(page: sync_api.Page, report: Path) -> None:
    frame = open_report(
        page, report, "#quantization&p.quantization.view=ops&p.quantization.run=trial-002&p.quantization.step=0"
    )
    expect(page.get_by_role("slider", name="Step")).to_have_attribute("aria-valuetext", "step 0")
    until(lambda: sorted(names(frame)) == sorted(OPS), lambda: names(frame))


def test_links_lead_back_into_the_file(page: sync_api.Page, report: Path) -> None:
    compared = "#quantization&p.quantization.view=trials&p.quantization.compare=trial-001%7Ctrial-002"
    open_report(page, report, compared)
    link = press_copy(page, page.get_by_role("button", name="Copy link").first)
    assert link.startswith(f"{report.as_uri()}#quantization&")
    assert "p.quantization.compare=trial-001%7Ctrial-002" in link


def test_dark_where_the_system_is(page: sync_api.Page, report: Path) -> None:
    page.emulate_media(color_scheme="dark")
    open_report(page, report)
    expect(page.locator("html.dark")).to_have_count(1)
    page.emulate_media(color_scheme="light")
    expect(page.locator("html.dark")).to_have_count(0)
