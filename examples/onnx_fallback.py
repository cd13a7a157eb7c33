"""From a quantized model that lost its accuracy to one that did not, with onnxruntime as the quantizer.

    python examples/onnx_fallback.py [LOGDIR]

Uses the network of `inc-tb demo` in place of yours. Replace `fp32`, `calibration` and `evaluate`, and
the rest stays as it is.
"""

import sys
import tempfile
from importlib.resources import files
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

import inc_tb
from inc_tb.demo import add_outlier_channels, load_digits

TOLERANCE = 0.01


class Calibration(CalibrationDataReader):
    def __init__(self, images: np.ndarray) -> None:
        self.batches = iter([{"image": rows} for rows in np.array_split(images, 8)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.batches, None)


def main(logdir: Path) -> None:
    images, labels, held_out = load_digits()
    calibration, test, truth = images[~held_out][:200], images[held_out], labels[held_out]

    def evaluate(model: Path) -> float:
        logits = onnxruntime.InferenceSession(model).run(None, {"image": test})[0]
        return float((logits.argmax(axis=1) == truth).mean())

    with tempfile.TemporaryDirectory() as folder:
        fp32 = Path(folder, "fp32.onnx")
        onnx.save(add_outlier_channels(onnx.load(files("inc_tb") / "demo_data" / "digits_cnn.onnx")), fp32)
        baseline = evaluate(fp32)
        fallback: list[str] = []
        for attempt in range(1, 4):
            int8 = Path(folder, f"int8-{attempt}.onnx")
            quantize_static(
                fp32, int8, Calibration(calibration), quant_format=QuantFormat.QDQ, nodes_to_exclude=fallback
            )
            accuracy = evaluate(int8)
            diagnosis = inc_tb.diagnose(fp32, int8, {"image": test[:128]})
            with inc_tb.SummaryWriter(logdir / f"trial-{attempt:03}") as writer:
                writer.add_diagnosis(diagnosis)
                writer.add_trial(inc_tb.Trial(f"trial-{attempt:03}", accuracy, baseline, fallback))
            print(f"trial {attempt}: accuracy {accuracy:.4f} (fp32 {baseline:.4f}), {len(fallback)} ops in fp32")
            if accuracy >= baseline - TOLERANCE or not diagnosis.suggestions:
                break
            first = diagnosis.suggestions[0]
            print(f"         {first.because}")
            fallback = fallback + first.ops
    print(f"tensorboard --logdir {logdir}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "nc_workspace"))
