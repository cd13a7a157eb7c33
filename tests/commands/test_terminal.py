"""Progress bars on a terminal, and beside a pipe."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

WORK = """
import time
from inc_tb.commands.terminal import out, progress_bar
with progress_bar("counting", 3) as show:
    for i in range(3):
        show(i + 1)
        out.print("row", i, highlight=False)
        time.sleep(0.05)
"""
ROWS = "row 0\nrow 1\nrow 2\n"


def printed(*, is_terminal: bool) -> tuple[str, str]:
    """Standard output, a pipe; and standard error, which is a terminal or another pipe."""
    ours, theirs = pty.openpty() if is_terminal else os.pipe()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen([sys.executable, "-c", WORK], stdout=subprocess.PIPE, stderr=theirs, env=env) as process:
        os.close(theirs)
        assert process.stdout is not None
        said = b""
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # how Linux says that the other end of a terminal is closed
                break
            if not part:
                break
            said += part
        found = process.stdout.read().decode()
    os.close(ours)
    return found, said.decode()


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals there")
def test_a_bar_is_gone_when_the_work_is_done_and_leaves_the_pipe_alone() -> None:
    out, err = printed(is_terminal=True)
    assert out == ROWS
    assert "counting" in err
    last = err.rpartition("counting")[2]
    assert "\x1b[2K" in last  # the line is erased
    assert "row" not in err
    assert last.endswith(("\x1b[2K", "\x1b[?25h"))


def test_nothing_of_it_goes_to_a_file() -> None:
    assert printed(is_terminal=False) == (ROWS, "")
