"""The system's Chromium, without the network that it would look for."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright import sync_api

from tests.waiting import PATIENCE_S

sync_api.expect.set_options(timeout=1000 * PATIENCE_S / 3)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run",
]  # fmt: skip


@contextmanager
def open_browser() -> Iterator[sync_api.Browser]:
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield found
        found.close()


def watch(page: sync_api.Page, origin: str = "http://127.0.0.1") -> list[str]:
    """What goes wrong on a page from now on: errors on its console, and requests that leave the machine."""
    wrong: list[str] = []

    def hear(said: sync_api.ConsoleMessage) -> None:
        if said.type == "error" and "/font-roboto/" not in said.location["url"]:  # TensorBoard's own with --path_prefix
            wrong.append(f"{said.text} ({said.location['url']})")

    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", hear)
    local = (origin, "data:", "blob:")
    page.on("request", lambda request: None if request.url.startswith(local) else wrong.append(request.url))
    return wrong
