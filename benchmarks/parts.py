"""Where the time of a diagnosis goes: the processor's seconds of each part, for one network of each kind.

    OMP_NUM_THREADS=1 python -m benchmarks.parts

With one thread for each op, so that what a part takes is what the threads take that call it. "models" is what is left:
running both of them, and handing their arrays over.
"""

from __future__ import annotations

import importlib
import io
import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from threading import Lock
from typing import Any
from unittest import mock

import inc_tb
from benchmarks.times import Case, tensorflow_cnn, torch_transformer, transformer

PARTS = {
    "opening, matching": ("advise.diagnose", "open_pair"), "statistics": ("measure.stats", "PairStats.update"),
    "single samples": ("measure.by_sample", "SampleSums.update"), "tables, advice": ("advise.diagnose", "diagnosed"),
    "digests": ("advise.diagnose", "origin_of"),
}  # fmt: skip
CASES: dict[str, Callable[[Path], Case]] = {
    "ONNX transformer": lambda folder: transformer(folder, "static"), "PyTorch BERT": torch_transformer,
    "TFLite CNN": tensorflow_cnn,
}  # fmt: skip
BATCHES = 16


@contextmanager
def measured(found: dict[str, float]) -> Iterator[None]:
    """Adds up what the calling threads take in each part."""
    lock = Lock()

    def timed(part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            began = time.thread_time()
            try:
                return work(*given, **more)
            finally:
                with lock:
                    found[part] = found.get(part, 0.0) + time.thread_time() - began

        return call

    patches = []
    for part, (module, name) in PARTS.items():
        place: Any = importlib.import_module(f"inc_tb.{module}")
        *inner, last = name.split(".")
        for step in inner:
            place = getattr(place, step)
        patches.append(mock.patch.object(place, last, timed(part, getattr(place, last))))
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def main() -> None:
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    print(f"{'seconds of the processor':26}" + "".join(f"{part:>20}" for part in [*PARTS, "models", "all"]))
    for name, make in CASES.items():
        found: dict[str, float] = {}
        with tempfile.TemporaryDirectory() as folder:
            with redirect_stdout(io.StringIO()):  # converters talk
                case = make(Path(folder))
            inc_tb.diagnose(case.fp32, case.int8, [case.batch])
            with measured(found):
                began = time.process_time()
                inc_tb.diagnose(case.fp32, case.int8, [case.batch] * BATCHES)
                whole = time.process_time() - began
        rest = whole - sum(found.values())
        row = [*(found.get(part, 0.0) for part in PARTS), rest, whole]
        print(f"{name:26}" + "".join(f"{some:20.2f}" for some in row), flush=True)


if __name__ == "__main__":
    main()
