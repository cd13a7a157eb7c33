"""Time per op and the timeline, in a real TensorBoard with real logs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import inc_tb
from inc_tb.records import ProfileRow
from tests.browser.chromium import sync_api
from tests.browser.tab import cell, drawer, expect_names, head, names, open_tab
from tests.made_runs import make_diagnosis, make_profile
from tests.tensorboards import Server, serve

expect = sync_api.expect
pytestmark = pytest.mark.browser

DIAGNOSIS = make_diagnosis(30)
ROWS = make_profile(DIAGNOSIS.graph)
META = {"runs": 50, "threads": 2, "fp32_total_us": 30_000.0, "int8_total_us": 16_000.0}
REST = "outside of all ops"
OPS, TYPES = "Time per op", "Time per type"
GUTTER, LANE = 96, 28  # of the timeline's picture, in pixels: its names, and each of the four lanes


class Times(NamedTuple):
    fp32: float
    int8: float
    convert: float

    @property
    def total(self) -> float:
        return self.int8 + self.convert


def times_of(rows: list[ProfileRow]) -> Times:
    """Of several ops together."""
    return Times(*(sum(getattr(row, f"{what}_us") for row in rows) for what in ("fp32", "int8", "convert")))


PER_OP = {row.op or REST: times_of([row]) for row in ROWS}
PER_TYPE = {
    kind or REST: times_of([row for row in ROWS if row.type == kind]) for kind in dict.fromkeys(r.type for r in ROWS)
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    logdir = tmp_path_factory.mktemp("logdir")
    for name in ("timed", "sums", "untimed"):
        with inc_tb.SummaryWriter(logdir / name) as writer:
            writer.add_diagnosis(DIAGNOSIS)
            if name != "untimed":
                writer.add_profile(ROWS, meta=META if name == "timed" else {})
    with serve(logdir) as found:
        found.wait_for_records({"timed": "profile", "sums": "profile", "untimed": "graph"})
        yield found


def open_profile(page: sync_api.Page, server: Server, run: str = "timed") -> sync_api.FrameLocator:
    return open_tab(page, server, view="profile", run=run)


def written(us: float) -> str:
    return f"{us:.4g} µs" if us < 1000 else f"{us / 1000:.4g} ms"


def figure(frame: sync_api.FrameLocator, label: str) -> sync_api.Locator:
    figures = frame.locator("dl[aria-label='Whole model'] > div")
    return figures.filter(has=frame.locator(f"dt:text-is('{label}')")).locator("dd")


def slowest_first(found: dict[str, Times]) -> list[str]:
    return sorted(found, key=lambda name: -found[name].total)


def check_shares(frame: sync_api.FrameLocator, grid: str, found: dict[str, Times]) -> None:
    """Of the first rows, which are in sight."""
    everything = sum(times.total for times in found.values())
    so_far = 0.0
    for name in slowest_first(found)[:8]:
        so_far += found[name].total
        expect(cell(frame, grid, name, "share")).to_have_text(f"{100 * found[name].total / everything:.2f} %")
        expect(cell(frame, grid, name, "cumulative")).to_have_text(f"{100 * so_far / everything:.2f} %")
        expect(cell(frame, grid, name, "conversion")).to_have_text(
            written(found[name].convert) if found[name].convert else "–"
        )


def test_the_whole_model(server: Server, page: sync_api.Page) -> None:
    frame = open_profile(page, server)
    everything = times_of(ROWS)
    expect(figure(frame, "fp32")).to_have_text("30 ms")
    expect(figure(frame, "int8")).to_have_text("16 ms")
    expect(figure(frame, "speed-up")).to_have_text("1.875 × faster")
    expect(figure(frame, "conversion")).to_have_text(
        f"{100 * everything.convert / everything.total:.4g} % {written(everything.convert)}"
    )
    expect(figure(frame, REST)).to_have_text("140 µs fp32: 120 µs")
    expect(figure(frame, "measured over")).to_have_text("50 runs on 2 threads")
    told = frame.get_by_text(f"The rows add up to {written(everything.fp32)} in fp32 and {written(everything.total)}")
    expect(told).to_be_visible()
    frame.get_by_role("option", name="sums").click()
    expect(figure(frame, "fp32")).to_have_text(written(everything.fp32))
    expect(figure(frame, "speed-up")).to_have_text(f"{everything.fp32 / everything.total:.4g} × faster")
    expect(figure(frame, "measured over")).to_have_text("–")
    expect(told).to_have_count(0)


def test_time_per_op(server: Server, page: sync_api.Page) -> None:
    frame = open_profile(page, server)
    first, *_ = slowest_first(PER_OP)
    expect_names(frame, OPS, slowest_first(PER_OP)[:12])
    check_shares(frame, OPS, PER_OP)
    times = PER_OP[first]
    expect(cell(frame, OPS, first, "type")).to_have_text("MatMul")
    for model, us in (("fp32", times.fp32), ("int8", times.int8)):
        expect(cell(frame, OPS, first, model)).to_have_text(written(us))
        expect(cell(frame, OPS, first, model)).to_have_attribute(
            "title", f"median {written(us)}, p95 {written(1.2 * us)}"
        )
    expect(cell(frame, OPS, first, "speed-up")).to_have_text(f"{times.fp32 / times.total:.2f} ×")
    unclear = next(row.op for row in ROWS if row.differs is False)
    frame.get_by_role("searchbox", name="Filter times").fill(unclear)
    expect(cell(frame, OPS, unclear, "speed-up")).to_have_text("inside the noise")
    added = DIAGNOSIS.ops["added_sqnr_db"][list(DIAGNOSIS.ops["name"]).index(unclear)]
    expect(cell(frame, OPS, unclear, "added SQNR")).to_have_text(f"{added:.1f}")


def test_sort_and_filter(server: Server, page: sync_api.Page) -> None:
    frame = open_profile(page, server)
    head(frame, OPS, "speed-up").get_by_role("button").click()
    expect(head(frame, OPS, "speed-up")).to_have_attribute("aria-sort", "ascending")
    by_gain = sorted(PER_OP, key=lambda name: PER_OP[name].fp32 / PER_OP[name].total)
    expect_names(frame, OPS, by_gain[:12])
    head(frame, OPS, "conversion").get_by_role("button").click()
    expect(head(frame, OPS, "conversion")).to_have_attribute("aria-sort", "descending")
    expect_names(frame, OPS, sorted(PER_OP, key=lambda name: -PER_OP[name].convert)[:12])
    box = frame.get_by_role("searchbox", name="Filter times")
    box.fill("layer.1 matmul")
    headers = frame.get_by_role("grid", name=OPS).get_by_role("rowheader")
    expect(headers).to_have_count(4)
    assert set(names(frame, OPS)) == {r.op for r in ROWS if r.type == "MatMul" and "layer.1/" in r.op}
    box.fill("nothing is called so")
    expect(frame.get_by_text("Nothing passes the filter.")).to_be_visible()
    box.fill("outside")
    expect(headers).to_have_text([REST])


def test_time_per_type(server: Server, page: sync_api.Page) -> None:
    frame = open_profile(page, server)
    frame.get_by_role("button", name="By type").click()
    expect(frame.get_by_text(f"30 ops of {len(PER_TYPE) - 1} types")).to_be_visible()
    expect_names(frame, TYPES, slowest_first(PER_TYPE))
    check_shares(frame, TYPES, PER_TYPE)
    times = PER_TYPE["MatMul"]
    expect(cell(frame, TYPES, "MatMul", "ops")).to_have_text("12")
    expect(cell(frame, TYPES, "MatMul", "fp32")).to_have_text(written(times.fp32))
    expect(cell(frame, TYPES, "MatMul", "speed-up")).to_have_text(f"{times.fp32 / times.total:.2f} ×")
    worst = DIAGNOSIS.ops["added_sqnr_db"][DIAGNOSIS.ops["type"] == "MatMul"].min()
    expect(cell(frame, TYPES, "MatMul", "worst added SQNR")).to_have_text(f"{worst:.1f}")
    frame.get_by_role("button", name="By op").click()
    frame.get_by_role("rowheader", name=slowest_first(PER_OP)[0], exact=True).click()
    expect(drawer(frame, slowest_first(PER_OP)[0])).to_be_visible()


def test_the_timeline_zooms(server: Server, page: sync_api.Page) -> None:
    frame = open_profile(page, server)
    timeline = frame.get_by_role("region", name="Timeline of one run")
    end = max(span.start_us + span.duration_us for row in ROWS for span in row.spans)
    shown = timeline.locator(".pf-timeline-bar > .muted")
    expect(shown).to_have_text(f"0 µs to {written(end)}")
    expect(timeline).to_contain_text(f"{sum(len(row.spans) for row in ROWS)} spans over {written(end)}")
    timeline.get_by_role("button", name="Zoom in").click()
    expect(shown).to_have_text(f"{written(end / 8)} to {written(7 * end / 8)}")  # three quarters, about the middle
    timeline.get_by_role("button", name="Later").click()
    expect(shown).to_have_text(f"{written(end / 4)} to {written(end)}")  # no further than there is something
    timeline.get_by_role("button", name="All").click()
    timeline.get_by_role("group", name=re.compile("^Timeline")).focus()
    page.keyboard.press("+")
    page.keyboard.press("ArrowLeft")
    expect(shown).to_have_text(f"{written(end / 8 - 0.15 * 0.75 * end)} to {written(7 * end / 8 - 0.15 * 0.75 * end)}")
    page.keyboard.press("0")
    expect(shown).to_have_text(f"0 µs to {written(end)}")
    timeline.get_by_role("img", name="Timeline").hover()
    page.mouse.wheel(0, -200)
    expect(shown).not_to_have_text(f"0 µs to {written(end)}")
    timeline.get_by_role("img", name="Timeline").dblclick(position={"x": 10, "y": 10})
    expect(shown).to_have_text(f"0 µs to {written(end)}")


def test_bars_of_the_timeline_open_their_op(server: Server, page: sync_api.Page) -> None:
    frame = open_profile(page, server)
    picture = frame.get_by_role("img", name="Timeline")
    end = max(span.start_us + span.duration_us for row in ROWS for span in row.spans)
    row = max(ROWS, key=lambda row: row.int8_us or 0)
    (span,) = [span for span in row.spans if span.model == "int8"]
    box = picture.bounding_box()
    assert box is not None
    middle = (span.start_us + span.duration_us / 2) / end
    place: sync_api.Position = {"x": GUTTER + middle * (box["width"] - GUTTER), "y": (2 + span.thread + 0.4) * LANE}
    picture.hover(position=place)
    told = frame.get_by_role("tooltip").filter(has_text="takes")
    expect(told).to_contain_text(f"{row.op}MatMul, int8 thread {span.thread}")
    expect(told).to_contain_text(f"starts at {written(span.start_us)}, takes {written(span.duration_us)}")
    picture.click(position=place)
    expect(drawer(frame, row.op)).to_be_visible()


def test_the_timeline_of_new_times(page: sync_api.Page, tmp_path: Path) -> None:
    """Neither the zoom nor the span below the pointer outlive the rows that they were of."""
    with inc_tb.SummaryWriter(tmp_path / "timed") as writer, serve(tmp_path, "--reload_interval=1") as server:
        writer.add_profile(ROWS)
        server.wait_for_records({"timed": "profile"})
        frame = open_profile(page, server)
        shown = frame.locator(".pf-timeline-bar > .muted")
        frame.get_by_role("button", name="Zoom in").click()
        expect(shown).not_to_have_text(re.compile("^0 µs"))
        few, others = ROWS[:3], ROWS[3:]
        end, new_end = (max(s.start_us + s.duration_us for row in rows for s in row.spans) for rows in (ROWS, few))
        span = max((s for row in others for s in row.spans if s.model == "fp32"), key=lambda s: s.duration_us)
        middle = ((span.start_us + span.duration_us / 2) / end - 1 / 8) / (3 / 4)
        assert 0 < middle < 1
        picture = frame.get_by_role("img", name="Timeline")
        box = picture.bounding_box()
        assert box is not None
        picture.hover(position={"x": GUTTER + middle * (box["width"] - GUTTER), "y": (span.thread + 0.4) * LANE})
        told = frame.get_by_role("tooltip").filter(has_text="takes")
        expect(told).to_be_visible()
        writer.add_profile(few)
        deadline = time.monotonic() + 30
        while server.get("plugin/quantization/runs")["runs"][0]["kinds"]["profile"]["steps"] != [0, 1]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        page.evaluate("document.querySelector('app-header-reload button').click()")  # the pointer stays where it is
        expect(shown).to_have_text(f"0 µs to {written(new_end)}")
        expect(told).to_have_count(0)
        page.goto("about:blank")


def test_a_run_without_times(server: Server, page: sync_api.Page) -> None:
    frame = open_profile(page, server, "untimed")
    expect(frame.get_by_role("heading", name="untimed holds no times")).to_be_visible()
    expect(frame.get_by_text('with inc_tb.SummaryWriter("LOGDIR/untimed") as writer:')).to_contain_text(
        "writer.add_profile("
    )
