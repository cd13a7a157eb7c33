"""A diagnosis beside onnxruntime's own qdq_loss_debug: same models, same samples, same run.

    python -m benchmarks.diagnose

qdq_loss_debug collects the activations of both models, matches them and computes one SQNR each; a
diagnosis computes the whole op table, histograms, channels, added errors and suggestions.
"""

import logging
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from onnxruntime.quantization import CalibrationDataReader
from onnxruntime.quantization.qdq_loss_debug import (
    collect_activations,
    compute_activation_error,
    compute_weight_error,
    create_activation_matching,
    create_weight_matching,
    modify_model_output_intermediate_tensors,
)

import inc_tb
from benchmarks.models import images, make_cnn, quantize

CASES = {
    "digits CNN, 8 x 8": {"size": 8, "width": 32, "blocks": 4, "samples": 256},
    "CNN, 32 x 32": {"size": 32, "width": 32, "blocks": 8, "samples": 64},
    "CNN, 96 x 96": {"size": 96, "width": 48, "blocks": 6, "samples": 16},
}


def with_onnxruntime(fp32: Path, int8: Path, batches: list[np.ndarray], folder: Path) -> int:
    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.batches = iter({"image": rows} for rows in batches)

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.batches, None)

    found = []
    for model in (fp32, int8):
        augmented = folder / f"augmented_{model.name}"
        modify_model_output_intermediate_tensors(model, augmented)
        found.append(collect_activations(str(augmented), Reader()))
    errors = compute_activation_error(create_activation_matching(found[1], found[0]))
    compute_weight_error(create_weight_matching(str(fp32), str(int8)))
    return len(errors)


def timed_in_turns(*works: Callable[[], object], repeats: int = 5) -> list[float]:
    """The shortest time of each; in turns, so that what else the machine does hits all alike."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for work, found in zip(works, times, strict=True):
            start = time.perf_counter()
            work()
            found.append(time.perf_counter() - start)
    return [min(found) for found in times]


def works(case: Mapping[str, int], batch_size: int, folder: Path) -> tuple[Callable[[], object], Callable[[], object]]:
    """A diagnosis, and the same models and samples by qdq_loss_debug."""
    settings = dict(case)
    samples = settings.pop("samples")
    fp32 = make_cnn(folder / "fp32.onnx", **settings)
    data = images(samples, case["size"])
    int8 = quantize(fp32, folder / "int8.onnx", data[:16])
    batches = [data[i : i + batch_size] for i in range(0, samples, batch_size)]
    return lambda: inc_tb.diagnose(fp32, int8, batches), lambda: with_onnxruntime(fp32, int8, batches, folder)


def main() -> None:
    logging.disable(logging.WARNING)
    print(f"{'':24}{'samples':>8}{'inc_tb':>10}{'qdq_loss_debug':>16}{'ratio':>8}")
    for name, case in CASES.items():
        for batch_size in (1, 8):
            with tempfile.TemporaryDirectory() as folder:
                ours, theirs = timed_in_turns(*works(case, batch_size, Path(folder)))
            label = f"{name}, batch {batch_size}"
            print(f"{label:28}{case['samples']:4}{ours:9.2f}s{theirs:15.2f}s{theirs / ours:7.1f}x")


if __name__ == "__main__":
    main()
