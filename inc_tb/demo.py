"""`inc-tb demo`: a real network loses its accuracy, the diagnosis names the reason, its suggestion repairs it.

Everything is in the package: a small CNN trained on scikit-learn's handwritten digits
(examples/train_demo_model.py) and the digits themselves. Two channels between its first two convolutions
are then scaled up and divided back again, which changes nothing in fp32; networks get such channels from
folded batch norms and long training.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

import inc_tb
from inc_tb.advise.diagnose import diagnose
from inc_tb.data import open_data
from inc_tb.errors import ModelError
from inc_tb.frameworks.ops import Input
from inc_tb.locks import TemporaryFolder
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.profiling.profile import Profile
from inc_tb.profiling.run import profile
from inc_tb.records import Trial
from inc_tb.search.probe import probe
from inc_tb.show.diagnoses import show_diagnosis, write_lists
from inc_tb.show.trials import show_trials
from inc_tb.store.writer import SummaryWriter
from inc_tb.tuning.objectives import LATENCY
from inc_tb.tuning.pricing import Pricing

OUTLIERS = {3: 200.0, 11: 100.0}
"""Channel of the first convolution -> factor."""
CALIBRATION_SAMPLES = 200
DIAGNOSIS_SAMPLES = 128
PROBE_SAMPLES = 32
PROBE_S = 20.0
PROFILE_SAMPLES = 64
PROFILE_RUNS = 30
TOLERANCE = 0.01
"""What a tuning would accept: one percent less than fp32."""
Images = npt.NDArray[np.float32]


def run_demo(console: Console, logdir: Path) -> list[Trial]:
    """Three ways to quantize the same network, each a run below `logdir`."""
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise ModelError(f"the demo needs {error.name}, which is not installed: pip install 'inc-tb[onnx]'.") from error
    del onnxruntime
    images, labels, held_out = load_digits()
    with TemporaryFolder("demo") as folder:
        fp32 = Path(folder, "digits_cnn.onnx")
        onnx.save(add_outlier_channels(onnx.load(_shipped("digits_cnn.onnx"))), fp32)
        quantizer = inc_tb.OnnxRuntimeQuantizer(preprocess=False)
        calibration = [{"image": rows} for rows in np.array_split(images[~held_out][:CALIBRATION_SAMPLES], 8)]
        test = images[held_out], labels[held_out]
        baseline = _accuracy(fp32, *test)
        share = f"{baseline:.4f} of {len(test[1])} held-out images"
        console.print(f"[bold]A CNN for handwritten digits[/]: fp32 gets {share} right.\n", highlight=False)
        trials: list[Trial] = []
        pricing = Pricing(fp32, {"image": images[:1]}, LATENCY, Path(folder, "prices"))

        def attempt(name: str, fallback: Sequence[str]) -> tuple[Diagnosis, Profile]:
            start = time.monotonic()
            int8 = Path(folder, f"{name}.onnx")
            quantizer.quantize(fp32, int8, calibration, quantizer.settings, fallback)
            accuracy = _accuracy(int8, *test)
            found = diagnose(fp32, int8, {"image": images[held_out][:DIAGNOSIS_SAMPLES]})
            found.reference, found.quantized = fp32.name, int8.name
            batch = {"image": images[held_out][:PROFILE_SAMPLES]}
            times = profile(fp32, batch, quantized=int8, runs=PROFILE_RUNS, threads=1)
            times.fp32, times.int8 = fp32.name, int8.name
            costs = [
                {"size_kb": model.stat().st_size / 1000, "latency_ms": (us or 0.0) / 1000}
                for model, us in ((int8, times.total.int8_us), (fp32, times.total.fp32_us))
            ]
            trial = Trial(
                name, accuracy, baseline, list(fallback), dict(quantizer.settings), costs[0],
                wall_s=time.monotonic() - start, target=baseline * (1 - TOLERANCE), baseline_objectives=costs[1],
                int8_macs=pricing.int8_share(int8),
            )  # fmt: skip
            with SummaryWriter(logdir / name) as writer:
                writer.add_diagnosis(times.join(found))
                writer.add_profile(times)
                writer.add_trial(trial)
            trials.append(trial)
            return found, times

        found, times = attempt("1-int8", [])
        _say(console, "1. Everything in int8", trials[-1])
        int8, samples = Path(folder, "1-int8.onnx"), {"image": images[held_out][:PROBE_SAMPLES]}
        probed = probe(fp32, int8, samples, budget_s=PROBE_S, logdir=logdir / "1-int8", diagnosis=found)
        full = times.join(probed.diagnosis)
        with SummaryWriter(logdir / "1-int8") as writer:
            writer.update_diagnosis(full)
        write_lists(logdir / "1-int8", full)
        next_step = f"inc-tb suggest {shlex.quote(str(logdir / '1-int8'))}"
        show_diagnosis(console, full, top=6, comparison=probed.comparison, next_step=next_step)

        by_mse = [full.ops["name"][row] for row in full.worst(2, sort="a_inc_mse")]
        attempt("2-fallback-by-mse", by_mse)
        _say(console, "2. The two ops with the highest MSE (as Neural Compressor computes it) back in fp32", trials[-1])

        attempt("3-fallback-suggested", full.cure.ops if full.cure is not None else [])
        _say(console, "3. The first suggestion back in fp32", trials[-1])
    show_trials(console, trials)
    return trials


def _say(console: Console, title: str, trial: Trial) -> None:
    console.print(f"[bold]{title}[/]: accuracy {trial.accuracy:.4f}\n", highlight=False)


def _shipped(name: str) -> str:
    return str(files("inc_tb") / "demo_data" / name)


def load_digits() -> tuple[Images, npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    names = ("image", "label", "held_out")
    inputs = [Input(name, np.dtype(np.uint8), (None,)) for name in names]
    stored = next(iter(open_data(_shipped("digits.npz"), inputs, batch_size=1 << 16)))
    images = np.asarray(stored["image"][:, None] / np.float32(16), np.float32)
    return images, stored["label"].astype(np.int64), stored["held_out"]


def add_outlier_channels(model: Any) -> Any:
    """The same function in fp32: ReLU(k·x) = k·ReLU(x), and the next weights divide by k."""
    from onnx import numpy_helper

    weights = {t.name: t for t in model.graph.initializer}
    factors = np.ones(weights["conv1.bias"].dims[0], np.float32)
    factors[list(OUTLIERS)] = list(OUTLIERS.values())
    changed = {
        "conv1.weight": factors[:, None, None, None], "conv1.bias": factors, "conv2.weight": 1 / factors[:, None, None],
    }  # fmt: skip
    for name, factor in changed.items():
        values = numpy_helper.to_array(weights[name]) * factor
        weights[name].CopyFrom(numpy_helper.from_array(values.astype(np.float32), name))
    return model


def _accuracy(model: Path, images: Images, labels: npt.NDArray[np.int64]) -> float:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return float((session.run(None, {"image": images})[0].argmax(axis=1) == labels).mean())
