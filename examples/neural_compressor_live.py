"""Watches Neural Compressor 2.x tune in TensorBoard, and sees in the first trial what it finds out in the last.

    python examples/neural_compressor_live.py [LOGDIR]
    tensorboard --logdir LOGDIR          # while it runs

Uses the network of `inc-tb demo` in place of yours. Neural Compressor 2.6 wants Python 3.11 or 3.12:
pip install neural-compressor==2.6 "onnx<1.19" "setuptools<82" six
"""

import sys
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from neural_compressor import quantization, set_workspace
from neural_compressor.config import PostTrainingQuantConfig, TuningCriterion

import inc_tb
from inc_tb.demo import add_outlier_channels, load_digits

IMAGES, LABELS, HELD_OUT = load_digits()


class Calibration:
    batch_size = 20

    def __iter__(self) -> Iterator[Any]:
        images, labels = IMAGES[~HELD_OUT], LABELS[~HELD_OUT]
        return ((images[i : i + 20], labels[i : i + 20]) for i in range(0, 200, 20))


def evaluate(model: onnx.ModelProto) -> float:
    logits = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"image": IMAGES[HELD_OUT]})[0]
    return float((logits.argmax(axis=1) == LABELS[HELD_OUT]).mean())


def main(logdir: Path) -> None:
    conf = PostTrainingQuantConfig(quant_level=1, tuning_criterion=TuningCriterion(strategy="mse_v2", max_trials=20))
    with tempfile.TemporaryDirectory() as folder:
        set_workspace(folder)
        model = Path(folder, "digits_cnn.onnx")
        onnx.save(add_outlier_channels(onnx.load(files("inc_tb") / "demo_data" / "digits_cnn.onnx")), model)
        with inc_tb.integrations.neural_compressor.log(logdir) as logged:
            quantization.fit(str(model), conf, calib_dataloader=Calibration(), eval_func=evaluate)
    runs = [inc_tb.load(path) for path in logged.runs]
    for run in runs:
        kept = ", ".join(run.trial.fallback) or "nothing"
        print(f"{run.trial.name}: accuracy {run.trial.accuracy:.4f} of {run.trial.baseline:.4f}, in fp32: {kept}")
    first = runs[0].suggestions[0]
    print(f"{runs[0].trial.name} suggests to keep {', '.join(first.ops)}: {first.because}\n{first.recipes['inc']}")
    print(f"tensorboard --logdir {logdir}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "nc_workspace"))
