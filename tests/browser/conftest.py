from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import inc_tb
from tests.browser.chromium import CHROMIUM, open_browser, sync_api, watch
from tests.example_run import make_diagnosis
from tests.waiting import PATIENCE_S


@pytest.fixture(scope="session")
def browser() -> Iterator[sync_api.Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium; Debian has it as a package")
    with open_browser() as found:
        yield found


@pytest.fixture(scope="session")
def diagnosis(tmp_path_factory: pytest.TempPathFactory) -> inc_tb.Diagnosis:
    return make_diagnosis(tmp_path_factory.mktemp("models"))


@pytest.fixture
def page(browser: sync_api.Browser, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sync_api.Page]:
    """Fails the test on any console error or request outside the machine. Set SCREENSHOTS to a folder to look."""
    context = browser.new_context(viewport={"width": 1500, "height": 1000}, accept_downloads=True)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    context.set_default_timeout(1000 * PATIENCE_S)
    found = context.new_page()
    wrong = watch(found)
    yield found
    found.screenshot(path=Path(os.environ.get("SCREENSHOTS", tmp_path), f"{request.node.name}.png"))
    context.close()
    assert wrong == []
