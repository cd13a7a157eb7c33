"""What other tools do about lost accuracy, for benchmarks/cures.py.

Neural Compressor's strategies as inc-tb has them (they keep one op after the other in fp32), the ten tensors with the
worst SQNR of ONNX Runtime's qdq_loss_debug kept in fp32, and NNCF's quantize_with_accuracy_control, which is installed
into an environment of its own in the cache.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, qdq_loss_debug

import inc_tb
from benchmarks.zoo import Network, quantize
from inc_tb.errors import IncTbError
from inc_tb.tuning.loop import Tuned

_STRATEGIES = ("basic", "mse", "mse_v2")
_TENSORS = 10
_CHILD = Path(__file__).with_name("nncf_child.py")


class Other(NamedTuple):
    how: str
    model: Path | None
    seconds: float
    trials: int | None = None
    note: str = ""


class Reader(CalibrationDataReader):
    def __init__(self, feeds: list[dict[str, np.ndarray]]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def others(network: Network, naive: Path | None, folder: Path, patience: float, cache: Path) -> Iterator[Other]:
    for strategy in _STRATEGIES:
        yield stepwise(network, strategy, folder, patience)
    if network.model.suffix == ".onnx":
        if naive is not None:
            yield worst_tensors(network, naive, folder)
        yield nncf(network, folder, patience, cache)


def stepwise(network: Network, strategy: str, folder: Path, patience: float) -> Other:
    """Nothing is timed or diagnosed, which would cost those with many trials more."""
    is_onnx = network.model.suffix == ".onnx"
    tool = inc_tb.OnnxRuntimeQuantizer(activation_type="uint8") if is_onnx else inc_tb.TensorFlowQuantizer()
    how, start = f"NC's {strategy}", time.perf_counter()
    try:
        with stopped_after(patience):
            found = inc_tb.tune(
                network.model, network.calibration, network.evaluate, strategy=strategy, quantizer=tool,
                objectives=(), logdir=folder / strategy, diagnosis_samples=0, max_trials=10_000,
            )  # fmt: skip
    except (Stopped, IncTbError) as error:
        return Other(how, None, time.perf_counter() - start, note=first_line(error))
    return Other(how, found.model, time.perf_counter() - start, len(found.trials), told(found))


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:100]


def told(found: Tuned) -> str:
    """How it ended, and what the best model is."""
    ended = "met" if found.met else "stopped" if "interrupted" in found.reason else "not met"
    best = found.best
    changed = ", ".join(
        f"{name}={value if not isinstance(value, list) else len(value)}"
        for name, value in best.config.items()
        if value != found.trials[0].config.get(name)
    )
    return f"{ended}, {len(best.fallback)} ops in fp32{'; ' * bool(changed)}{changed}"


def worst_tensors(network: Network, naive: Path, folder: Path) -> Other:
    """Kept in fp32 is what writes them."""
    start = time.perf_counter()
    collected = []
    for model in (network.model, naive):
        augmented = folder / f"augmented_{model.name}"
        qdq_loss_debug.modify_model_output_intermediate_tensors(model, augmented)
        collected.append(qdq_loss_debug.collect_activations(str(augmented), Reader(network.calibration[:1])))
    matched = qdq_loss_debug.create_activation_matching(collected[1], collected[0])
    errors = qdq_loss_debug.compute_activation_error(matched)
    ordered = sorted(errors, key=lambda name: errors[name].get("xmodel_err", math.inf))
    writes = {name: node.name for node in onnx.load(network.model).graph.node for name in node.output}
    kept = list(dict.fromkeys(writes[name] for name in ordered if name in writes))[:_TENSORS]
    target = quantize(network.model, folder / "worst.onnx", network.calibration, nodes_to_exclude=kept)
    return Other("qdq_loss_debug top 10", target, time.perf_counter() - start, 1, f"{len(kept)} ops in fp32")


def nncf(network: Network, folder: Path, patience: float, cache: Path) -> Other:
    """The child has no networks of ours: it asks for the accuracy of every candidate by its path."""
    how, start = "NNCF accuracy control", time.perf_counter()
    target, data = folder / "nncf.onnx", folder / "nncf"
    for i, feed in enumerate(network.calibration):
        (data / f"{i:04}").mkdir(parents=True)
        for name, rows in feed.items():
            np.save(data / f"{i:04}" / f"{name}.npy", rows)
    command: list[Any] = [nncf_python(cache), _CHILD, network.model, data, target]
    trials = 0
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    quiet = {**os.environ, "CI": "true"}  # it sends nothing about its use then
    with subprocess.Popen(command, **pipes, text=True, env=quiet) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            with stopped_after(patience):
                for line in child.stdout:
                    trials += 1
                    print(network.evaluate(line.strip()), file=child.stdin, flush=True)
        except Stopped:
            child.kill()
    took = time.perf_counter() - start
    if not target.exists():
        return Other(how, None, took, trials, "stopped" if took >= patience else "failed")
    return Other(how, target, took, trials)


def nncf_python(cache: Path) -> Path:
    home = cache / "nncf"
    python = home / "bin" / "python"
    if not (home / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        subprocess.run([python, "-m", "pip", "install", "-qq", "nncf", "onnx", "onnxruntime", "openvino"], check=True)
        (home / "ready").touch()
    return python


class Stopped(KeyboardInterrupt):
    """What a tuning takes for Ctrl-C, and ends with the best so far if it has any."""


class stopped_after:  # noqa: N801  reads as a phrase
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __enter__(self) -> None:
        def interrupt(*_: object) -> None:
            raise Stopped

        self.before: Any = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.before)
