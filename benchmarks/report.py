"""How large a report is, and how soon its first rows are there when it is opened from disk.

python -m benchmarks.report [--ops 1000] [--repeat 5]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import inc_tb
from inc_tb.show.page import page_of
from tests.browser.chromium import CHROMIUM, open_browser, sync_api
from tests.made_runs import make_diagnosis

OPENED = "#quantization&p.quantization.view=ops"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("ops", 1000), ("repeat", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    if CHROMIUM is None:
        raise SystemExit("benchmarks.report needs chromium; Debian has it as a package.")
    with tempfile.TemporaryDirectory() as folder:
        run, file = Path(folder, "trial-001"), Path(folder, "report.html")
        with inc_tb.SummaryWriter(run) as writer:
            writer.add_diagnosis(make_diagnosis(given.ops))
        began = time.perf_counter()
        file.write_bytes(page_of({"trial-001": run}, "benchmark"))
        took = time.perf_counter() - began
        print(f"report of {given.ops:,} ops with histograms and channels of each")
        print(f"size                        {file.stat().st_size / 1e6:6.2f} MB  (at most 5)")
        print(f"writing it                  {took:6.2f} s")
        with open_browser() as browser:
            seconds = statistics.median(first_rows(browser, file) for _ in range(given.repeat))
        print(f"first rows from disk        {seconds:6.2f} s   (under 2)")


def first_rows(browser: sync_api.Browser, file: Path) -> float:
    page = browser.new_page(viewport={"width": 1500, "height": 1000})
    start = time.perf_counter()
    page.goto(file.as_uri() + OPENED, wait_until="commit")
    page.locator("[role=grid] [role=rowheader]").first.wait_for(timeout=120_000)
    seconds = time.perf_counter() - start
    page.close()
    return seconds


if __name__ == "__main__":
    main()
