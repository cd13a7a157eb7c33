"""The Quantization tab as its user sees it."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlencode

from tests.browser.chromium import sync_api
from tests.tensorboards import Server

AXE = Path(__file__).parents[2] / "tb_plugin" / "frontend" / "node_modules" / "axe-core" / "axe.min.js"


def open_tab(
    page: sync_api.Page, server: Server, *, dark: bool = False, **link: str | list[str]
) -> sync_api.FrameLocator:
    """`link` is what the address says behind #quantization; waits until the runs are listed."""
    if dark:
        settings = json.dumps(json.dumps({"theme": "dark"}))
        page.add_init_script(f"localStorage.setItem('_tb_global_settings', {settings})")
    query = urlencode({f"p.quantization.{key}": value for key, value in link.items()}, doseq=True)
    page.goto(f"{server.url}#quantization&{query}".rstrip("&").replace("+", "%20"))
    frame = page.frame_locator("iframe")
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


def violations(page: sync_api.Page) -> list[str]:
    """What axe-core complains about inside the tab."""
    (frame,) = [frame for frame in page.frames if "plugin_entry" in frame.url]
    frame.evaluate(AXE.read_text(encoding="utf-8"))
    found = frame.evaluate("async () => (await axe.run(document, {resultTypes: ['violations']})).violations")
    return [f"{v['id']}: {v['help']}: {node['html'][:300]}" for v in found for node in v["nodes"]]
