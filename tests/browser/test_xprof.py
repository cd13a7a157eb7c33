"""Traces in TensorBoard's own Profile tab, which is xprof."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from inc_tb.frameworks.traces import Slice
from inc_tb.profiling.traces import write_traces
from tests.browser.chromium import sync_api
from tests.tensorboards import Server, serve

expect = sync_api.expect
pytestmark = pytest.mark.browser

LONGEST = "/layer.1/conv2/Conv é<b>"
TIMES_US = {"/conv1/Conv": (10.0, 100.0), LONGEST: (110.0, 700.25), "/fc/Gemm": (815.0, 150.0)}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    slices = [
        Slice(model, thread, name, start_us, duration_us, {"type": name.rpartition("/")[2], "size": 3.5})
        for model in ("fp32", "int8")
        for thread in ("main", "worker 1")
        for name, (start_us, duration_us) in TIMES_US.items()
    ]
    write_traces(tmp_path / "trial-001", "2026_11_17_00_00_00", "this machine", slices)
    with serve(tmp_path, xprof=True) as found:
        yield found


@pytest.fixture
def offline_page(browser: sync_api.Browser, server: Server) -> Iterator[sync_api.Page]:
    """xprof asks for fonts and charts from elsewhere; its trace viewer does without, so that nothing leaves here."""
    context = browser.new_context(viewport={"width": 1500, "height": 1000})
    context.route(lambda url: not url.startswith(server.url), lambda route: route.abort())
    yield context.new_page()
    context.close()


def test_the_trace_viewer_lists_the_ops(server: Server, offline_page: sync_api.Page) -> None:
    offline_page.goto(f"{server.url}#profile")
    tab = offline_page.frame_locator("iframe")
    expect(tab.get_by_text("trial-001/2026_11_17_00_00_00").first).to_be_visible()
    tab.get_by_text("Overview Page").first.click()
    tab.get_by_role("option", name="Trace Viewer").click()
    viewer = tab.frame_locator("iframe")
    planes = [f"this_machine /device:CUSTOM:{model}" for model in ("fp32", "int8")]
    expect(viewer.locator(".process-track-name")).to_contain_text(planes)
    expect(viewer.locator("#heading_content", has_text="main")).to_have_count(2)
    expect(viewer.locator("#heading_content", has_text="worker 1")).to_have_count(2)
    for name in TIMES_US:  # they are painted, so that only its own search can tell
        viewer.get_by_placeholder("Find Events").fill(name)
        expect(viewer.locator("#hitCount")).to_have_text("0 of 4")
    place = viewer.locator("#heading_content", has_text="main").first.bounding_box()
    assert place is not None
    offline_page.mouse.click(870, place["y"] + place["height"] / 2)  # the long one is in the middle, whatever the scale
    told = viewer.locator("tr-ui-a-analysis-view")
    for text in (LONGEST, "100,000 ns", "700,250 ns", "type", '"Conv é<b>"', "size", "3.5"):
        expect(told).to_contain_text(text)
