"""`inc-tb tune`"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection
from pathlib import Path

import click
from click.core import ParameterSource

from inc_tb.commands.terminal import as_model, check_folder, err, invite, out, print_json, progress_bar, say
from inc_tb.errors import UsageError

_LOGDIR = click.Path(path_type=Path)
_ONNX_ONLY = ("quant_format", "calibrator", "reduce_range", "symmetric", "activation_type", "weight_type", "preprocess")
_MXNET_CALIBRATION = {"minmax": "naive", "entropy": "entropy"}


@click.command()
@click.argument("model", required=False)
@click.option("--data", help="Calibration data: .npz, .npy, a folder of them, or file.py:function.")
@click.option(
    "--eval",
    "evaluate",
    metavar="FILE.PY:FUNCTION",
    help="Gets a candidate (the path of an ONNX or TFLite file, or the model itself), returns a number.",
)
@click.option("--tolerance", default=0.01, show_default=True, type=click.FloatRange(0), help="Loss that is accepted …")
@click.option("--absolute", is_flag=True, help="… as a number instead of a share of fp32's.")
@click.option("--lower-is-better", is_flag=True, help="The number is an error, not an accuracy.")
@click.option(
    "--strategy", default="probe", show_default=True, type=click.Choice(["probe", "basic", "mse", "mse_v2"]),
    help="probe searches in a simulation; the others are Neural Compressor's, for comparison.",
)  # fmt: skip
@click.option("--max-trials", default=100, show_default=True, type=click.IntRange(1), metavar="N")
@click.option(
    "--timeout", default=0.0, show_default=True, type=click.FloatRange(0), metavar="SECONDS",
    help="0 stops at the first trial that meets the criterion; otherwise go on that long for a better one.",
)  # fmt: skip
@click.option(
    "--objective", "objectives", multiple=True, metavar="NAME", default=("latency", "size"), show_default=True,
    help="Also measured for every trial: latency, throughput, size, memory or file.py:function; again for several.",
)  # fmt: skip
@click.option(
    "--profile", "profile_runs", default=0, show_default=True, type=click.IntRange(0), metavar="RUNS",
    help="Also time every op of every trial, in so many runs.",
)  # fmt: skip
@click.option("--samples", type=click.IntRange(1), metavar="N", help="Calibrate with the first N samples only.")
@click.option(
    "--probe-s", default=60.0, show_default=True, type=click.FloatRange(0), help="Seconds for the simulation."
)
@click.option("--dynamic", is_flag=True, help="Quantize dynamically, without calibrated ranges.")
@click.option("--pt2e", is_flag=True, help="PyTorch: export the model and quantize it with torchao.")
@click.option("--saved-model", is_flag=True, help="TensorFlow: quantize_saved_model instead of TFLite.")
@click.option("--smart", is_flag=True, help="MXNet: quantize_mode smart instead of full.")
@click.option("--format", "quant_format", default="QDQ", show_default=True, type=click.Choice(["QDQ", "QOperator"]))
@click.option(
    "--calibrator", default="minmax", show_default=True, type=click.Choice(["minmax", "entropy", "percentile"])
)
@click.option(
    "--per-channel/--no-per-channel", default=None,
    help="A scale for each channel of the weights.  [default: no; PyTorch, TensorFlow: yes; MXNet: of convolutions]",
)  # fmt: skip
@click.option("--reduce-range", is_flag=True, help="7 bits for weights, for CPUs without VNNI.")
@click.option("--symmetric", is_flag=True, help="Activations symmetric around zero.")
@click.option(
    "--activation-type", default="int8", show_default=True, type=click.Choice(["int8", "uint8", "int16", "uint16"])
)
@click.option("--weight-type", default="int8", show_default=True, type=click.Choice(["int8", "uint8"]))
@click.option("--preprocess/--no-preprocess", default=True, help="Infer shapes and fold batch norms first.")
@click.option("--logdir", type=_LOGDIR, default=Path("nc_workspace"), show_default=True)
@click.option("--resume", is_flag=True, help="Go on with the tuning in the logdir.")
@click.option("--rebuild", metavar="TRIAL", help="Make the model of a trial once more, such as trial-007.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Where --rebuild writes the model.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
def tune(
    model: str | None, data: str | None, evaluate: str | None, tolerance: float, absolute: bool, lower_is_better: bool,
    strategy: str, max_trials: int, timeout: float, objectives: tuple[str, ...], profile_runs: int, samples: int | None,
    probe_s: float, dynamic: bool, pt2e: bool, saved_model: bool, smart: bool, quant_format: str, calibrator: str,
    per_channel: bool | None, reduce_range: bool, symmetric: bool, activation_type: str, weight_type: str,
    preprocess: bool, logdir: Path, resume: bool, rebuild: str | None, output: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """Find the fewest ops of MODEL that must stay in fp32, prove it, and write the quantized model.

    MODEL is an .onnx file, a model of TensorFlow (SavedModel folder, .pb, .keras), of MXNet (-symbol.json), or
    file.py:function that returns a model. Of a PyTorch model the best one's state_dict is written. Options for the
    quantizer are ONNX Runtime's, but for --per-channel/--no-per-channel, for PyTorch's --dynamic and --pt2e, for
    TensorFlow's --saved-model, and for MXNet's --smart and --calibrator (minmax is what it calls naive).

    Exit code 0: the criterion holds; 1: it does not, the best model found is kept all the same.
    """
    from inc_tb.capture import (
        Quantizer,
        kind_of,
        mxnet_quantizer,
        onnxruntime_quantizer,
        tensorflow_quantizer,
        torch_quantizer,
    )
    from inc_tb.report import show_trial, show_tuned
    from inc_tb.tune import tune as tune_model

    check_folder(logdir)
    if rebuild is not None:
        return _rebuild(rebuild, model, data, logdir, output, as_json)
    if output is not None:
        raise UsageError("--output was given without --rebuild; the best model is in the logdir.")
    if model is None or data is None or evaluate is None:
        missing = [n for n, v in (("MODEL", model), ("--data", data), ("--eval", evaluate)) if v is None]
        raise UsageError(
            f"{' and '.join(missing)} missing; expected inc-tb tune MODEL --data D --eval file.py:function."
        )
    given = as_model(model)
    kind = kind_of(given)
    if pt2e and kind != "torch":
        raise UsageError(f"--pt2e was given for {model}; expected a PyTorch model (file.py:function).")
    if saved_model and kind != "tensorflow":
        raise UsageError(f"--saved-model was given for {model}; expected a TensorFlow model (a folder, .pb, .keras).")
    if smart and kind != "mxnet":
        raise UsageError(f"--smart was given for {model}; expected an MXNet model (-symbol.json).")
    if kind == "mxnet":
        _refuse([name for name in (*_ONNX_ONLY, "dynamic") if name != "calibrator"], "an MXNet")
        if calibrator not in _MXNET_CALIBRATION:
            raise UsageError(f"--calibrator {calibrator} was given for an MXNet model; expected minmax or entropy.")
        quantizer: Quantizer = mxnet_quantizer(
            calibration=_MXNET_CALIBRATION[calibrator], quantize_mode="smart" if smart else "full",
            granularity="channel-wise" if per_channel else "tensor-wise",
        )  # fmt: skip
    elif kind == "tensorflow":
        _refuse([*_ONNX_ONLY, "dynamic"], "a TensorFlow")
        approach = "saved-model" if saved_model else "tflite"
        quantizer = tensorflow_quantizer(approach=approach, per_channel=per_channel is not False)
    elif kind != "torch":
        quantizer = onnxruntime_quantizer(
            approach="dynamic" if dynamic else "static", format=quant_format, calibrator=calibrator,
            per_channel=bool(per_channel), reduce_range=reduce_range, activation_type=activation_type,
            weight_type=weight_type, symmetric=symmetric, preprocess=preprocess,
        )  # fmt: skip
    else:
        _refuse(_ONNX_ONLY, "a PyTorch")
        approach = ("pt2e-dynamic" if dynamic else "pt2e") if pt2e else "dynamic" if dynamic else "auto"
        quantizer = torch_quantizer(approach=approach, per_channel=per_channel is not False)
    printed = err if as_json else out
    # What the user's own functions print is not part of the JSON.
    shown = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
    with shown, progress_bar("simulating") as probing:
        found = tune_model(
            given, data, evaluate, tolerance=tolerance, relative=not absolute, higher_is_better=not lower_is_better,
            strategy=strategy, max_trials=max_trials, timeout=timeout, objectives=objectives, quantizer=quantizer,
            logdir=logdir, resume=resume, samples=samples, probe_s=probe_s, profile_runs=profile_runs,
            progress=lambda trial, is_best: show_trial(printed, trial, is_best), probing=probing,
        )  # fmt: skip
    if as_json:
        print_json(found.to_json())
    else:
        show_tuned(out, found)
        invite(logdir)
    return 0 if found.met else 1


def _refuse(options: Collection[str], kind: str) -> None:
    """Options that say nothing about a model of another framework."""
    context = click.get_current_context()
    for name in options:
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            option = name.replace("quant_", "").replace("_", "-")
            whose = "ONNX Runtime and PyTorch" if name == "dynamic" else "ONNX Runtime"
            raise UsageError(f"--{option} was given for {kind} model; it is for {whose}. Leave it out.")


def _rebuild(name: str, model: str | None, data: str | None, logdir: Path, output: Path | None, as_json: bool) -> int:
    from inc_tb.capture import kind_of
    from inc_tb.history import find_trial
    from inc_tb.tune import rebuild

    trial, given = find_trial(logdir, name)
    told, calibration = model or given.get("model"), data or given.get("calibration")
    if told is None or calibration is None:
        raise UsageError(f"{logdir}: does not say which model and data the tuning had; give MODEL and --data.")
    source = as_model(told)
    suffix = {
        "torch": ".pt",
        "mxnet": "-model",  # a folder, beside that of the run
        "tensorflow": "-model" if trial.config.get("approach") == "saved-model" else ".tflite",
    }
    target = output if output is not None else logdir / f"{name}{suffix.get(kind_of(source), '.onnx')}"
    rebuild(source, calibration, trial, target, samples=given.get("samples"))
    if as_json:
        print_json({"trial": name, "model": str(target), "fallback": trial.fallback, "config": trial.config})
    else:
        accuracy = "no number" if trial.accuracy is None else f"{trial.accuracy:.4f}"
        say(f"Wrote {target}: {name}, accuracy {accuracy}, kept in fp32: {', '.join(trial.fallback) or 'nothing'}.")
    return 0
