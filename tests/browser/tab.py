"""The Quantization tab as its user sees it."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlencode

from tests.browser.chromium import sync_api
from tests.tensorboards import Server
from tests.waiting import until

AXE = Path(__file__).parents[2] / "tb_plugin" / "frontend" / "node_modules" / "axe-core" / "axe.min.js"


def open_tab(
    page: sync_api.Page, server: Server, *, dark: bool = False, empty: bool = False, **link: str | list[str]
) -> sync_api.FrameLocator:
    """`link` is what the address says behind #quantization; waits until the runs are listed, if there are any."""
    if dark:
        settings = json.dumps(json.dumps({"theme": "dark"}))
        page.add_init_script(f"try {{ localStorage.setItem('_tb_global_settings', {settings}) }} catch {{}}")
    texts = {key: value if isinstance(value, str) else "|".join(value) for key, value in link.items()}
    query = urlencode({f"p.quantization.{key}": text for key, text in texts.items()})
    page.goto(f"{server.url}#quantization&{query}".rstrip("&").replace("+", "%20"))
    frame = page.frame_locator("iframe")
    if not empty:
        frame.get_by_role("tablist", name="Views").wait_for()
    return frame


def names(frame: sync_api.FrameLocator, grid: str = "Ops") -> list[str]:
    """The ops in sight, from top to bottom."""
    found = (
        frame.get_by_role("grid", name=grid, exact=True).get_by_role("row").filter(has=frame.get_by_role("rowheader"))
    )
    read = "row => [+row.getAttribute('aria-rowindex'), row.querySelector('[role=rowheader]').textContent]"
    shown = found.evaluate_all(f"rows => rows.map({read})")
    return [name for _, name in sorted(shown)]


def expect_names(frame: sync_api.FrameLocator, grid: str, first: list[str]) -> None:
    """The rows of a grid begin so, now or soon: large ones have only what is in sight."""
    until(lambda: names(frame, grid)[: len(first)] == first, lambda: names(frame, grid))


def head(frame: sync_api.FrameLocator, grid: str, label: str) -> sync_api.Locator:
    columns = frame.get_by_role("grid", name=grid, exact=True).get_by_role("columnheader")
    return columns.filter(has=frame.get_by_text(label, exact=True))


def cell(frame: sync_api.FrameLocator, grid: str, row: str, label: str) -> sync_api.Locator:
    """The cell of a row below a header, whatever its place."""
    place = head(frame, grid, label).get_attribute("aria-colindex")
    rows = frame.get_by_role("grid", name=grid, exact=True).get_by_role("row")
    return rows.filter(has=frame.get_by_role("rowheader", name=row, exact=True)).locator(f"[aria-colindex='{place}']")


def drawer(frame: sync_api.FrameLocator, op: str) -> sync_api.Locator:
    return frame.get_by_role("region", name=op, exact=True)


def press_copy(page: sync_api.Page, button: sync_api.Locator) -> str:
    """What a copy button puts on the clipboard."""
    page.evaluate("navigator.clipboard.writeText('nothing yet')")
    button.click()
    page.wait_for_function("async () => (await navigator.clipboard.readText()) !== 'nothing yet'")
    return str(page.evaluate("navigator.clipboard.readText()"))


def violations(page: sync_api.Page) -> list[str]:
    """What axe-core complains about inside the tab."""
    (frame,) = [frame for frame in page.frames if "plugin_entry" in frame.url]
    frame.evaluate(AXE.read_text(encoding="utf-8"))
    found = frame.evaluate("async () => (await axe.run(document, {resultTypes: ['violations']})).violations")
    return [f"{v['id']}: {v['help']}: {node['html'][:300]}" for v in found for node in v["nodes"]]
