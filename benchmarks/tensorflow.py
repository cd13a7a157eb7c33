"""What a diagnosis and a probe of TensorFlow models cost, against running the models.

    python -m benchmarks.tensorflow [--repeats 3]

A Keras MobileNetV2 for images of 224 x 224 with random weights, and the int8 TFLite model that it becomes; 64 images. A
diagnosis, from the model in memory to the result, is allowed 4 times the time that the two models themselves take for
the same images: Keras' predict, and TFLite's interpreter image by image, both as they come. Beside it stands the ratio
to the fastest way there is: both in batches of 64 on all cores, the graph frozen. Times are taken in turns in one
process and the ratios are those of their medians; "least" is the ratio of the shortest times, which other work on the
machine changes less. Memory is not to grow with the samples: peaks are those of processes of their own. The probe is
one unit in a simulation of 8 samples, against the frozen graph's own time for them.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
import time
import warnings
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

SIZE, SAMPLES, PROBED = 224, 64, 8
MOST_TIME = 4.0
PEAKS = (64, 512)


def network():
    """With statistics of the batch norms as after some training, so that they matter."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    model = keras.applications.MobileNetV2(input_tensor=keras.Input((SIZE, SIZE, 3), name="image"), weights=None)
    rng = np.random.default_rng(0)
    for weight in model.weights:
        if "moving_variance" in weight.path:
            weight.assign(rng.uniform(0.5, 2, weight.shape))
    return model


def make(folder: Path) -> None:
    import inc_tb

    model, tool = network(), inc_tb.TensorFlowQuantizer()
    prepared = tool.prepare(model, folder / "work")
    batches = [{model.inputs[0].name: images(16)}]
    tool.quantize(prepared, folder / "int8.tflite", batches, tool.settings, [])
    prepared.rename(folder / "fp32.pb")


def images(count: int):
    import numpy as np

    return np.random.default_rng(1).normal(size=(count, SIZE, SIZE, 3)).astype(np.float32)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def interpreted(path: Path, given):
    """One image after the other, as the file comes."""
    import tensorflow as tf

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        interpreter = tf.lite.Interpreter(str(path))
    interpreter.allocate_tensors()
    place, result = interpreter.get_input_details()[0]["index"], interpreter.get_output_details()[0]["index"]

    def run() -> None:
        for image in given:
            interpreter.set_tensor(place, image[None])
            interpreter.invoke()
            interpreter.get_tensor(result)

    return run


def times(folder: Path, repeats: int) -> None:
    import inc_tb
    from inc_tb.frameworks.models import open_results, open_switches
    from inc_tb.search.simulation import Simulation

    model, int8, given = network(), folder / "int8.tflite", images(SAMPLES)
    batch = {model.inputs[0].name: given}
    usual = [lambda: model.predict(given, verbose=0), interpreted(int8, given)]
    opened = [open_results(folder / "fp32.pb"), open_results(int8)]
    fastest = [lambda run=run: run(batch) for run in opened]
    inc_tb.diagnose(model, int8, {name: a[:8] for name, a in batch.items()})
    found: dict[str, list[float]] = {"usual": [], "fastest": [], "diagnose": []}
    for turn in range(repeats + 1):
        took = {
            "usual": sum(map(seconds, usual)), "fastest": sum(map(seconds, fastest)),
            "diagnose": seconds(lambda: inc_tb.diagnose(model, int8, batch)),
        }  # fmt: skip
        for name, value in took.items():
            found[name] += [value] if turn else []  # the first is to warm up
    middle, least = ({name: pick(values) for name, values in found.items()} for pick in (median, min))
    for own, how in (("usual", "as they come"), ("fastest", "as fast as they go")):
        ratios = middle["diagnose"] / middle[own], least["diagnose"] / least[own]
        print(f"both models {how}, {SAMPLES} images: {middle[own]:.2f} s")
        print(f"  diagnose: {middle['diagnose']:.2f} s, {ratios[0]:.2f} times that (least {ratios[1]:.2f})")
    print(f"  at most {MOST_TIME:g} times the first is allowed")
    switches = open_switches(folder / "fp32.pb", int8)
    few = {name: a[:PROBED] for name, a in batch.items()}
    simulation = Simulation(switches, [few], samples=PROBED)
    units = [unit.name for unit in switches.units]
    simulation.errors(simulation.sites_of(units[0]))
    reference = median(seconds(lambda: opened[0](few)) for _ in range(5))
    probed = median(seconds(lambda unit=unit: simulation.errors(simulation.sites_of(unit))) for unit in units[1:9])
    print(f"probe: {probed * 1000:.0f} ms a unit, {probed / reference:.2f} times fp32's {reference * 1000:.0f} ms")


def peak_mib(folder: Path, samples: int) -> float:
    command = [sys.executable, "-m", "benchmarks.tensorflow", "--folder", str(folder), "--samples", str(samples)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return float(done.stdout.split()[-1])


def diagnose(folder: Path, samples: int) -> None:
    import inc_tb

    batches = (images(32) for _ in range(samples // 32))
    inc_tb.diagnose(str(folder / "fp32.pb"), str(folder / "int8.tflite"), batches)
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
        print(
            f"peak of {few} samples {peaks[few]:.0f} MiB, of {many} {peaks[many]:.0f}: {peaks[many] / peaks[few]:.3f}"
        )


if __name__ == "__main__":
    main()
