"""Peak memory must not grow with the number of samples."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "memory.py"


@pytest.mark.slow
def test_800_samples_need_at_most_5_percent_more_than_100() -> None:
    done = subprocess.run([sys.executable, str(BENCHMARK)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ratio = float(done.stdout.split("need ")[1].split()[0])
    assert ratio < 1.05
