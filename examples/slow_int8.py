"""Why is the int8 model slower than fp32, and which ops must stay in fp32 for it to be faster?

    python examples/slow_int8.py [LOGDIR]

Quantizes the network of `inc-tb demo` dynamically, which is meant for matrix products: ONNX Runtime's convolutions with
ranges that are found at run time are slow. Replace `fp32`, `batch` and the quantizer, and the rest stays as it is.
"""

import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from onnxruntime.quantization import quantize_dynamic
from rich.console import Console

import inc_tb
from inc_tb.demo import load_digits
from inc_tb.profiling.profile import speedup
from inc_tb.show.profiles import show_profile


def main(logdir: Path) -> None:
    images, _, held_out = load_digits()
    batch = {"image": images[held_out][:64]}
    fp32 = Path(str(files("inc_tb") / "demo_data" / "digits_cnn.onnx"))
    fallback: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for attempt in (1, 2):
            int8 = Path(folder, f"int8-{attempt}.onnx")
            quantize_dynamic(fp32, int8, nodes_to_exclude=fallback)
            times = inc_tb.profile(fp32, batch, quantized=int8, threads=1)
            diagnosis = times.join(inc_tb.diagnose(fp32, int8, batch))
            with inc_tb.SummaryWriter(logdir / f"trial-{attempt:03}") as writer:
                writer.add_diagnosis(diagnosis)
                writer.add_profile(times)
            total = times.total
            noise = "" if total.differs else ", which is inside the noise"
            print(f"trial {attempt}: speed-up {speedup(total):.2f}{noise}, {len(fallback)} ops in fp32")
            show_profile(Console(width=100), times, top=5)
            slower = next((s for s in diagnosis.suggestions if s.rule == "slower_in_int8"), None)
            if slower is None:
                break
            print(f"{slower.because}\n")
            fallback = fallback + slower.ops
    print(f"tensorboard --logdir {logdir}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "nc_workspace"))
