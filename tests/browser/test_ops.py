"""The table of ops and the detail of one, in a real TensorBoard with real logs."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import inc_tb
from tests.browser.chromium import sync_api
from tests.browser.tab import cell, head, names, open_tab, press_copy
from tests.example_run import OPS, log_run
from tests.tensorboards import Server, serve

expect = sync_api.expect
pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def server(diagnosis: inc_tb.Diagnosis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    logdir = tmp_path_factory.mktemp("logdir")
    for name, accuracy in (("trial-001", 0.91), ("trial-002", 0.96)):
        log_run(logdir / name, diagnosis, accuracy)
    with serve(logdir) as found:
        found.wait_for_trials(2)
        yield found


def grid(frame: sync_api.FrameLocator) -> sync_api.Locator:
    return frame.get_by_role("grid", name="Ops", exact=True)


def worst_first(diagnosis: inc_tb.Diagnosis, column: str) -> list[str]:
    return [str(diagnosis.ops["name"][row]) for row in diagnosis.worst(sort=column)]


def test_worst_ops_come_first(server: Server, page: sync_api.Page, diagnosis: inc_tb.Diagnosis) -> None:
    frame = open_tab(page, server, view="ops")
    expect(frame.get_by_role("rowheader", name="/conv2/Conv", exact=True)).to_be_visible()
    assert names(frame) == worst_first(diagnosis, "added_sqnr_db")
    expect(cell(frame, "Ops", "/conv2/Conv", "added here")).to_have_text(f"{diagnosis.ops['added_sqnr_db'][2]:.1f}")
    expect(cell(frame, "Ops", "/conv2/Conv", "verdict")).to_have_text("bad")
    reason = cell(frame, "Ops", "/conv2/Conv", "reason")
    expect(reason).to_have_text("outlier channels")
    expect(reason).to_have_attribute("title", re.compile("^1 of 4 channels is .* between /conv1/Conv and /conv2/Conv;"))
    expect(cell(frame, "Ops", "/conv1/Relu", "added here")).to_have_attribute("title", re.compile("compared there"))


def test_sort_by_one_and_by_several(server: Server, page: sync_api.Page, diagnosis: inc_tb.Diagnosis) -> None:
    frame = open_tab(page, server, view="ops")
    total = head(frame, "Ops", "total")
    expect(head(frame, "Ops", "added here")).to_have_attribute("aria-sort", "ascending")
    total.get_by_role("button").click()
    expect(total).to_have_attribute("aria-sort", "ascending")
    assert names(frame) == worst_first(diagnosis, "total_sqnr_db")
    total.get_by_role("button").click()
    expect(total).to_have_attribute("aria-sort", "descending")
    head(frame, "Ops", "type").get_by_role("button").click()
    head(frame, "Ops", "op").get_by_role("button").click(modifiers=["Shift"])
    assert names(frame) == [name for _, name in sorted(zip(diagnosis.ops["type"], OPS, strict=True))]
    assert "sort=type%2Cname" in page.url


def test_filter_by_text_pattern_type_and_verdict(server: Server, page: sync_api.Page) -> None:
    frame = open_tab(page, server, view="ops")
    box = frame.get_by_role("searchbox", name="Filter ops")
    box.fill("relu 2")
    expect(grid(frame).get_by_role("rowheader")).to_have_text(["/conv2/Relu"])
    frame.get_by_label("regex").check()
    box.fill("^/conv[12]/Conv$")
    expect(grid(frame).get_by_role("rowheader")).to_have_text(["/conv2/Conv", "/conv1/Conv"])
    box.fill("(")
    expect(frame.get_by_role("alert")).to_contain_text("Unterminated group")
    box.fill("nothing is called so")
    expect(frame.get_by_text("No op passes the filter.")).to_be_visible()
    box.fill("")
    frame.get_by_role("button", name="Type", exact=True).click()
    frame.get_by_role("checkbox", name="Gemm").check()
    expect(grid(frame).get_by_role("rowheader")).to_have_text(["/fc/Gemm"])
    frame.get_by_role("checkbox", name="Gemm").uncheck()
    page.keyboard.press("Escape")
    frame.get_by_role("button", name="Verdict", exact=True).click()
    frame.get_by_role("checkbox", name="bad").check()
    expect(grid(frame).get_by_role("rowheader")).to_have_count(4)
    expect(frame.get_by_text("4 of 7 ops")).to_be_visible()


def test_columns_are_chosen_ordered_pinned_and_remembered(server: Server, page: sync_api.Page) -> None:
    frame = open_tab(page, server, view="ops")
    frame.get_by_role("button", name="Columns").click()
    frame.get_by_role("searchbox", name="Find columns").fill("kurtosis")
    frame.get_by_role("checkbox", name="output kurtosis").click()
    for _ in range(14):
        frame.get_by_role("button", name="Move output kurtosis up").click()
    frame.get_by_role("button", name="Pin output kurtosis and").click()
    frame.get_by_role("list", name="Shown columns").get_by_role("checkbox", name="type", exact=True).click()
    page.reload()
    heads = grid(frame).get_by_role("columnheader")
    expect(heads.nth(0)).to_contain_text("op")
    expect(heads.nth(1)).to_contain_text("output kurtosis")
    expect(heads.nth(1)).to_have_css("position", "sticky")
    expect(head(frame, "Ops", "type")).to_have_count(0)


def test_headers_explain_themselves(server: Server, page: sync_api.Page) -> None:
    frame = open_tab(page, server, view="ops")
    for column in grid(frame).get_by_role("columnheader").all():
        assert column.get_attribute("aria-description")
    head(frame, "Ops", "added here").hover()
    told = frame.get_by_role("tooltip")
    expect(told).to_contain_text("normal: 25.0 dB or more")
    expect(told).to_contain_text("when the op gets the correct fp32 inputs")


def test_colors_follow_the_normal_range(server: Server, page: sync_api.Page) -> None:
    frame = open_tab(page, server, view="ops")
    expect(frame.get_by_text("normal ≥ 25.0 dB")).to_be_visible()
    color = "cell => getComputedStyle(cell).getPropertyValue('--cell')"
    assert "hsl" in cell(frame, "Ops", "/conv2/Conv", "added here").evaluate(color)
    assert cell(frame, "Ops", "/fc/Gemm", "added here").evaluate(color) == "transparent"


def test_the_line_shows_where_the_error_jumps(server: Server, page: sync_api.Page) -> None:
    frame = open_tab(page, server, view="ops")
    expect(frame.get_by_role("img", name="Error along the graph")).to_be_visible()
    frame.get_by_role("button").filter(has_text=re.compile("^/conv2/Conv.* → .* dB$")).click()
    expect(frame.get_by_role("region", name="/conv2/Conv", exact=True)).to_be_visible()


NOTHING_BEFORE = "nothing that is compared reaches this op"
LINES = {
    # Nobody compared what the first op reads, and it leaves 3 dB by itself.
    "first": ([NOTHING_BEFORE, 3.0, 2.9], [3.0, 2.9, 2.8], [3.0, 60.0, 60.0],
              "Total error begins at/conv1/Conv ? → 3 dB"),
    "healthy": ([60.0, 40.0, 40.0], [40.0, 40.0, 40.0], [41.0, 50.0, 50.0],
                "Normal wherever it was compared: 25 dB or more"),
    "slowly": ([28.0, 23.0, 19.0], [23.0, 19.0, 15.0], [24.0, 21.0, 17.0],
               "Total error is largest at/conv2/Conv 15 dBmost is added at/conv2/Conv 17 dB"),
}  # fmt: skip


@pytest.fixture(scope="module")
def lines(diagnosis: inc_tb.Diagnosis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    logdir = tmp_path_factory.mktemp("lines")
    for name, (arrived, total, added, _) in LINES.items():
        columns = {"arrived_sqnr_db": arrived, "total_sqnr_db": total, "added_sqnr_db": added}
        rest = ["not compared"] * (len(OPS) - 3)
        ops = diagnosis.ops.replaced({column: [*values, *rest] for column, values in columns.items()})
        log_run(logdir / name, replace(diagnosis, ops=ops))
    with serve(logdir) as found:
        found.wait_for_trials(len(LINES))
        yield found


@pytest.mark.parametrize("name", LINES)
def test_what_the_line_says_is_true_of_the_whole_path(lines: Server, page: sync_api.Page, name: str) -> None:
    frame = open_tab(page, lines, view="ops", run=name, dark=name == "slowly")
    expect(frame.locator(".jumps")).to_have_text(LINES[name][-1])


def test_keyboard(server: Server, page: sync_api.Page) -> None:
    frame = open_tab(page, server, view="ops")
    grid(frame).focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(frame.get_by_role("region", name="/conv1/Conv", exact=True)).to_be_visible()
    page.keyboard.press("ArrowUp")
    expect(frame.get_by_role("region", name="/conv2/Conv", exact=True)).to_be_visible()
    page.keyboard.press("Escape")
    expect(frame.get_by_role("region", name="/conv2/Conv", exact=True)).to_have_count(0)
    page.keyboard.press("/")
    expect(frame.get_by_role("searchbox", name="Filter ops")).to_be_focused()


def test_copy_a_selection_and_download_all(server: Server, page: sync_api.Page, diagnosis: inc_tb.Diagnosis) -> None:
    frame = open_tab(page, server, view="ops")
    grid(frame).focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    page.keyboard.press("Shift+ArrowDown")
    expect(frame.get_by_text("2 selected")).to_be_visible()
    page.keyboard.press("Control+c")
    page.wait_for_function("async () => (await navigator.clipboard.readText()).includes('/conv1/Conv')")
    rows = list(csv.DictReader(io.StringIO(page.evaluate("navigator.clipboard.readText()"))))
    assert [row["name"] for row in rows] == ["/conv2/Conv", "/conv1/Conv"]
    with page.expect_download() as download:
        frame.get_by_role("button", name="Download CSV").click()
    everything = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text(encoding="utf-8"))))
    assert [row["name"] for row in everything] == OPS
    assert set(everything[0]) == set(diagnosis.ops)
    assert float(everything[2]["added_sqnr_db"]) == pytest.approx(diagnosis.ops["added_sqnr_db"][2], rel=1e-6)
    assert everything[1]["added_sqnr_db"] == ""


def test_detail(server: Server, page: sync_api.Page, diagnosis: inc_tb.Diagnosis) -> None:
    frame = open_tab(page, server, view="ops")
    frame.get_by_role("rowheader", name="/conv1/Conv", exact=True).click()
    drawer = frame.get_by_role("region", name="/conv1/Conv", exact=True)
    for name in ("Activation histogram", "Weight histogram", "Channel ranges", "Weight channel ranges"):
        expect(drawer.get_by_role("img", name=name, exact=True)).to_be_visible()
    expect(drawer).to_contain_text("1 outlier of 4 channels")
    expect(drawer.get_by_role("img", name="Channel ranges", exact=True).locator(".outlier")).to_have_count(1)
    drawer.get_by_text("Error histogram").first.click()
    expect(drawer.get_by_role("img", name="Activation error histogram")).to_be_visible()
    histogram = next(row for row in diagnosis.histograms if (row.op, row.role) == ("/conv1/Conv", "output"))
    assert histogram.limits is not None
    expect(drawer).to_contain_text(f"in steps of {float(f'{histogram.step:.4g}'):g}")
    expect(drawer.get_by_role("img", name="Activation histogram").locator(".d-limit")).to_have_count(2)
    expect(drawer.get_by_role("img", name="Activation histogram").locator(".d-grid")).to_have_count(256)
    before = drawer.get_by_role("img", name="Activation histogram").locator(".d-fp32").get_attribute("d")
    drawer.get_by_label("log values").first.uncheck()
    after = drawer.get_by_role("img", name="Activation histogram").locator(".d-fp32").get_attribute("d")
    assert before != after
    for text in ("added here", "arrived", "int8", "asymmetric", "of the range that calibration chose"):
        expect(drawer).to_contain_text(text)
    expect(drawer).not_to_contain_text("has not run")  # nothing of a row that is empty
    todo = drawer.get_by_role("region", name="What to do")
    expect(todo).to_contain_text("Keep conv1/Conv and conv2/Conv in fp32")
    assert "nodes_to_exclude" in press_copy(page, todo.get_by_role("button", name="Copy config"))
    others = drawer.get_by_role("region", name="The same op in the other trials")
    expect(others.get_by_role("row").filter(has_text="trial-002")).to_contain_text(
        f"{diagnosis.ops['added_sqnr_db'][0]:.1f}"
    )
    edge = drawer.get_by_role("region", name="Edge")
    expect(edge).to_contain_text("reads from the model's input")
    edge.get_by_role("button", name="/conv1/Relu").click()
    relu = frame.get_by_role("region", name="/conv1/Relu", exact=True)
    expect(relu.get_by_role("region", name="Edge").get_by_role("button")).to_have_text(["/conv1/Conv", "/conv2/Conv"])
    assert "op=%2Fconv1%2FRelu" in page.url


def test_a_link_opens_what_it_says(server: Server, page: sync_api.Page) -> None:
    link = {"run": "trial-002", "op": "/fc/Gemm", "filter": "fc", "sort": "-name"}
    frame = open_tab(page, server, view="ops", **link)
    expect(frame.get_by_role("region", name="/fc/Gemm", exact=True)).to_be_visible()
    expect(frame.get_by_role("option", name=re.compile("trial-002"))).to_have_attribute("aria-selected", "true")
    expect(frame.get_by_role("searchbox", name="Filter ops")).to_have_value("fc")
    expect(head(frame, "Ops", "op")).to_have_attribute("aria-sort", "descending")


def test_choosing_a_run(server: Server, page: sync_api.Page) -> None:
    frame = open_tab(page, server, view="ops")
    frame.get_by_role("listbox", name="Runs").focus()
    page.keyboard.press("ArrowDown")
    expect(frame.get_by_role("option", name=re.compile("trial-002"))).to_have_attribute("aria-selected", "true")
    frame.get_by_role("option", name=re.compile("trial-001")).click()
    expect(frame.get_by_role("option", name=re.compile("trial-001"))).to_have_attribute("aria-selected", "true")


def test_on_a_narrow_screen(server: Server, page: sync_api.Page) -> None:
    """Nothing sticks out at 900 px, and the drawer lies over the table instead of squeezing it."""
    page.set_viewport_size({"width": 900, "height": 700})
    frame = open_tab(page, server, view="ops", op="/conv1/Conv")
    expect(frame.get_by_role("img", name="Channel ranges", exact=True)).to_be_visible()
    (inner,) = [found for found in page.frames if "plugin_entry" in found.url]
    assert inner.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert inner.evaluate("document.querySelector('[role=grid]').clientWidth") > 600
    frame.get_by_role("button", name="Close").click()
    for view in ("Suggestions", "Trials", "Profile", "Graph"):
        frame.get_by_role("tab", name=view).click()
        expect(frame.get_by_role("tabpanel", name=view)).to_be_visible()
        assert inner.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("width", [1340, 1440])
def test_rows_stay_where_they_are(server: Server, page: sync_api.Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 864})
    frame = open_tab(page, server, view="ops")
    row = frame.get_by_role("rowheader", name="/conv2/Conv", exact=True)
    expect(row).to_be_visible()
    before = row.bounding_box()
    assert before is not None
    row.click()
    expect(frame.get_by_role("region", name="/conv2/Conv", exact=True)).to_be_visible()
    opened = row.bounding_box()
    assert opened is not None
    assert opened["y"] == before["y"]
    frame.get_by_role("tabpanel").get_by_role("button", name="Copy", exact=True).click()
    expect(frame.get_by_text("Copied", exact=True)).to_be_visible()
    assert row.bounding_box() == opened


def test_copying_over_plain_http(server: Server, page: sync_api.Page) -> None:
    """Browsers have navigator.clipboard on localhost and over HTTPS only."""
    frame = open_tab(page, server, view="ops")
    (inner,) = [found for found in page.frames if "plugin_entry" in found.url]
    inner.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.evaluate("navigator.clipboard.writeText('nothing yet')")
    grid(frame).focus()
    page.keyboard.press("Control+c")
    page.wait_for_function("async () => (await navigator.clipboard.readText()).startsWith('name,type,')")
    expect(grid(frame)).to_be_focused()


def test_going_back_leads_to_the_view_before(server: Server, page: sync_api.Page) -> None:
    frame = open_tab(page, server, view="ops")
    head(frame, "Ops", "total").get_by_role("button").click()
    for view in ("Suggestions", "Trials"):
        frame.get_by_role("tab", name=view).click()
        expect(frame.get_by_role("tabpanel", name=view)).to_be_visible()
    page.go_back()
    expect(frame.get_by_role("tabpanel", name="Suggestions")).to_be_visible()
    page.go_back()
    expect(head(frame, "Ops", "total")).to_have_attribute("aria-sort", "ascending")
    page.go_forward()
    expect(frame.get_by_role("tabpanel", name="Suggestions")).to_be_visible()
