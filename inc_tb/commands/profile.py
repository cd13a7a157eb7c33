"""`inc-tb profile`"""

from __future__ import annotations

import os
from pathlib import Path

import click
from rich.markup import escape

from inc_tb.commands.runs import diagnosed, diagnosis_in, is_of, name_of, run_folder
from inc_tb.commands.terminal import (
    as_sizes,
    check_folder,
    detail,
    invite,
    out,
    print_json,
    progress_bar,
    say,
    with_detail,
)
from inc_tb.data import open_data
from inc_tb.engines.models import open_model
from inc_tb.errors import UsageError
from inc_tb.frameworks.models import read_inputs
from inc_tb.frameworks.registry import framework_of, frameworks
from inc_tb.profiling.run import profile as measure
from inc_tb.records import plural
from inc_tb.show.detail import Detail


@click.command()
@click.argument("model")
@click.argument("quantized", metavar="[MODEL2]", required=False)
@click.option(
    "--data", required=True, help=".npz, .npy, a folder of them, ONNX test_data_set_* folders, or file.py:function."
)
@click.option("--runs", default=50, show_default=True, type=click.IntRange(1), metavar="N", help="Runs that count.")
@click.option(
    "--warmup",
    default=3,
    show_default=True,
    type=click.IntRange(0),
    metavar="N",
    help="Runs after each opening of a model that do not count.",
)
@click.option("--threads", type=click.IntRange(1), metavar="N", help="Threads of one op.  [default: the runtime's own]")
@click.option(
    "--batch-size", "batch_sizes", default="1", show_default=True, callback=as_sizes, metavar="N[,N…]",
    help="Samples a run; of several sizes ops are timed with the first, whole runs with all.",
)  # fmt: skip
@click.option("--logdir", type=click.Path(path_type=Path), default=Path("nc_workspace"), show_default=True)
@click.option(
    "--run",
    help="Name of the run below the logdir.  [default: that of a diagnosis of the same models, else the file's name]",
)
@click.option("--top", default=10, show_default=True, type=click.IntRange(1), metavar="N", help="Rows to print.")
@click.option(
    "--trace",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a Chrome trace there, for Perfetto.",
)
@with_detail
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
def profile(
    model: str, quantized: str | None, data: str, runs: int, warmup: int, threads: int | None,
    batch_sizes: tuple[int, ...], logdir: Path, run: str | None, top: int, trace: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Measure where the time goes, op by op: in MODEL, or in MODEL (fp32) against MODEL2 (int8).

    Two models are run in turn, so that noise hits both alike, and an op whose difference is inside the noise says so.
    Models are given as to `inc-tb diagnose`; where the run holds a diagnosis of the two, its op table and suggestions
    get the times.
    """
    from inc_tb.show.profiles import show_prices, show_profile
    from inc_tb.store.workspace import put_tables_above
    from inc_tb.store.writer import SummaryWriter

    check_folder(logdir)
    if trace is not None and not trace.absolute().parent.is_dir():
        raise UsageError(f"--trace {trace}: there is no folder {trace.parent}; expected a file to write to.")
    found_run = diagnosed(logdir, model, quantized) if run is None and quantized is not None else None
    folder = found_run or run_folder(logdir, run, name_of(quantized or model))
    if threads is not None:
        for variable in (name for framework in frameworks() for name in framework.thread_variables):
            os.environ.setdefault(variable, str(threads))
    first = open_model(model)
    second = open_model(quantized) if quantized is not None else None
    framework_of(first).require("open_timer")
    batches = open_data(data, read_inputs(first), batch_sizes[0])
    with progress_bar("timing runs", runs) as progress:
        found = measure(
            first, batches, quantized=second, warmup=warmup, runs=runs, threads=threads, batch_sizes=batch_sizes,
            progress=progress,
        )  # fmt: skip
    if trace is not None:
        found.save_trace(trace)
    if quantized is not None:
        found.fp32, found.int8 = model, quantized
    else:
        setattr(found, found.sides[0], model)
    diagnosis = diagnosis_in(folder) if quantized is not None else None
    if diagnosis is not None and not is_of(diagnosis, model, quantized or ""):
        say(f"{folder} holds a diagnosis of {diagnosis.reference} and {diagnosis.quantized}; it gets no times.")
        diagnosis = None
    priced = found.join(diagnosis) if diagnosis is not None else None
    with SummaryWriter(folder, whole=True) as writer:
        writer.add_profile(found)
        if priced is not None:
            writer.update_diagnosis(priced)
    put_tables_above(folder, logdir, priced or diagnosis)
    if as_json:
        print_json(found.to_json())
        return
    show_profile(out, found, top, detail())
    if priced is not None and detail() is not Detail.QUIET:
        show_prices(out, priced.suggestions)
    joined = ", and the times to its diagnosis" if priced is not None else ""
    out.print(f"Logged {plural(len(found.rows) - 1, 'op')} to [bold]{escape(str(folder))}[/]{joined}. ", end="")
    invite(logdir)
