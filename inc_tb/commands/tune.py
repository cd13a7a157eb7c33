"""`inc-tb tune`"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inc_tb.commands.configured import leave_tool_options, tool_options, with_config
from inc_tb.commands.elsewhere import started, with_on
from inc_tb.commands.quantizing import given_options, quantizer_for, with_tool_options
from inc_tb.commands.rebuilding import rebuild_trial
from inc_tb.commands.terminal import (
    as_sizes,
    check_folder,
    detail,
    err,
    invite,
    out,
    print_json,
    progress_bar,
    say,
    with_detail,
)
from inc_tb.engines.models import open_model
from inc_tb.errors import IncTbError, UsageError
from inc_tb.frameworks.protocols import Quantizer
from inc_tb.records import Trial
from inc_tb.show.detail import Detail

if TYPE_CHECKING:
    from inc_tb.trackers.live import LiveLog
    from inc_tb.tuning.loop import Tuned


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
    "--strategy", default="probe", show_default=True, metavar="NAME",
    help="probe searches in a simulation; auto, basic, bayesian, conservative, exhaustive, mse, mse_v2, random and tpe "
    "are as Neural Compressor has them; or one of yours, file.py:function.",
)  # fmt: skip
@click.option("--max-trials", default=100, show_default=True, type=click.IntRange(1), metavar="N")
@click.option(
    "--timeout", default=0.0, show_default=True, type=click.FloatRange(0), metavar="SECONDS",
    help="0 stops once the criterion is met with nothing cheaper in sight; otherwise go on that long for a better one.",
)  # fmt: skip
@click.option(
    "--objective", "objectives", multiple=True, metavar="NAME", default=("latency", "size"), show_default=True,
    help="Also measured for every trial: latency, throughput, size, memory or file.py:function; again for several.",
)  # fmt: skip
@click.option(
    "--minimize", metavar="NAME",
    help="What is to be small: latency, size, memory, another objective, or ops (as few as can be in fp32).  "
    "[default: latency, if it is measured, else ops]",
)  # fmt: skip
@click.option("--no-rewrite", "rewrite", flag_value=False, default=True, help="Leave the fp32 model as it is.")
@click.option(
    "--profile", "profile_runs", default=0, show_default=True, type=click.IntRange(0), metavar="RUNS",
    help="Also time every op of every trial, in so many runs.",
)  # fmt: skip
@click.option(
    "--batch-size", "batch_sizes", callback=as_sizes, metavar="N[,N…]",
    help="Samples a run, one or several sizes, for the benchmark at the end.  [default: 1,16, if trials are timed]",
)  # fmt: skip
@click.option("--samples", type=click.IntRange(1), metavar="N", help="Calibrate with the first N samples only.")
@click.option(
    "--probe-s", default=60.0, show_default=True, type=click.FloatRange(0), help="Seconds for the simulation."
)
@click.option(
    "--random-seed", default=0, show_default=True, type=click.IntRange(0), metavar="N",
    help="Of strategies that draw at random: the same seed, the same trials.",
)  # fmt: skip
@click.option(
    "--quantizer", metavar="FILE.PY:FUNCTION",
    help="Returns a quantizer of yours (see inc_tb.Quantizer), instead of the tool of the model's framework.",
)  # fmt: skip
@click.option(
    "--config", type=click.Path(path_type=Path), metavar="FILE.YAML",
    help="A tuning configuration of Neural Compressor; options that are given go before what it says.",
)  # fmt: skip
@with_tool_options
@click.option(
    "--save", "save_to", type=click.Path(path_type=Path), metavar="FOLDER",
    help="Also store the best model there, so that inc_tb.load_model gives it in another process.",
)  # fmt: skip
@click.option("--logdir", type=click.Path(path_type=Path), default=Path("nc_workspace"), show_default=True)
@click.option(
    "--log-to", metavar="TRACKER",
    help="Also log each trial as it ends, to mlflow, wandb or whatever `inc-tb log --to` takes.",
)  # fmt: skip
@click.option("--resume", is_flag=True, help="Go on with the tuning in the logdir.")
@click.option("--rebuild", metavar="TRIAL", help="Make the model of a trial once more, such as trial-007.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Where --rebuild writes the model.")
@with_on("Carry out trials that do not depend on each other")
@with_detail
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
def tune(
    model: str | None, data: str | None, evaluate: str | None, logdir: Path, rebuild: str | None, output: Path | None,
    as_json: bool, **options: Any,
) -> int:  # fmt: skip
    """Find the fastest quantized form of MODEL whose accuracy holds, prove it, and write it.

    MODEL is an .onnx file, a model of TensorFlow (SavedModel folder, .pb, .keras), of MXNet (-symbol.json), or
    file.py:function that returns a model. Of a PyTorch model the best one's state_dict is written. Options whose
    text begins with the name of a tool are for models of its framework.

    Exit code 0: the criterion holds; 1: it does not, the best model found is kept all the same.
    """
    options["logdir"] = logdir
    options["asked"] = with_config(options["config"], options)
    logdir = options["logdir"]
    check_folder(logdir)
    if rebuild is not None:
        return rebuild_trial(rebuild, model, data, logdir, output, options["quantizer"], as_json)
    if output is not None:
        raise UsageError("--output was given without --rebuild; the best model is in the logdir.")
    if model is None or data is None or evaluate is None:
        missing = [n for n, v in (("MODEL", model), ("--data", data), ("--eval", evaluate)) if v is None]
        raise UsageError(
            f"{' and '.join(missing)} missing; expected inc-tb tune MODEL --data D --eval file.py:function."
        )
    return _tune(model, data, evaluate, logdir, as_json, options)


def _tune(model: str, data: str, evaluate: str, logdir: Path, as_json: bool, options: dict[str, Any]) -> int:
    from inc_tb.show.trials import show_trial, show_tuned
    from inc_tb.tuning.carry import check_target, save
    from inc_tb.tuning.loop import tune as tune_model

    if options["save_to"] is not None:
        check_target(options["save_to"])

    live = _live(options["log_to"], logdir)
    given = open_model(model)
    quantizer = _quantizer(given, model, options)
    told = (
        "tolerance",
        "strategy",
        "max_trials",
        "timeout",
        "objectives",
        "profile_runs",
        "batch_sizes",
        "samples",
        "probe_s",
        "resume",
        "random_seed",
        "minimize",
        "rewrite",
    )
    printed = err if as_json else out
    # What the user's own functions print is not part of the JSON.
    shown = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
    best = ""

    def show_progress(trial: Trial, is_best: bool) -> None:
        nonlocal best
        if detail() is not Detail.QUIET:
            show_trial(printed, trial, is_best)
        if live is not None:
            live(trial, is_best)
        if is_best and trial.accuracy is not None:
            best = f", best so far {trial.accuracy:.4g}"

    engine = started(options["on"])
    with shown, progress_bar("simulating") as bar:
        found = tune_model(
            given if engine is None else model,  # which workers open themselves
            data, evaluate, on=engine,
            relative=not options["absolute"], higher_is_better=not options["lower_is_better"],
            quantizer=quantizer, logdir=logdir, **{name: options[name] for name in told},
            progress=show_progress, probing=lambda done, of: bar(done, of, f"simulating{best}"),
        )  # fmt: skip
        if live is not None:
            _finish(live, found, logdir)
    if options["save_to"] is not None:
        say(f"Saved the model to {save(found, options['save_to'])}, from where inc_tb.load_model loads it.")
    if as_json:
        print_json(found.to_json())
    else:
        show_tuned(out, found, detail())
        invite(logdir)
    return 0 if found.met else 1


def _live(tracker: str | None, logdir: Path) -> LiveLog | None:
    """It refuses a tracker that cannot be reached before anything is tuned."""
    if tracker is None:
        return None
    from inc_tb.trackers.live import LiveLog

    return LiveLog(tracker, logdir)


def _finish(live: LiveLog, found: Tuned, logdir: Path) -> None:
    try:
        live.finish(found)
    except IncTbError as error:  # what was tuned is there all the same
        say(f"{error} All trials are in {logdir}: log them again with inc-tb log.")


def _quantizer(given: Any, model: str, options: dict[str, Any]) -> str | Quantizer:
    asked = options["asked"]
    if options["quantizer"] is None:
        settings = tool_options(asked, given, options) if asked is not None else {}
        return quantizer_for(given, model, options, **settings)
    others = given_options()
    if others:
        raise UsageError(f"--quantizer was given together with --{others[0]}; expected one of them.")
    if asked is not None:
        leave_tool_options(asked)
    found: str = options["quantizer"]
    return found
