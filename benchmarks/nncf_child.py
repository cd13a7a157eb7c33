"""NNCF's quantize_with_accuracy_control, run by benchmarks/peers.py in an environment of its own.

Writes the path of every candidate to standard output, and reads its accuracy from standard input.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # before NNCF is imported, whose own news are not for the parent

import nncf  # noqa: E402
import onnx  # noqa: E402
from numpy.lib.format import read_array  # noqa: E402

TOLERANCE = 0.01


def main() -> None:
    model, data, target = map(Path, sys.argv[1:])

    def validate(candidate: onnx.ModelProto, _: Iterable[Any]) -> tuple[float, None]:
        place = target.with_suffix(".candidate.onnx")
        onnx.save(candidate, place)
        print(place, file=answers, flush=True)
        return float(input()), None

    # The names of the inputs are those of the files.
    feeds = [{path.stem: read_array(path.open("rb")) for path in folder.iterdir()} for folder in sorted(data.iterdir())]
    calibration = nncf.Dataset(feeds)
    made = nncf.quantize_with_accuracy_control(
        onnx.load(model), calibration, nncf.Dataset(feeds[:1]), validate, max_drop=TOLERANCE,
        drop_type=nncf.DropType.RELATIVE,
    )  # fmt: skip
    onnx.save(made, target)


if __name__ == "__main__":
    main()
