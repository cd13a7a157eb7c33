"""Peak memory of a diagnosis, each in a process of its own: with more samples, and against the budget.

    python benchmarks/memory.py [--more-samples | FP32.onnx INT8.onnx SAMPLES.npz]

Peaks are above those of the same process before it opens the models.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIZE = 64
BUDGETS = 256, 1024
CASES = (
    ("recognizer", (4, 3, 48, 320)), ("recognizer", (32, 3, 48, 320)), ("recognizer", (32, 3, 96, 960)),
    ("transformer", (8, 128, 64)), ("transformer", (32, 128, 64)), ("transformer", (4, 1024, 64)),
)  # fmt: skip


def measured(*arguments: object) -> list[float]:
    command = [sys.executable, __file__, "--diagnose", *map(str, arguments)]
    return [float(word) for word in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()]


def diagnose(fp32: str, int8: str, samples: str, budget: str) -> None:
    import inc_tb
    from inc_tb.frameworks.models import open_pair

    open_pair(fp32, int8)
    before, start = peak_mib(), time.perf_counter()
    inc_tb.diagnose(fp32, int8, samples, memory_budget=int(budget) << 20)
    print(peak_mib(), peak_mib() - before, time.perf_counter() - start)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def more_samples(folder: Path) -> None:
    import numpy as np
    from models import images, make_cnn, quantize

    fp32 = make_cnn(folder / "fp32.onnx", size=SIZE, width=32, blocks=4)
    quantize(fp32, folder / "int8.onnx", images(16, SIZE))
    peaks = {}
    for samples in (100, 800):
        np.savez(folder / f"{samples}.npz", image=images(samples, SIZE))
        peaks[samples] = measured(fp32, folder / "int8.onnx", folder / f"{samples}.npz", 1024)[0]
        print(f"{samples} samples: {peaks[samples]:.0f} MiB")
    print(f"800 samples need {peaks[800] / peaks[100]:.3f} times the memory of 100")


def against_budgets(fp32: Path, int8: Path, samples: Path, label: str) -> None:
    for budget in BUDGETS:
        _, peak, seconds = measured(fp32, int8, samples, budget)
        print(
            f"{label:32}{budget:8} MiB{peak:8.0f} MiB{seconds:8.1f} s{'' if peak <= budget else '   over'}", flush=True
        )


def dynamic_shapes(folder: Path) -> None:
    import numpy as np
    from dynamic import make_recognizer, make_transformer
    from models import quantize

    makers = {"recognizer": make_recognizer, "transformer": make_transformer}
    for kind, shape in CASES:
        fp32, samples = folder / f"{kind}.onnx", folder / "samples.npz"
        data = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        if not fp32.exists():
            quantize(makers[kind](fp32), folder / f"{kind}_int8.onnx", data[:4], "x")
        np.savez(samples, x=data)
        against_budgets(fp32, folder / f"{kind}_int8.onnx", samples, f"{kind}, {'x'.join(map(str, shape))}")


def main(given: list[Path]) -> None:
    with tempfile.TemporaryDirectory() as name:
        if not given:
            more_samples(Path(name))
        print(f"{'':32}{'budget':>12}{'peak':>12}{'time':>10}")
        if given:
            against_budgets(*given, given[0].stem)
        else:
            dynamic_shapes(Path(name))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--diagnose"]:
        diagnose(*sys.argv[2:])
    elif sys.argv[1:2] == ["--more-samples"]:
        with tempfile.TemporaryDirectory() as name:
            more_samples(Path(name))
    else:
        main([Path(argument) for argument in sys.argv[1:]])
