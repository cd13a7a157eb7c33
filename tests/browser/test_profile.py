"""Time per op and the timeline, in a real TensorBoard with real logs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

import inc_tb
from inc_tb.profiling.profile import Profile
from inc_tb.records import ProfileRow
from tests.browser.chromium import sync_api
from tests.browser.tab import cell, drawer, expect_names, head, names, open_tab
from tests.made_runs import make_diagnosis, make_profile
from tests.tensorboards import Server, serve
from tests.waiting import until

expect = sync_api.expect
pytestmark = pytest.mark.browser

DIAGNOSIS = make_diagnosis(30)
PROFILE = make_profile(DIAGNOSIS.graph)
ROWS = PROFILE.rows
REST = "outside of all ops"
UNTIMED = "not it's time"
OPS, TYPES = "Time per op", "Time per type"
GUTTER, LANE = 96, 28  # of the timeline's picture, in pixels: its names, and each of the four lanes


class Times(NamedTuple):
    fp32: float
    int8: float
    convert: float

    @property
    def total(self) -> float:
        """Of the quantized model, or of the only one."""
        return (self.int8 + self.convert) or self.fp32


def times_of(rows: list[ProfileRow]) -> Times:
    """Of several ops together."""
    return Times(*(sum(getattr(row, f"{what}_us") or 0.0 for row in rows) for what in ("fp32", "int8", "convert")))


def shown(row: ProfileRow) -> str:
    return f"{row.op or REST}{f' + {len(row.ops)} fused' if row.ops else ''}"


def only(model: str) -> list[ProfileRow]:
    """The same ops in one model alone."""
    other = "int8" if model == "fp32" else "fp32"
    gone = {f"{other}_{what}": None for what in ("us", "p95_us", "mean_us")}
    pair = dict.fromkeys(("difference_us", "low_us", "high_us", "differs"))
    return [
        msgspec.structs.replace(
            row, **gone, **pair, convert_us=row.convert_us if model == "int8" else 0.0,
            spans=[span for span in row.spans if span.model == model],
        )
        for row in ROWS
    ]  # fmt: skip


PER_OP = {shown(row): times_of([row]) for row in ROWS}
PER_TYPE = {
    kind or REST: times_of([row for row in ROWS if row.type == kind]) for kind in dict.fromkeys(r.type for r in ROWS)
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    logdir = tmp_path_factory.mktemp("logdir")
    noise = msgspec.structs.replace(PROFILE.total, low_us=-14_000.0, high_us=300.0, differs=False)
    alone = ProfileRow("", fp32_us=4_000.0)
    profiles = {
        "timed": PROFILE,
        "sums": Profile(ROWS, ProfileRow("")),
        "noisy": replace(PROFILE, total=noise, overhead={"fp32": 0.02, "int8": 0.3}),
        "fp32 alone": Profile(only("fp32"), alone, "encoder.onnx", samples=1, overhead={"fp32": 0.04}),
        "int8 alone": Profile(only("int8"), ProfileRow(""), "", "encoder-int8.onnx"),
    }
    for name in ("timed", UNTIMED):
        with inc_tb.SummaryWriter(logdir / name) as writer:
            writer.add_diagnosis(DIAGNOSIS)
    for name, profile in profiles.items():
        with inc_tb.SummaryWriter(logdir / name) as writer:
            writer.add_profile(profile)
    with serve(logdir) as found:
        found.wait_for_records({**dict.fromkeys(profiles, "profile"), UNTIMED: "graph"})
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


def heads(frame: sync_api.FrameLocator, grid: str) -> list[str]:
    return frame.get_by_role("grid", name=grid).locator(".head-label").all_text_contents()


def check_shares(frame: sync_api.FrameLocator, grid: str, found: dict[str, Times]) -> None:
    """Of the first rows, which are in sight."""
    everything = sum(times.total for times in found.values())
    so_far = 0.0
    for name in slowest_first(found)[:8]:
        so_far += found[name].total
        expect(cell(frame, grid, name, "share")).to_have_text(f"{100 * found[name].total / everything:.2f} %")
        expect(cell(frame, grid, name, "cumulative")).to_have_text(f"{100 * so_far / everything:.2f} %")


def check_conversion(frame: sync_api.FrameLocator, grid: str, found: dict[str, Times]) -> None:
    for name in slowest_first(found)[:8]:
        expect(cell(frame, grid, name, "conversion")).to_have_text(
            written(found[name].convert) if found[name].convert else "–"
        )


def test_the_whole_model(server: Server, page: sync_api.Page) -> None:
    frame = open_profile(page, server)
    everything = times_of(ROWS)
    expect(figure(frame, "fp32")).to_have_text("30 ms p95 33 ms, 266.7 samples/s")
    expect(figure(frame, "int8")).to_have_text("16 ms p95 17.5 ms, 500 samples/s")
    expect(figure(frame, "difference")).to_have_text("−13.9 ms faster, between −14.25 and −13.6 ms")
    expect(figure(frame, "speed-up")).to_have_text("1.875 ×")
    expect(figure(frame, "conversion")).to_have_text(
        f"{100 * everything.convert / everything.total:.4g} % {written(everything.convert)}"
    )
    expect(figure(frame, REST)).to_have_text("140 µs fp32: 120 µs")
    expect(figure(frame, "profiler overhead")).to_have_text("5.2 % fp32: 3.1 %")
    expect(figure(frame, "measured over")).to_have_text("50 runs on 2 threads")
    told = frame.get_by_text(f"The rows add up to {written(everything.fp32)} in fp32 and {written(everything.total)}")
    expect(told).to_be_visible()
    expect(frame.get_by_role("list", name="Notes").get_by_role("listitem")).to_have_text(PROFILE.notes)
    figure(frame, "profiler overhead").hover()
    expect(frame.get_by_role("tooltip")).to_contain_text("Normal: 0 to 15 %")
    frame.get_by_role("option", name="sums").click()
    expect(figure(frame, "fp32")).to_have_text(written(everything.fp32))
    expect(figure(frame, "difference")).to_have_text(f"−{written(everything.fp32 - everything.total)} faster")
    expect(figure(frame, "speed-up")).to_have_text(f"{everything.fp32 / everything.total:.4g} ×")
    expect(figure(frame, "measured over")).to_have_text("–")
    for missing in (told, figure(frame, "profiler overhead"), frame.get_by_role("list", name="Notes")):
        expect(missing).to_have_count(0)
    frame.get_by_role("option", name="noisy").click()
    expect(figure(frame, "difference")).to_have_text("−13.9 ms inside the noise, between −14 and +0.3 ms")
    expect(figure(frame, "profiler overhead")).to_have_text("30 % fp32: 2 % ⚠ times of short ops are rough")


def test_time_per_op(server: Server, page: sync_api.Page) -> None:
    frame = open_profile(page, server)
    first, *_ = slowest_first(PER_OP)
    expect_names(frame, OPS, slowest_first(PER_OP)[:12])
    check_shares(frame, OPS, PER_OP)
    check_conversion(frame, OPS, PER_OP)
    times = PER_OP[first]
    expect(cell(frame, OPS, first, "type")).to_have_text("MatMul")
    for model, us in (("fp32", times.fp32), ("int8", times.int8)):
        expect(cell(frame, OPS, first, model)).to_have_text(written(us))
        expect(cell(frame, OPS, first, model)).to_have_attribute(
            "title", f"median {written(us)}, p95 {written(1.2 * us)}"
        )
    expect(cell(frame, OPS, first, "speed-up")).to_have_text(f"{times.fp32 / times.total:.2f} ×")
    added = DIAGNOSIS.ops["added_sqnr_db"][list(DIAGNOSIS.ops["name"]).index(first)]
    expect(cell(frame, OPS, first, "added SQNR")).to_have_text(f"{added:.1f}")


def test_differences_and_their_noise(server: Server, page: sync_api.Page) -> None:
    frame = open_profile(page, server)
    by_difference = {shown(row): row.difference_us or 20.0 for row in ROWS}  # of no op: 140 - 120 µs
    head(frame, OPS, "difference").get_by_role("button").click()
    expect(head(frame, OPS, "difference")).to_have_attribute("aria-sort", "descending")
    expect_names(frame, OPS, sorted(by_difference, key=lambda name: -by_difference[name])[:12])
    faster, slower, unclear = (
        next(row for row in ROWS if row.differs is differs and (row.difference_us or 0) > least)
        for differs, least in ((True, -1000), (True, 0), (False, -1000))
    )
    for row, text in (
        (faster, f"−{written(-(faster.difference_us or 0))}"),
        (slower, f"+{written(slower.difference_us or 0)}"),
        (unclear, "inside the noise"),
    ):
        frame.get_by_role("searchbox", name="Filter times").fill(row.op)
        found = cell(frame, OPS, shown(row), "difference")
        expect(found).to_have_text(text)
        assert row.low_us is not None
        expect(found).to_have_attribute("title", re.compile("between .*µs, 95 % interval for all ops together$"))
        expect(found).to_have_attribute("title", re.compile(f"between [−+]{abs(row.low_us):.4g} and"))
        expect(found).to_have_class(re.compile("pf-slower" if row is slower else "^((?!pf-slower).)*$"))


def test_fused_ops(server: Server, page: sync_api.Page) -> None:
    frame = open_profile(page, server)
    expect(frame.get_by_text("27 ops, 3 more fused into them")).to_be_visible()
    row = next(row for row in ROWS if row.ops)
    frame.get_by_role("searchbox", name="Filter times").fill(row.ops[0])
    header = frame.get_by_role("grid", name=OPS).get_by_role("rowheader")
    expect(header).to_have_text([f"{row.op} + 1 fused"])
    expect(header).to_have_attribute("title", f"{row.op} runs as one with {row.ops[0]}")
    header.click()
    expect(drawer(frame, row.op).get_by_role("region", name="Time")).to_contain_text(
        f"It runs as one with {row.ops[0]}: the times are of all of them."
    )
    frame = open_tab(page, server, view="profile", run="timed", op=row.ops[0])
    found = drawer(frame, row.ops[0]).get_by_role("region", name="Time")
    expect(found).to_contain_text(f"It runs as one with {row.op}: the times are of all of them.")
    expect(found).to_contain_text(f"median time in fp32{written(row.fp32_us or 0)}")
    expect(frame.locator(".grid-row.active").get_by_role("rowheader")).to_have_text(shown(row))


@pytest.mark.parametrize("model", ["fp32", "int8"])
def test_one_model_alone(server: Server, page: sync_api.Page, model: str) -> None:
    frame = open_profile(page, server)
    head(frame, OPS, "difference").get_by_role("button").click()
    frame.get_by_role("option", name=f"{model} alone").click()
    rows = only(model)
    per_op = {shown(row): times_of([row]) for row in rows}
    conversion = ["conversion"] if model == "int8" else []
    shares = ["share", "cumulative"]
    expect_names(frame, OPS, slowest_first(per_op)[:12])  # whatever the other run was sorted by
    assert heads(frame, OPS) == ["op", "type", "time", model, *conversion, *shares]
    check_shares(frame, OPS, per_op)
    expect(head(frame, OPS, "share")).to_contain_text(f"of {model} time")
    figures = frame.locator("dl[aria-label='Whole model'] dt")
    if model == "fp32":
        expect(figures).to_have_text(["fp32", REST, "profiler overhead", "measured over"])
        expect(figure(frame, "fp32")).to_have_text("4 ms 250 samples/s")
        expect(figure(frame, "profiler overhead")).to_have_text("4 %")
        expect(frame.locator(".pf-key")).to_have_text("fp32")
    else:
        expect(figures).to_have_text(["int8", "conversion", REST, "measured over"])
        expect(figure(frame, "int8")).to_have_text(written(times_of(rows).total))
        check_conversion(frame, OPS, per_op)
    frame.get_by_role("button", name="By type").click()
    expect(head(frame, TYPES, "share")).to_contain_text(f"of {model} time")
    assert heads(frame, TYPES) == ["type", "ops", "time", model, *conversion, *shares]
    check_shares(
        frame, TYPES, {kind or REST: times_of([r for r in rows if r.type == kind]) for kind in {r.type for r in rows}}
    )


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
    assert set(names(frame, OPS)) == {shown(r) for r in ROWS if r.type == "MatMul" and "layer.1/" in r.op}
    box.fill("nothing is called so")
    expect(frame.get_by_text("Nothing passes the filter.")).to_be_visible()
    box.fill("outside")
    expect(headers).to_have_text([REST])


def test_time_per_type(server: Server, page: sync_api.Page) -> None:
    frame = open_profile(page, server)
    frame.get_by_role("button", name="By type").click()
    expect(frame.get_by_text(f"27 ops of {len(PER_TYPE) - 1} types")).to_be_visible()
    expect_names(frame, TYPES, slowest_first(PER_TYPE))
    check_shares(frame, TYPES, PER_TYPE)
    check_conversion(frame, TYPES, PER_TYPE)
    times = PER_TYPE["MatMul"]
    expect(cell(frame, TYPES, "MatMul", "ops")).to_have_text("12")
    expect(cell(frame, TYPES, "MatMul", "fp32")).to_have_text(written(times.fp32))
    expect(cell(frame, TYPES, "MatMul", "speed-up")).to_have_text(f"{times.fp32 / times.total:.2f} ×")
    worst = DIAGNOSIS.ops["added_sqnr_db"][DIAGNOSIS.ops["type"] == "MatMul"].min()
    expect(cell(frame, TYPES, "MatMul", "worst added SQNR")).to_have_text(f"{worst:.1f}")
    frame.get_by_role("button", name="By op").click()
    slowest = max(ROWS, key=lambda row: times_of([row]).total)
    frame.get_by_role("rowheader", name=shown(slowest), exact=True).click()
    expect(drawer(frame, slowest.op)).to_be_visible()


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
        writer.add_profile(PROFILE)
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
        writer.add_profile(replace(PROFILE, rows=few))
        until(lambda: server.runs()[0]["kinds"]["profile"]["steps"] == [0, 1], server.runs)
        page.evaluate("document.querySelector('app-header-reload button').click()")  # the pointer stays where it is
        expect(shown).to_have_text(f"0 µs to {written(new_end)}")
        expect(told).to_have_count(0)
        page.goto("about:blank")


def test_a_run_without_times(server: Server, page: sync_api.Page) -> None:
    frame = open_profile(page, server, UNTIMED)
    expect(frame.get_by_role("heading", name=f"{UNTIMED} holds no times")).to_be_visible()
    shell, python = frame.locator("pre").all_text_contents()
    assert shlex.split(shell)[-4:] == ["--logdir", "LOGDIR", "--run", UNTIMED]
    assert f'with inc_tb.SummaryWriter("LOGDIR/{UNTIMED}") as writer:\n    writer.add_profile(profile)' in python
