"""python -m tests.fuzz [--reader NAME] [--inputs N] [--seconds S] [--first N]: counts by reader, and what failed."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.fuzz.engine import Outcome, fuzz
from tests.fuzz.readers import READERS

_AT_ONCE = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reader", action="append", choices=[reader.name for reader in READERS])
    parser.add_argument("--inputs", type=int, default=1000, help="of each reader")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for each reader")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--also", type=int, action="append", default=[], help="number of one more")
    given = parser.parse_args()
    failed = 0
    for reader in READERS:
        if given.reader and reader.name not in given.reader:
            continue
        began, counts = time.monotonic(), Counter[str]()
        for start in range(given.first, given.first + given.inputs, _AT_ONCE):
            if time.monotonic() - began > given.seconds:
                break
            numbers = range(start, min(start + _AT_ONCE, given.first + given.inputs))
            failed += _tell(reader.name, fuzz(reader, numbers), counts)
        if given.also:
            failed += _tell(reader.name, fuzz(reader, given.also), counts)
        took = time.monotonic() - began
        told = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
        sys.stdout.write(f"{reader.name}: {sum(counts.values())} inputs in {took:.0f} s: {told}\n")
        sys.stdout.flush()
    sys.exit(bool(failed))


def _tell(name: str, outcome: Outcome, counts: Counter[str]) -> int:
    counts += outcome.counts
    for number, told in outcome.failures:
        sys.stdout.write(f"  {name} {number}: {told}\n")
    return len(outcome.failures)


if __name__ == "__main__":
    main()
