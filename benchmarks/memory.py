"""Peak memory of a diagnosis with 100 and with 800 samples, each in a process of its own.

python benchmarks/memory.py
"""

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

SIZE = 64


def peak_mib(folder: Path, samples: int) -> float:
    command = [sys.executable, __file__, str(folder), str(samples)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def diagnose(folder: Path, samples: int) -> None:
    import inc_tb

    inc_tb.diagnose(folder / "fp32.onnx", folder / "int8.onnx", folder / f"{samples}.npz")
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    import numpy as np
    from models import images, make_cnn, quantize

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fp32 = make_cnn(folder / "fp32.onnx", size=SIZE, width=32, blocks=4)
        quantize(fp32, folder / "int8.onnx", images(16, SIZE))
        peaks = {}
        for samples in (100, 800):
            np.savez(folder / f"{samples}.npz", image=images(samples, SIZE))
            peaks[samples] = peak_mib(folder, samples)
            print(f"{samples} samples: {peaks[samples]:.0f} MiB")
        print(f"800 samples need {peaks[800] / peaks[100]:.3f} times the memory of 100")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        diagnose(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        main()
