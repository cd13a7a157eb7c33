"""Adds a diagnosis to the TensorBoard log that a training loop writes anyway.

    python examples/existing_logging.py [LOGDIR]

Here with torch.utils.tensorboard; tensorboardX and tf.summary writers work the same. The loop is a
stand-in for yours: at every tenth step it quantizes the current model and logs where it stands.
"""

import sys
import tempfile
from importlib.resources import files
from pathlib import Path

import numpy as np
from onnxruntime.quantization import CalibrationDataReader, quantize_static
from torch.utils.tensorboard import SummaryWriter

import inc_tb
from inc_tb.demo import load_digits


class Calibration(CalibrationDataReader):
    def __init__(self, images: np.ndarray) -> None:
        self.batches = iter([{"image": images}])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.batches, None)


def main(logdir: Path) -> None:
    images, _, held_out = load_digits()
    model = Path(str(files("inc_tb") / "demo_data" / "digits_cnn.onnx"))
    writer = SummaryWriter(logdir / "training")
    with tempfile.TemporaryDirectory() as folder:
        for step in range(21):
            writer.add_scalar("loss", 1 / (1 + step), step)
            if step % 10 == 0:
                int8 = Path(folder, "int8.onnx")
                quantize_static(model, int8, Calibration(images[~held_out][: 20 + step]))
                diagnosis = inc_tb.diagnose(model, int8, {"image": images[held_out][:64]})
                inc_tb.log_diagnosis(writer, diagnosis, step)
                worst = diagnosis.worst(1)[0]
                name, noise = diagnosis.ops["name"][worst], diagnosis.ops["added_sqnr_db"][worst]
                print(f"step {step}: worst op {name}, {noise:.1f} dB")
    writer.close()
    print(f"tensorboard --logdir {logdir}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "nc_workspace"))
