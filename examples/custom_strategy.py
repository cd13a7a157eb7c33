"""A strategy of your own, after custom_strategy.py of MXNet's examples for Neural Compressor.

    python examples/custom_strategy.py [LOGDIR]

It keeps an op in fp32 if the errors of all tensors then fall by enough, tries the set, and goes on with other settings
of the tool. On the command line: inc-tb tune model.onnx --data D --eval E --strategy custom_strategy.py:what_helps
"""

import sys
import tempfile
from collections import defaultdict
from importlib.resources import files
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import inc_tb
from inc_tb.demo import add_outlier_channels, load_digits


class WhatHelps(inc_tb.Strategy):
    """Looks at errors only; every attempt that it yields is quantized, evaluated and logged."""

    def __init__(self, bad: float = 0.06, gain: float = 0.007) -> None:
        self.bad, self.gain = bad, gain

    def __call__(self, bench: inc_tb.Workbench) -> inc_tb.Attempts:
        base = inc_tb.Attempt(bench.quantizer.settings, note="everything in int8")
        trial = yield base  # goes on when the trial has ended
        print(f"all int8 loses {bench.loss(trial):.4f}, {bench.allowed:.4f} is allowed")
        kept: set[str] = set()
        errors = relative_errors(bench.diagnosis(base))
        readers = who_reads(bench.diagnosis(base))
        units = bench.units(base)
        for op in units:
            if errors.get(op, 0) > self.bad:
                # What an op writes is rounded unless those that read it are in fp32 as well.
                more = (kept | {op, *readers[op]}) & set(units)
                after = relative_errors(bench.diagnosis(inc_tb.Attempt(base.settings, tuple(more))))
                if sum(errors[name] - after.get(name, 0) for name in errors) >= self.gain * len(errors):
                    kept, errors = more, after
        order = tuple(op for op in units if op in kept)
        yield inc_tb.Attempt(base.settings, order, note="what made the tensors better")
        for settings in bench.quantizer.variants():
            yield inc_tb.Attempt(settings, order, note="the same with another setting")


what_helps = WhatHelps()


def relative_errors(diagnosis: inc_tb.Diagnosis) -> dict[str, float]:
    """Of the worst channel of what each op writes: the size of its error by its own size."""
    sizes = 10 ** (-diagnosis.ops["a_worst_channel_sqnr_db"] / 20)
    return {str(op): float(e) for op, e in zip(diagnosis.ops["name"], sizes, strict=True) if np.isfinite(e)}


def who_reads(diagnosis: inc_tb.Diagnosis) -> dict[str, list[str]]:
    readers: dict[str, list[str]] = defaultdict(list)
    for node in diagnosis.graph:
        for source in node.inputs:
            readers[source].append(node.name)
    return readers


def main(logdir: Path) -> None:
    images, labels, held_out = load_digits()
    calibration = [{"image": rows} for rows in images[~held_out][:200].reshape(10, 20, 1, 8, 8)]

    def evaluate(path: str) -> float:
        logits = onnxruntime.InferenceSession(path).run(None, {"image": images[held_out]})[0]
        return float((logits.argmax(axis=1) == labels[held_out]).mean())

    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model.onnx")
        onnx.save(add_outlier_channels(onnx.load(files("inc_tb") / "demo_data" / "digits_cnn.onnx")), model)
        tuned = inc_tb.tune(model, calibration, evaluate, strategy=what_helps, logdir=logdir)
    for trial in tuned.trials:
        print(f"{trial.name}: accuracy {trial.accuracy:.4f}, in fp32: {', '.join(trial.fallback) or 'nothing'}")
    print(f"{tuned.reason}; tensorboard --logdir {logdir}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "nc_workspace"))
