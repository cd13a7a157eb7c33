"""A few inputs of every reader, and those that have failed; `make fuzz` goes on for as long as it is let.

A process of its own each: children of one with threads, as other tests start them, may wait for a lock for ever.
Readers whose frameworks take long to load have their turn in `make fuzz` alone.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.fuzz.engine import Outcome, Reader, fuzz
from tests.fuzz.readers import READERS
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="inputs are read in forked processes")
INPUTS = {
    "onnx": 30, "arrays": 300, "test-data": 100, "events": 60, "records": 80, "journals": 300, "carried": 200,
    "traces": 150, "workspaces": 10, "configs": 100, "code": 150, "torch-weights": 40,
}  # fmt: skip
"""Of each reader; a minute in all."""
FAILED = {
    "records": [62],
    "test-data": [179, 182, 183, 185, 190, 194],
    "journals": [165, 169, 181, 183, 195],
}  # fmt: skip
"""Inputs that once did what none may do."""


@pytest.mark.parametrize("reader", [r for r in READERS if r.name in INPUTS], ids=lambda reader: reader.name)
def test_nothing_but_our_own_errors(reader: Reader) -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--reader", reader.name, "--inputs", str(INPUTS[reader.name])]
    command += [word for number in FAILED.get(reader.name, ()) for word in ("--also", str(number))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "refused" in done.stdout, "the changes are too small to be noticed"


def _raise(_: object) -> None:
    raise KeyError("foreign")


def _die(_: object) -> None:
    os.abort()


@pytest.mark.parametrize(("read", "kind"), [(_raise, "foreign"), (_die, "crash")])
def test_the_engine_tells_what_may_not_be(read: object, kind: str) -> None:
    outcome: Outcome = fuzz(Reader("broken", lambda folder, _: folder, read), range(3))  # type: ignore[arg-type]
    assert outcome.counts == {kind: 3}
    assert [number for number, _ in outcome.failures] == [0, 1, 2]
