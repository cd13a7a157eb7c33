"""`make screenshots`: the pictures of the documents, from the demo's logs and, for large searches, from made-up ones.

    python -m tests.browser.screenshots [FOLDER]

Into a FOLDER go all views besides, light and dark, at three widths, of the demo and of networks of 400 and 20,000
ops, to look at.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

import inc_tb
from inc_tb.demo import run_demo
from tests.browser.chromium import CHROMIUM, open_browser, sync_api
from tests.browser.tab import open_tab
from tests.made_runs import make_diagnosis, make_trials, probed
from tests.tensorboards import Server, serve

TARGET = Path(__file__).parents[2] / "docs" / "screenshots"
SIZE: sync_api.ViewportSize = {"width": 1360, "height": 820}
WIDTHS = (900, 1440, 1920)
OPS, MANY_OPS = 400, 20_000


def main(everything: Path | None = None) -> None:
    if CHROMIUM is None:
        raise SystemExit("the screenshots need chromium; Debian has it as a package.")
    TARGET.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        demo, search = Path(folder, "demo"), Path(folder, "search")
        run_demo(Console(quiet=True), demo)
        diagnoses = [probed(make_diagnosis(OPS, seed)) for seed in range(4)]
        make_trials(search, 12, diagnoses)
        with open_browser() as browser:
            with serve(demo) as server:
                server.wait_for_trials(3)
                take(browser, server, "overview", show_overview)
                take(browser, server, "ops", show_rows, view="ops")
                take(browser, server, "detail", show_histogram, view="ops", op="/conv1/Conv")
                take(browser, server, "detail-dark", show_histogram, dark=True, view="ops", op="/conv2/Conv")
                take(browser, server, "suggestions", show_article, view="suggestions")
                take(browser, server, "graph", show_graph, view="graph", op="/conv2/Conv")
                take(browser, server, "profile", show_timeline, view="profile")
                take(browser, server, "samples", show_samples, view="samples")
                if everything is not None:
                    take_all(browser, server, everything, "demo", "/conv1/Conv", ["1-int8", "3-fallback-suggested"])
            with serve(search) as server:
                server.wait_for_trials(12)
                compared = ["trial-000", "trial-005", "trial-011"]
                take(browser, server, "trials", show_matrix, view="trials", compare=compared)
                if everything is not None:
                    take_all(browser, server, everything, f"{OPS}-ops", worst_of(diagnoses[0]), compared)
            if everything is not None:
                large = [probed(make_diagnosis(MANY_OPS, seed, detail=OPS)) for seed in range(2)]
                make_trials(Path(folder, "large"), 4, large)
                with serve(Path(folder, "large")) as server:
                    server.wait_for_trials(4)
                    what, compared = f"{MANY_OPS}-ops", ["trial-000", "trial-001"]
                    take_all(browser, server, everything, what, worst_of(large[0]), compared)


def worst_of(diagnosis: inc_tb.Diagnosis) -> str:
    return str(diagnosis.ops["name"][diagnosis.worst(1)[0]])


def take_all(
    browser: sync_api.Browser, server: Server, folder: Path, what: str, op: str, compared: list[str]
) -> None:  # fmt: skip
    """Every view, and the detail of an op."""
    folder.mkdir(parents=True, exist_ok=True)
    views: dict[str, dict[str, str | list[str]]] = {
        view: {"view": view} for view in ("overview", "ops", "suggestions", "samples", "profile", "graph")
    }
    views["trials"] = {"view": "trials", "compare": compared}
    views["detail"] = {"view": "ops", "op": op}
    for name, link in views.items():
        for width in WIDTHS:
            for dark in (False, True):
                page = browser.new_page(viewport={"width": width, "height": 3 * width // 5})
                frame = open_tab(page, server, dark=dark, **link)
                frame.get_by_role("tabpanel").wait_for()
                if name == "graph":
                    frame.locator("button.graph-node").first.wait_for()
                page.wait_for_timeout(1500)  # what is drawn last
                page.screenshot(path=folder / f"{what}-{name}-{width}-{'dark' if dark else 'light'}.png")
                page.close()


def take(
    browser: sync_api.Browser, server: Server, name: str, wait: Callable[[sync_api.FrameLocator], None], *,
    dark: bool = False, **link: str | list[str],
) -> None:  # fmt: skip
    page = browser.new_page(viewport=SIZE)
    wait(open_tab(page, server, dark=dark, **link))
    page.wait_for_timeout(1000)  # what is drawn last
    page.screenshot(path=TARGET / f"{name}.png")
    page.close()


def show_overview(frame: sync_api.FrameLocator) -> None:
    frame.get_by_role("img", name="Values of the worst op").wait_for()


def show_rows(frame: sync_api.FrameLocator) -> None:
    frame.get_by_role("rowheader", name="/conv2/Conv", exact=True).wait_for()


def show_histogram(frame: sync_api.FrameLocator) -> None:
    frame.get_by_role("img", name="Channel ranges", exact=True).wait_for()


def show_article(frame: sync_api.FrameLocator) -> None:
    frame.get_by_role("article").first.wait_for()


def show_graph(frame: sync_api.FrameLocator) -> None:
    frame.get_by_role("button", name="/conv2/Conv, Conv").first.wait_for()


def show_samples(frame: sync_api.FrameLocator) -> None:
    frame.get_by_role("table", name="What ops add to samples").wait_for()


def show_matrix(frame: sync_api.FrameLocator) -> None:
    frame.get_by_role("grid", name="Ops by trial").get_by_role("rowheader").first.wait_for()


def show_timeline(frame: sync_api.FrameLocator) -> None:
    frame.get_by_role("img", name="Timeline").wait_for()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
