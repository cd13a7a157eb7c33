"""Tunes for accuracy and watches whether the int8 model still decides for the same reasons.

    python examples/shapley_objective.py [LOGDIR]

A Shapley value is what one part of the input contributes to the score of the class: its average gain over all orders in
which the parts can be shown. The mean squared difference between fp32's and int8's values is an objective of every
trial, beside latency and size. Parts of the picture that are not shown have the value of the average picture.
"""

import sys
import tempfile
from importlib.resources import files
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import inc_tb
from inc_tb.demo import add_outlier_channels, load_digits

PARTS = 16
"""Squares of 2 x 2 pixels."""
ORDERS = 32


def masks() -> np.ndarray:
    """For each order, which parts are shown after each step: ORDERS x (PARTS + 1) x PARTS."""
    rng = np.random.default_rng(0)
    found = np.zeros((ORDERS, PARTS + 1, PARTS), bool)
    for order in found:
        for step, part in enumerate(rng.permutation(PARTS)):
            order[step + 1 :, part] = True
    return found


def shapley_values(model: str, images: np.ndarray, blank: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """One value for each image and part."""
    session = onnxruntime.InferenceSession(model)
    shown = masks()
    pixels = shown.reshape(-1, 4, 4).repeat(2, axis=1).repeat(2, axis=2)[:, None]
    values = []
    for image, wanted in zip(images, classes, strict=True):
        scores = session.run(None, {"image": np.where(pixels, image, blank).astype(np.float32)})[0][:, wanted]
        gains = np.diff(scores.reshape(ORDERS, PARTS + 1), axis=1)
        added = shown[:, 1:] & ~shown[:, :-1]  # which part each step has shown
        values.append((added * gains[:, :, None]).sum(axis=(0, 1)) / ORDERS)
    return np.array(values)


def main(logdir: Path) -> None:
    images, labels, held_out = load_digits()
    explained = images[held_out][:16]
    calibration = {"image": images[~held_out][:200]}

    def evaluate(path: str) -> float:
        logits = onnxruntime.InferenceSession(path).run(None, {"image": images[held_out]})[0]
        return float((logits.argmax(axis=1) == labels[held_out]).mean())

    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model.onnx")
        onnx.save(add_outlier_channels(onnx.load(files("inc_tb") / "demo_data" / "digits_cnn.onnx")), model)
        blank, classes = images[~held_out].mean(axis=0), labels[held_out][:16]
        reasons = shapley_values(str(model), explained, blank, classes)

        def shapley_mse(path: str) -> float:
            return float(np.square(shapley_values(path, explained, blank, classes) - reasons).mean())

        tuned = inc_tb.tune(model, calibration, evaluate, objectives=["latency", "size", shapley_mse], logdir=logdir)
    for trial in tuned.trials:
        print(f"{trial.name}: accuracy {trial.accuracy:.4f}, Shapley MSE {trial.objectives['shapley_mse']:.4f}")
    print(f"tensorboard --logdir {logdir}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "nc_workspace"))
