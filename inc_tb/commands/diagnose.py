"""`inc-tb diagnose`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from inc_tb.advise.diagnose import diagnose_adapted
from inc_tb.commands.terminal import (
    as_model,
    check_folder,
    invite,
    name_of,
    out,
    print_json,
    progress_bar,
    run_folder,
)
from inc_tb.data import open_data
from inc_tb.frameworks.models import open_pair
from inc_tb.frameworks.registry import framework_of


@click.command()
@click.argument("reference")
@click.argument("quantized")
@click.option(
    "--data", required=True, help=".npz, .npy, a folder of them, ONNX test_data_set_* folders, or file.py:function."
)
@click.option("--logdir", type=click.Path(path_type=Path), default=Path("nc_workspace"), show_default=True)
@click.option("--run", help="Name of the run below the logdir.  [default: the quantized file's name]")
@click.option(
    "--sort", default="added_sqnr_db", show_default=True, metavar="COLUMN", help="Sort the tables by this column."
)
@click.option("--top", default=10, show_default=True, type=click.IntRange(1), metavar="N", help="Rows to print.")
@click.option("--samples", type=click.IntRange(1), metavar="N", help="Use only the first N samples.")
@click.option(
    "--batch-size", type=click.IntRange(1), metavar="N", help="Samples at once.  [default: what fits the memory]"
)
@click.option(
    "--memory",
    default=1024,
    show_default=True,
    type=click.IntRange(1),
    metavar="MIB",
    help="Budget for the arrays of one batch.",
)
@click.option(
    "--csv",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write activations_table.csv and weights_table.csv there.",
)
@click.option(
    "--probe",
    "probe_s",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Also measure at the output what quantizing each op does, for about so long; called again with the same --run "
    "it goes on.",
)
@click.option(
    "--profile",
    "profile_runs",
    type=click.IntRange(1),
    metavar="RUNS",
    help="Also time every op of both models in so many runs of one sample, as `inc-tb profile` does.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
def diagnose(
    reference: str, quantized: str, data: str, logdir: Path, run: str | None, sort: str, top: int,
    samples: int | None, batch_size: int | None, memory: int, csv: Path | None, probe_s: float | None,
    profile_runs: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Compare QUANTIZED with REFERENCE op by op, log it for TensorBoard, and say what to change.

    Both are .onnx files, models of TensorFlow (SavedModel folder, .pb, .keras, .tflite), of MXNet (-symbol.json), or
    file.py:function that returns a model.
    """
    from inc_tb.measure.op_table import COLUMNS
    from inc_tb.profiling.run import profile
    from inc_tb.search.probe import probe
    from inc_tb.show.diagnoses import check_column, show_diagnosis
    from inc_tb.show.profiles import show_profile
    from inc_tb.show.trials import show_comparison
    from inc_tb.store.writer import SummaryWriter

    check_column([column.name for column in COLUMNS], sort)
    folder = run_folder(logdir, run, name_of(quantized))
    check_folder(logdir)
    check_folder(csv)
    models = as_model(reference), as_model(quantized)
    adapter = open_pair(*models, memory_budget=memory << 20)
    for ability, wanted in (("open_switches", probe_s), ("open_timer", profile_runs)):
        if wanted is not None:
            framework_of(models[1]).require(ability)
    batches = open_data(data, adapter.inputs(), batch_size or adapter.batch_size()).first(samples)
    with progress_bar("comparing samples", batches.samples) as progress:
        found = diagnose_adapted(adapter, batches, names=(reference, quantized), progress=progress)
    with SummaryWriter(folder) as writer:
        writer.add_diagnosis(found)
    comparison, complete = {}, True
    if probe_s is not None:
        with progress_bar("probing the output") as probing:
            probed = probe(*models, batches, budget_s=probe_s, logdir=folder, diagnosis=found, progress=probing)
        found, comparison, complete = probed.diagnosis, probed.comparison, probed.complete
    times = None
    if profile_runs is not None:
        one_by_one = open_data(data, adapter.inputs(), 1).first(samples)
        with progress_bar("timing runs", profile_runs) as timing:
            times = profile(models[0], one_by_one, quantized=models[1], runs=profile_runs, progress=timing)
        found = times.join(found)
        with SummaryWriter(folder) as writer:
            writer.add_profile(times)
            writer.update_diagnosis(found)
    if csv is not None:
        found.to_csv(csv)
    if as_json:
        more: dict[str, Any] = {"comparison": comparison, "complete": complete} if comparison else {}
        print_json({**found.to_json(), **more, **({"profile": times.to_json()} if times is not None else {})})
        return
    show_diagnosis(out, found, sort=sort, top=top)
    if times is not None:
        show_profile(out, times, top)
    show_comparison(out, comparison)
    out.print(f"Logged {found.ops.count} ops and {found.samples} samples to [bold]{escape(str(folder))}[/]. ", end="")
    invite(logdir)
