"""Finds what int8 costs no accuracy with, and the fewest ops that must stay in fp32, and proves it with trials.

    python examples/tune_onnx.py [LOGDIR]

Uses the network of `inc-tb demo` in place of yours: replace `model`, `calibration` and `evaluate`. The same from the
command line: inc-tb tune model.onnx --data samples.npz --eval file.py:evaluate
"""

import sys
import tempfile
from importlib.resources import files
from pathlib import Path

import onnx
import onnxruntime

import inc_tb
from inc_tb.demo import add_outlier_channels, load_digits


def main(logdir: Path) -> None:
    images, labels, held_out = load_digits()
    calibration = [{"image": rows} for rows in images[~held_out][:200].reshape(10, 20, 1, 8, 8)]

    def evaluate(path: str) -> float:
        logits = onnxruntime.InferenceSession(path).run(None, {"image": images[held_out]})[0]
        return float((logits.argmax(axis=1) == labels[held_out]).mean())

    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model.onnx")
        onnx.save(add_outlier_channels(onnx.load(files("inc_tb") / "demo_data" / "digits_cnn.onnx")), model)
        tuned = inc_tb.tune(model, calibration, evaluate, tolerance=0.01, logdir=logdir)
    for trial in tuned.trials:
        print(f"{trial.name}: accuracy {trial.accuracy:.4f}, in fp32: {', '.join(trial.fallback) or 'nothing'}")
    print(f"fp32 has {tuned.baseline:.4f}; the best model is {tuned.model}\n{tuned.recipe}")
    print(f"tensorboard --logdir {logdir}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "nc_workspace"))
