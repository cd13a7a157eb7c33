"""The verdict on a language model, in a real TensorBoard with the golden log."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.chromium import sync_api
from tests.browser.tab import open_tab, violations
from tests.tensorboards import Server, serve

expect = sync_api.expect
pytestmark = pytest.mark.browser
GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    logdir = tmp_path_factory.mktemp("logdir")
    shutil.copytree(GOLDEN / "later" / "tokens", logdir / "text")
    shutil.copytree(GOLDEN / "v2", logdir / "images")
    with serve(logdir) as found:
        found.wait_for_records({"text": "tokens", "images": "ops"})
        yield found


@pytest.mark.parametrize("dark", [False, True])
def test_the_verdict(page: sync_api.Page, server: Server, dark: bool) -> None:
    frame = open_tab(page, server, run="text", dark=dark)
    frame.get_by_role("tab", name="Tokens").click()
    shown = frame.get_by_role("region", name="Tokens")
    for told in ("6 tokens of 2 sequences", "0.5 nats", "0.25 nats to 0.75 nats", "2.718 → 3.49"):
        expect(shown.get_by_text(told)).to_be_visible()
    row = frame.get_by_role("table", name="Worst tokens").get_by_role("row").nth(1)
    expect(row).to_contain_text("…the cat")
    expect(row).to_contain_text("ran")
    clear, colored = (shown.locator(".tk-text span").nth(i) for i in (0, 2))
    expect(clear).to_have_css("background-color", "rgba(0, 0, 0, 0)")
    expect(colored).to_have_attribute("title", "2 nats")
    expect(colored).not_to_have_css("background-color", "rgba(0, 0, 0, 0)")
    assert violations(page) == []


def test_other_models_have_no_such_tab(page: sync_api.Page, server: Server) -> None:
    frame = open_tab(page, server, run="images")
    expect(frame.get_by_role("tab", name="Ops")).to_be_visible()
    expect(frame.get_by_role("tab", name="Tokens")).to_have_count(0)


def test_a_link_to_the_view_says_what_is_missing(page: sync_api.Page, server: Server) -> None:
    frame = open_tab(page, server, run="images", view="tokens")
    expect(frame.get_by_role("heading", name="images holds no verdict in tokens")).to_be_visible()
