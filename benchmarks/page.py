"""The Quantization tab with 100 runs of 20,000 ops, against TensorBoard's own Time Series in the same browser.

    python -m benchmarks.page [--runs 100] [--ops 20000] [--columns 40] [--repeat 5]

Every figure is the median of several loads that take turns. Prints ratios and what is asked of them.
"""

from __future__ import annotations

import argparse
import gzip
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import inc_tb
from tests.browser.chromium import CHROMIUM, open_browser, sync_api
from tests.made_runs import make_diagnosis
from tests.tensorboards import Server, serve

STATIC = Path(__file__).parents[1] / "tb_plugin" / "static"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("runs", 100), ("ops", 20_000), ("columns", 40), ("repeat", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    if CHROMIUM is None:
        raise SystemExit("benchmarks.page needs chromium; Debian has it as a package.")
    print_bundle()
    with tempfile.TemporaryDirectory() as folder:
        logdir = Path(folder)
        write_runs(logdir, given.runs, given.ops, given.columns)
        size = sum(path.stat().st_size for path in logdir.rglob("*.tfevents.*"))
        print(f"{given.runs} runs x {given.ops:,} ops x {given.columns} columns: {size / 1e6:.0f} MB of event files")
        with serve(logdir, "--reload_interval=0") as server, open_browser() as browser:
            wait_until_loaded(server, given.runs)
            measure(server, browser, given.repeat)
            print_memory(server)


def write_runs(logdir: Path, runs: int, ops: int, columns: int) -> None:
    """Tables differ from run to run; the first run has histograms and channels of every op as well."""
    for i in range(runs):
        diagnosis = make_diagnosis(ops, seed=i, columns=columns, detail=None if i == 0 else 0)
        with inc_tb.SummaryWriter(logdir / f"trial-{i:03}", worst_ops=8) as writer:
            writer.add_diagnosis(diagnosis)
            writer.add_trial(inc_tb.Trial(f"trial-{i:03}", 0.7 + i / 1000, 0.8, objectives={"latency_ms": 5 + i / 50}))


def wait_until_loaded(server: Server, runs: int) -> None:
    deadline = time.monotonic() + 600
    while len(server.get("plugin/quantization/runs")["runs"]) < runs:
        if time.monotonic() > deadline:
            raise SystemExit("TensorBoard did not read the runs within 10 minutes.")
        time.sleep(0.5)


def measure(server: Server, browser: sync_api.Browser, repeat: int) -> None:
    found: dict[str, list[float]] = {}

    def note(what: str, seconds: float) -> None:
        found.setdefault(what, []).append(seconds)

    for _ in range(repeat):
        note("time series", first_sight(browser, f"{server.url}?tagFilter=trial/accuracy#timeseries", series_shown))
        note("overview", first_sight(browser, f"{server.url}#quantization", overview_shown))
        note("first rows", first_sight(browser, f"{server.url}#quantization&p.quantization.view=ops", rows_shown))
        page = browser.new_page(viewport={"width": 1500, "height": 1000})
        page.goto(f"{server.url}#quantization")
        overview_shown(page)
        page.wait_for_timeout(1000)  # the page has come to rest
        note("table", in_page(page, TABLE, None))
        page.wait_for_timeout(1000)
        for column in ("total", "arrived", "total"):
            note("sort", in_page(page, SORT, column))
        for row in (2, 5, 8):
            note("detail", in_page(page, DETAIL, row))
        page.close()
        note("compare", compare(browser, server))
    median = {what: statistics.median(seconds) for what, seconds in found.items()}
    ratio, ratio_of_overview = (median[what] / median["time series"] for what in ("first rows", "overview"))
    print(f"first card of Time Series   {median['time series']:6.2f} s")
    print(f"the overview                {median['overview']:6.2f} s   {ratio_of_overview:.2f} times (at most 0.8)")
    print(f"the table of ops by a link  {median['first rows']:6.2f} s   {ratio:.2f} times Time Series")
    print(f"the table after a click     {median['table'] * 1e3:6.0f} ms  (under 300)")
    print(f"sorting a column            {median['sort'] * 1e3:6.0f} ms  (under 50)")
    print(f"opening a detail            {median['detail'] * 1e3:6.0f} ms  (under 150)")
    print(f"one metric over 20 trials   {median['compare'] * 1e3:6.0f} ms  (under 1000)")


def first_sight(browser: sync_api.Browser, url: str, shown: Callable[[sync_api.Page], None]) -> float:
    page = browser.new_page(viewport={"width": 1500, "height": 1000})
    start = time.perf_counter()
    page.goto(url, wait_until="commit")
    shown(page)
    seconds = time.perf_counter() - start
    page.close()
    return seconds


def series_shown(page: sync_api.Page) -> None:
    page.locator("scalar-card svg, scalar-card canvas").first.wait_for(timeout=120_000)


def overview_shown(page: sync_api.Page) -> None:
    """With the worst ops, which are the last that it says in words."""
    overview = page.frame_locator("iframe").get_by_role("region", name="Overview", exact=True)
    overview.get_by_role("list", name="Worst ops").get_by_role("listitem").first.wait_for(timeout=120_000)


def rows_shown(page: sync_api.Page) -> None:
    page.frame_locator("iframe").locator("[role=grid] [role=rowheader]").first.wait_for(timeout=120_000)


def compare(browser: sync_api.Browser, server: Server) -> float:
    """From the click to the first rows of ops by trials; nothing of these runs was read before, but one header."""
    page = browser.new_page(viewport={"width": 1500, "height": 1000})
    page.goto(f"{server.url}#quantization&p.quantization.view=trials")
    page.frame_locator("iframe").get_by_role("button", name="Compare the first 20").wait_for(timeout=120_000)
    page.wait_for_timeout(2000)  # the page has come to rest
    seconds = in_page(page, COMPARE, None)
    page.close()
    return seconds


# Measured inside the page, from the click to the frame that shows its effect.
SORT = """async column => {
  const heads = [...document.querySelectorAll('[role=grid] [role=columnheader]')];
  const head = heads.find(head => head.querySelector('.head-label').textContent === column);
  const start = performance.now();
  head.querySelector('button').click();
  while (head.getAttribute('aria-sort') === 'none') await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
  return (performance.now() - start) / 1000;
}"""
TABLE = """async () => {
  const start = performance.now();
  document.querySelector('#tab-ops').click();
  while (!document.querySelector('[role=grid] [role=rowheader]')) await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
  return (performance.now() - start) / 1000;
}"""
COMPARE = """async () => {
  const start = performance.now();
  [...document.querySelectorAll('button')].find(button => button.textContent.startsWith('Compare the first')).click();
  const cells = () => [...document.querySelectorAll('[role=grid][aria-label="Ops by trial"] [role=gridcell]')];
  while (!cells().length || cells().some(cell => cell.textContent === '…')) await new Promise(requestAnimationFrame);
  return (performance.now() - start) / 1000;
}"""
DETAIL = """async row => {
  const target = document.querySelectorAll('[role=grid] .grid-row.body')[row];
  const name = target.querySelector('[role=rowheader]').textContent;
  const start = performance.now();
  target.click();
  const drawer = `[role=region][aria-label="${CSS.escape(name)}"]`;
  const shown = () => document.querySelector(`${drawer} [aria-label="Activation histogram"]`);
  while (!shown()) await new Promise(requestAnimationFrame);
  return (performance.now() - start) / 1000;
}"""


def in_page(page: sync_api.Page, script: str, argument: object) -> float:
    (frame,) = [frame for frame in page.frames if "plugin_entry" in frame.url]
    return float(frame.evaluate(script, argument))


def print_memory(server: Server) -> None:
    """TensorBoard and the data server that it starts, as Linux counts them."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    used = {pid: resident(pid) for pid in (str(server.pid), *children)}
    print(f"memory of TensorBoard       {sum(used.values()):6.0f} MB  (under 500; {len(used)} processes)")


def resident(pid: str) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024 / 1e6


def print_bundle() -> None:
    sizes = {path.name: len(gzip.compress(path.read_bytes())) for path in STATIC.glob("*.js")}
    del sizes["report.js"]  # the same once more, for files that are opened without a server
    graph = {name: size for name, size in sizes.items() if name.startswith(("elk", "GraphView"))}
    rest = sum(size for name, size in sizes.items() if name not in graph)
    print(f"bundle                      {rest / 1e3:6.1f} kB gzip without the graph (at most 150)")
    print(f"graph view and its layout   {sum(graph.values()) / 1e3:6.1f} kB gzip, loaded when the view opens")


if __name__ == "__main__":
    main()
