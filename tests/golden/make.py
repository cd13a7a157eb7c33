"""Writes the golden run of the current version: python -m tests.golden.make (in the repository's folder).

A golden run is made once, when VERSION of inc_tb.records grows, and then read by every later version. Never
make one again for a version that has been released.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import inc_tb
from inc_tb.records import VERSION, ProfileRow, Span
from tests.example_run import make_diagnosis, make_trial

GOLDEN = Path(__file__).parent


def main() -> None:
    target = GOLDEN / f"v{VERSION}" / "events.out.tfevents.golden"
    if target.exists():
        raise SystemExit(f"{target}: is there already; a golden run is kept for ever.")
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        with inc_tb.SummaryWriter(run) as writer:
            writer.add_diagnosis(make_diagnosis(Path(folder)), step=3)
            writer.add_trial(make_trial(), step=3)
            rows = [ProfileRow("/conv1/Conv", "Conv", 12.0, 4.0, 1.0, spans=[Span("fp32", 0, 0.0, 12.0)])]
            writer.add_profile(inc_tb.Profile(rows, ProfileRow("")), step=3)
        (written,) = run.iterdir()
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(written, target)


if __name__ == "__main__":
    main()
