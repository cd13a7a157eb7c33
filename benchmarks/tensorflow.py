"""What a diagnosis and a probe of TensorFlow models cost, against running the models.

    python -m benchmarks.tensorflow [--repeats 3]

A Keras MobileNetV2 with random weights and the int8 TFLite model that it becomes, 64 images. A diagnosis is allowed 4
times the time that the two models themselves take for the same images, and no more memory for more samples. Times are
taken in turns in one process and the ratio is that of their medians; "least" is the ratio of the shortest times, which
other work on the machine changes less. Peaks are those of processes of their own. The probe is one unit in a simulation
of 8 samples, against fp32's own time for them.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
if __name__ in ("__main__", "tensorflow"):
    # The folder of a script is where Python looks first: `import tensorflow` there finds this file, not the package.
    looked_in = list(sys.path)
    sys.path[:] = [str(ROOT), *(place for place in looked_in if Path(place).resolve() != ROOT / "benchmarks")]
    if __name__ == "tensorflow":
        del sys.modules["tensorflow"]
        importlib.import_module("tensorflow")
        sys.path[:] = looked_in

SIZE, SAMPLES, PROBED = 96, 64, 8
MOST_TIME = 4.0
PEAKS = (64, 512)


def make(folder: Path) -> None:
    """The network and its int8 form; statistics of the batch norms as after some training, so that they matter."""
    import keras
    import numpy as np

    import inc_tb

    keras.utils.set_random_seed(0)
    model = keras.applications.MobileNetV2((SIZE, SIZE, 3), weights=None)
    rng = np.random.default_rng(0)
    for weight in model.weights:
        if "moving_variance" in weight.path:
            weight.assign(rng.uniform(0.5, 2, weight.shape))
    model.export(folder / "fp32", verbose=False)
    tool = inc_tb.TensorFlowQuantizer()
    prepared = tool.prepare(folder / "fp32", folder / "work")
    name = model.inputs[0].name
    tool.quantize(prepared, folder / "int8.tflite", [{name: images(16)}], tool.settings, [])
    (folder / "input").write_text(name)


def images(count: int):  # noqa: ANN201
    import numpy as np

    return np.random.default_rng(1).normal(size=(count, SIZE, SIZE, 3)).astype(np.float32)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def times(folder: Path, repeats: int) -> None:
    import inc_tb
    from inc_tb.capture import open_results, open_switches
    from inc_tb.simulation import Simulation

    name = (folder / "input").read_text()
    fp32, int8 = str(folder / "fp32"), str(folder / "int8.tflite")
    batch = {name: images(SAMPLES)}
    runs = [open_results(fp32), open_results(int8)]
    for run in runs:
        run(batch)
    own, diagnosed = [], []
    for _ in range(repeats):
        own.append(sum(seconds(lambda run=run: run(batch)) for run in runs))
        diagnosed.append(seconds(lambda: inc_tb.diagnose(fp32, int8, batch)))
    opening = seconds(lambda: inc_tb.diagnose(fp32, int8, {name: images(1)}))
    ratio, least = median(diagnosed) / median(own), min(diagnosed) / min(own)
    print(f"both models by themselves, {SAMPLES} images: {median(own):.2f} s")
    print(f"diagnose: {median(diagnosed):.2f} s, {ratio:.2f} times that (least {least:.2f}); at most {MOST_TIME:g}")
    print(f"of which opening and matching the models, and one image: {opening:.2f} s")
    switches = open_switches(fp32, int8)
    few = {name: images(PROBED)}
    simulation = Simulation(switches, [few], samples=PROBED)
    units = [unit.name for unit in switches.units]
    simulation.errors(simulation.sites_of(units[0]))
    reference = median(seconds(lambda: runs[0](few)) for _ in range(5))
    probed = median(seconds(lambda unit=unit: simulation.errors(simulation.sites_of(unit))) for unit in units[1:9])
    print(f"probe: {probed * 1000:.0f} ms a unit, {probed / reference:.2f} times fp32's {reference * 1000:.0f} ms")


def peak_mib(folder: Path, samples: int) -> float:
    command = [sys.executable, "-m", "benchmarks.tensorflow", "--folder", str(folder), "--samples", str(samples)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return float(done.stdout.split()[-1])


def diagnose(folder: Path, samples: int) -> None:
    import inc_tb

    name = (folder / "input").read_text()
    batches = ({name: images(32)} for _ in range(samples // 32))
    inc_tb.diagnose(str(folder / "fp32"), str(folder / "int8.tflite"), batches)
    status = Path("/proc/self/status").read_text()
    print(int(status.split("VmHWM:")[1].split()[0]) / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--samples", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if given.folder is not None:
        diagnose(given.folder, given.samples)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder)
        times(folder, given.repeats)
        peaks = {samples: peak_mib(folder, samples) for samples in PEAKS}
        few, many = PEAKS
        print(f"peak of {few} samples {peaks[few]:.0f} MiB, of {many} {peaks[many]:.0f}: {peaks[many] / peaks[few]:.3f}")


if __name__ == "__main__":
    main()
