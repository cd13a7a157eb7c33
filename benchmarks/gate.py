"""How often `inc-tb compare` takes chance for a change, and how many planted faults it finds.

    python -m benchmarks.gate [--comparisons 200] [--faults 100] [--samples 64]

The network is the demo's CNN for digits, quantized by ONNX Runtime. For false alarms it is compared with itself, each
side on samples of its own, drawn with replacement. A fault is a scale, a zero point or some weights of the quantized
file changed at random; it counts as one if the error at the output grows by 1 dB or more on samples that the comparison
does not see. "named" is how often the op is one that writes or reads the tensor, or has the weights, that were changed.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, quantize_static

import inc_tb
from inc_tb.demo import load_digits
from inc_tb.gate.comparing import compare
from inc_tb.measure.by_sample import ID_BYTES, BySample, numbers
from inc_tb.records import SampleRow
from inc_tb.store.reader import Run

POOL, WORSE_DB = 256, 1.0
"""As many samples as the errors of all ops are kept of; and what a fault does at least."""
Places = np.ndarray[Any, np.dtype[np.int64]]


class Fault(NamedTuple):
    how: str
    ops: set[str]


class Calibration(CalibrationDataReader):
    def __init__(self, images: Any) -> None:
        self._batches = iter({"image": rows} for rows in np.split(images, 4))

    def get_next(self) -> Any:
        return next(self._batches, None)


def chosen(run: Run, places: Places) -> Run:
    """The run as it would be of these samples only: static quantization does not depend on what else is in a batch."""
    held = run.diagnosis.by_sample

    def of(stored: bytes) -> bytes:
        return numbers(stored)[places].tobytes() if stored else b""

    rows = [SampleRow(r.op, of(r.power), of(r.error), of(r.added), r.is_output) for r in held.rows]
    ids = np.frombuffer(held.ids, f"V{ID_BYTES}")[places].tobytes()
    diagnosis = inc_tb.Diagnosis(**{**vars(run.diagnosis), "by_sample": BySample(ids, rows)})
    return Run(run.name, {0: diagnosis})


def measured(name: str, fp32: Path, int8: Path, images: Any) -> Run:
    return Run(name, {0: inc_tb.diagnose(fp32, int8, {"image": images})})


def output_db(run: Run) -> float:
    """Noise at the output, the mean over samples."""
    (row,) = (row for row in run.diagnosis.by_sample.rows if row.is_output)
    return float(10 * np.log10(np.maximum(numbers(row.error), 1e-30) / numbers(row.power)).mean())


def planted(model: onnx.ModelProto, fp32: onnx.ModelProto, random: np.random.Generator) -> Fault:
    """Changes the quantized model in one place."""
    constants = {t.name: t for t in model.graph.initializer}
    steps = [n for n in model.graph.node if n.op_type == "QuantizeLinear"]
    weights = [
        n for n in model.graph.node
        if n.op_type == "DequantizeLinear" and n.input[0] in constants and constants[n.input[0]].data_type != 6
    ]  # fmt: skip
    how = str(random.choice(["coarse", "clipped", "shifted", "few bits", "wrong sign"]))
    if how in ("coarse", "clipped", "shifted"):
        node = steps[random.integers(len(steps))]
        place = node.input[2 if how == "shifted" else 1]
        value = numpy_helper.to_array(constants[place])
        factor = float(random.uniform(2, 16))
        changed = {"coarse": value * factor, "clipped": value / factor, "shifted": value + random.integers(8, 60)}[how]
        if how == "shifted":
            changed = np.clip(changed, np.iinfo(value.dtype).min, np.iinfo(value.dtype).max)
        tensor = node.input[0]
    else:
        node = weights[random.integers(len(weights))]
        place = node.input[0]
        value = numpy_helper.to_array(constants[place]).astype(np.int64)
        coarse = 2 ** int(random.integers(4, 7))
        changed = np.round(value / coarse) * coarse if how == "few bits" else value.copy()
        if how == "wrong sign":
            changed[random.integers(len(value))] *= -1
        changed = np.clip(changed, -128, 127)
        tensor = node.output[0]
    constants[place].CopyFrom(
        numpy_helper.from_array(changed.astype(numpy_helper.to_array(constants[place]).dtype), place)
    )
    return Fault(how, ends(model if tensor == node.output[0] else fp32, tensor))


def ends(model: onnx.ModelProto, tensor: str) -> set[str]:
    """The ops that write and read a tensor; those around them where activations are part of one."""
    found: set[str] = set()
    front = {tensor}
    for _ in range(3):
        near = [n for n in model.graph.node if front & {*n.input, *n.output}]
        found |= {n.name for n in near}
        front |= {name for n in near if n.op_type in ("Relu", "Flatten", "MaxPool") for name in (*n.input, *n.output)}
    return found


def false_alarms(run: Run, random: np.random.Generator, comparisons: int, samples: int) -> Iterator[tuple[str, int]]:
    """Of the same samples drawn anew, of two halves that share none, and of draws from all of them."""
    half = np.arange(POOL)
    ways = {
        "resampled from the same samples": lambda: [random.choice(samples, samples) for _ in range(2)],
        "resampled from all samples": lambda: [random.choice(POOL, samples) for _ in range(2)],
        "no sample in both": lambda: np.split(random.permutation(half)[: 2 * samples], 2),
    }
    for name, draw in ways.items():
        found = [compare(*(chosen(run, places) for places in draw())) for _ in range(comparisons)]
        yield name, sum(not one.ok for one in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comparisons", type=int, default=200)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--samples", type=int, default=64)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    images, _, held_out = load_digits()
    pool, unseen = images[held_out][:POOL], images[held_out][POOL:]
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        fp32, int8, bad = Path(folder, "fp32.onnx"), Path(folder, "int8.onnx"), Path(folder, "bad.onnx")
        fp32.write_bytes((files("inc_tb") / "demo_data" / "digits_cnn.onnx").read_bytes())
        quantize_static(fp32, int8, Calibration(images[~held_out][:128]), reduce_range=True, per_channel=True)
        run, healthy_db = measured("base", fp32, int8, pool), output_db(measured("", fp32, int8, unseen))
        print(f"{'':36}{'alarms':>8}{'of':>6}")
        for name, alarms in false_alarms(run, random, arguments.comparisons, arguments.samples):
            print(f"{name:36}{alarms:>8}{arguments.comparisons:>6}", flush=True)
        found = {"paired": [0, 0], "no sample in both": [0, 0]}
        count = tried = 0
        while count < arguments.faults:
            tried += 1
            model = onnx.load(int8)
            fault = planted(model, onnx.load(fp32), random)
            onnx.save(model, bad)
            if output_db(measured("", fp32, bad, unseen)) - healthy_db < WORSE_DB:
                continue
            count += 1
            faulty = measured("new", fp32, bad, pool)
            places = random.permutation(POOL)
            first, second = places[: arguments.samples], places[arguments.samples : 2 * arguments.samples]
            for name, other in (("paired", first), ("no sample in both", second)):
                told = compare(chosen(run, first), chosen(faulty, other))
                found[name][0] += not told.ok
                found[name][1] += not told.ok and told.culprit in fault.ops
        print(f"\n{'':36}{'found':>8}{'named':>8}{'of':>6}   ({tried} tried)")
        for name, (alarms, named) in found.items():
            print(f"{name:36}{alarms:>8}{named:>8}{count:>6}")


if __name__ == "__main__":
    main()
