"""What people come for, counted in clicks from TensorBoard's start, on the logs of `inc-tb demo`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import inc_tb
from inc_tb.demo import run_demo
from inc_tb.measure.by_sample import numbers
from tests.browser.chromium import sync_api
from tests.browser.tab import cell, drawer, expect_names, head, open_tab, press_copy
from tests.tensorboards import Server, serve

expect = sync_api.expect
pytestmark = pytest.mark.browser

LEVER, OTHER_END = "/conv1/Conv", "/conv2/Conv"
MOST_CLIPPED = "/fc2/Gemm"


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    logdir = tmp_path_factory.mktemp("logdir")
    run_demo(Console(quiet=True), logdir)
    return logdir


@pytest.fixture(scope="module")
def logged(logdir: Path) -> inc_tb.Run:
    return inc_tb.load(logdir / "1-int8")


@pytest.fixture(scope="module")
def server(logdir: Path) -> Iterator[Server]:
    with serve(logdir) as found:
        found.wait_for_trials(3)
        yield found


class Reader:
    """Somebody who has just opened TensorBoard and counts what is to be pressed."""

    def __init__(self, page: sync_api.Page, server: Server) -> None:
        page.goto(server.url)
        self.page, self.clicks = page, 0
        self.frame = page.frame_locator("iframe")
        self.press(page.get_by_role("tab", name="Quantization"))
        expect(self.overview).to_be_visible()

    @property
    def overview(self) -> sync_api.Locator:
        return self.frame.get_by_role("region", name="Overview", exact=True)

    def press(self, what: sync_api.Locator) -> None:
        self.clicks += 1
        what.click()

    def press_copy(self, button: sync_api.Locator) -> str:
        self.clicks += 1
        return press_copy(self.page, button)


@pytest.fixture
def reader(page: sync_api.Page, server: Server) -> Reader:
    return Reader(page, server)


def test_find_the_culprit_and_read_why(reader: Reader) -> None:
    worst = reader.overview.get_by_role("list", name="Worst ops").get_by_role("listitem")
    expect(worst.nth(0)).to_contain_text(re.compile(rf"^{LEVER}outlier channels0\.\d+\s*$"))
    expect(worst.nth(1)).to_contain_text(OTHER_END)
    expect(reader.overview.get_by_role("heading").first).to_have_text(
        re.compile(r"^Quantizing cost 0\.\d{4} of accuracy \([\d.]+ %\): 0\.\d{4} instead of 0\.9650\.$")
    )
    expect(reader.overview).to_contain_text("Why: 2 of 16 channels are up to")
    assert reader.clicks == 1


def test_the_price_of_the_cure(reader: Reader) -> None:
    cure = reader.overview.get_by_role("region", name="Do this first")
    expect(cure).to_contain_text("Keep conv1/Conv and conv2/Conv in fp32")
    expect(cure).to_contain_text("removes 99.9 % of the error measured")
    expect(cure).to_contain_text(re.compile(r"accuracy 0\.\d{4} \(\+0\.\d{4}\) in 3-fallback-suggested"))
    expect(cure).to_contain_text("14.26 kB larger counted")  # (16 x 9 + 32 x 16 x 9) weights of 4 bytes instead of 1
    assert reader.clicks == 1


def test_copy_the_config(reader: Reader) -> None:
    cure = reader.overview.get_by_role("region", name="Do this first")
    copied = reader.press_copy(cure.get_by_role("button", name="Copy config"))
    assert f'nodes_to_exclude = [\n    "{LEVER}",\n    "{OTHER_END}",\n]' in copied
    assert reader.clicks == 2


def test_compare_two_trials(reader: Reader) -> None:
    reader.press(reader.overview.get_by_role("button", name="compare with 3-fallback-suggested"))
    expect(cell(reader.frame, "Trials", "1-int8", "In int8")).to_have_text("100 %")
    expect(cell(reader.frame, "Trials", "3-fallback-suggested", "In int8")).to_have_text(
        re.compile(r"^[1-9]\d?(\.\d+)? %$")
    )
    assert reader.clicks <= 3
    expect(reader.frame.get_by_role("list", name="Compared runs").get_by_role("listitem")).to_have_count(2)
    kept = cell(reader.frame, "Ops by trial", LEVER, "3-fallback-suggested")
    expect(kept).to_have_attribute("title", re.compile("^kept in fp32: no error is added here"))
    expect(cell(reader.frame, "Ops by trial", LEVER, "Largest difference")).to_have_text("in fp32")


def test_most_clipping(reader: Reader) -> None:
    reader.press(reader.overview.get_by_role("button", name="most clipping"))
    assert reader.clicks <= 2
    expect(head(reader.frame, "Ops", "output clipped")).to_have_attribute("aria-sort", "descending")
    expect_names(reader.frame, "Ops", [MOST_CLIPPED])


def test_worst_sample(reader: Reader, logged: inc_tb.Run) -> None:
    reader.press(reader.frame.get_by_role("tab", name="Samples"))
    assert reader.clicks == 2
    samples = logged.diagnosis.by_sample
    (output,) = (row for row in samples.rows if row.is_output)
    ratios = numbers(output.error) / numbers(output.power)
    first = reader.frame.get_by_role("table", name="Worst samples").get_by_role("row").nth(1)
    expect(first.get_by_role("rowheader")).to_have_text(str(ratios.argmax()))
    expect(first.get_by_role("cell").first).to_have_text(f"{-10 * np.log10(ratios.max()):.1f} dB")
    ops = reader.frame.get_by_role("table", name="What ops add to samples").get_by_role("rowheader")
    expect(ops.first).to_have_text(LEVER)
    chosen = reader.frame.get_by_role("region", name="Chosen sample")
    expect(chosen).to_contain_text(f"Sample {ratios.argmax()} of your data")
    picture = chosen.get_by_role("img", name=f"Sample {ratios.argmax()}: image")
    size = picture.evaluate("async found => (await found.decode(), [found.naturalWidth, found.naturalHeight])")
    assert size == [8, 8]
    second = str(ratios.argsort()[-2])
    reader.frame.get_by_role("button", name=second, exact=True).click()
    expect(chosen).to_contain_text(f"Sample {second} of your data")
    expect(chosen.get_by_role("img", name=f"Sample {second}: image")).to_be_visible()


def test_share_a_link(reader: Reader, server: Server) -> None:
    link = reader.press_copy(reader.frame.get_by_role("button", name="Copy link"))
    assert reader.clicks == 2
    reader.page.goto("about:blank")
    reader.page.goto(link)
    expect(reader.overview).to_be_visible()


def test_the_lever_does_not_look_healthy(server: Server, page: sync_api.Page) -> None:
    """It adds little to its own output, 30 dB; what that does to the model's was measured."""
    frame = open_tab(page, server, view="ops")
    first = frame.get_by_role("grid", name="Ops", exact=True).get_by_role("rowheader").first
    expect(first).to_have_text(LEVER)
    color = "cell => getComputedStyle(cell).getPropertyValue('--cell')"
    red, gray = re.compile(r"^hsl\(\d+ 90%"), re.compile(r"^hsl\(215 8%")
    assert red.match(cell(frame, "Ops", LEVER, "sensitivity").evaluate(color))
    assert gray.match(cell(frame, "Ops", "/fc2/Gemm", "total").evaluate(color))
    expect(frame.locator(".jumps")).to_contain_text(re.compile(rf"^Most is done to the output by{LEVER}"))
    frame.get_by_role("tab", name="Samples").click()
    of_lever = frame.get_by_role("table", name="What ops add to samples").get_by_role("row").nth(1)
    expect(of_lever.get_by_role("rowheader")).to_have_text(LEVER)
    assert "rgba(" in str(of_lever.locator(".sm-effect").get_attribute("style"))
    frame.get_by_role("tab", name="Graph").click()
    expect(frame.get_by_label("Color by")).to_have_value("sensitivity")
    node = frame.get_by_role("button", name=f"{LEVER}, Conv").first
    assert red.match(node.evaluate("node => getComputedStyle(node).getPropertyValue('--graph-color')"))
    node.click()
    detail = drawer(frame, LEVER)
    expect(detail.get_by_role("heading", level=3).nth(1)).to_have_text("Effect at the output")
    bars = detail.get_by_role("region", name="Where the error comes from").locator(".d-db-bar")
    expect(bars.nth(1)).to_have_class(re.compile("accused"))  # what it adds is normal, and not what that does


def test_a_fused_op_is_as_bad_as_what_it_was_fused_into(server: Server, page: sync_api.Page) -> None:
    frame = open_tab(page, server, view="ops")
    expect(cell(frame, "Ops", "/Relu_2", "verdict")).to_have_text("ok")
    expect(cell(frame, "Ops", "/Relu_2", "reason")).to_have_text("with /depthwise/Conv")
    expect(cell(frame, "Ops", "/Relu", "reason")).to_have_text("outlier channels")  # of its convolution
    expect(cell(frame, "Ops", "/Relu", "verdict")).to_have_text("bad")
