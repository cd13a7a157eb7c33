"""`inc-tb diagnose`"""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from inc_tb.advise.diagnose import diagnose_adapted, token_watch
from inc_tb.advise.given import Given
from inc_tb.advise.shares import Share, diagnose_on
from inc_tb.commands.elsewhere import refuse_with_on, started, with_on
from inc_tb.commands.places import as_logdir
from inc_tb.commands.runs import name_of, refuse_taken, run_folder
from inc_tb.commands.sharding import as_share, refuse_with_share, share_folder, write_share
from inc_tb.commands.terminal import (
    check_folder,
    detail,
    invite,
    out,
    print_json,
    progress_bar,
    with_detail,
)
from inc_tb.data import load_function, open_data, open_for, split_function
from inc_tb.engines.models import open_model
from inc_tb.errors import IncTbError, UsageError
from inc_tb.frameworks.models import open_pair
from inc_tb.frameworks.registry import framework_of
from inc_tb.records import plural
from inc_tb.show.detail import Detail
from inc_tb.texts import LENGTH, open_text, open_tokenizer

_QUICK_S = 15.0
"""What a comparison takes beside which quantizing the model twice is no matter."""


@click.command()
@click.argument("reference")
@click.argument("quantized")
@click.option("--data", help=".npz, .npy, a folder of them, ONNX test_data_set_* folders, or file.py:function.")
@click.option(
    "--text",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Instead of --data, for a language model: a text file, cut into sequences of tokens.",
)
@click.option("--length", default=LENGTH, show_default=True, type=click.IntRange(2), help="Tokens of a sequence.")
@click.option(
    "--tokenizer",
    metavar="PLACE",
    help="Makes tokens of text, and words of tokens: a folder of transformers or a .gguf file.  [default: REFERENCE's]",
)
@click.option("--logdir", callback=as_logdir, default="nc_workspace", show_default=True)
@click.option("--run", help="Name of the run below the logdir.  [default: the quantized file's name]")
@click.option("--append", is_flag=True, help="Log to a --run that is there already, as its next step.")
@click.option(
    "--sort",
    metavar="COLUMN",
    help="Sort the tables by this column: its id, its label, or Neural Compressor's title, such as MSE.  "
    "[default: sensitivity where the output was probed, else added_sqnr_db]",
)
@click.option("--top", default=10, show_default=True, type=click.IntRange(1), metavar="N", help="Rows to print.")
@click.option("--samples", type=click.IntRange(1), metavar="N", help="Use only the first N samples.")
@click.option(
    "--batch-size",
    type=click.IntRange(1),
    metavar="N",
    help="Samples at once.  [default: what fits the memory, measured on one]",
)
@click.option(
    "--memory",
    type=click.IntRange(1),
    metavar="MIB",
    help="What samples may take beside the models.  [default: 1024, or half of what is free where that is less]",
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
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="Measure at the output what quantizing each op does, for about so long; called again for the same models "
    "with the same --run it goes on. 0 leaves it out.  [default: 5, or half of what the comparison took]",
)
@click.option(
    "--profile",
    "profile_runs",
    type=click.IntRange(1),
    metavar="RUNS",
    help="Also time every op of both models in so many runs of one sample, as `inc-tb profile` does.",
)
@click.option(
    "--shard",
    callback=as_share,
    metavar="K/N",
    help="Measure only every Nth batch, from the Kth on, and leave a file for `inc-tb merge` in LOGDIR/RUN.shards.",
)
@click.option(
    "--verify", "is_verified", is_flag=True,
    help="Quantize with the first suggestion, as the quantized model was made as far as that shows, and tell the error "
    "before and after.",
)  # fmt: skip
@click.option(
    "--eval", "evaluate", metavar="FILE.PY:FUNCTION",
    help="With --verify: also the accuracy. Gets a model or the path of its file, returns a number.",
)  # fmt: skip
@click.option(
    "--no-previews", is_flag=True, help="Log no small pictures, outlines of sound or texts of the worst samples."
)
@with_on("Compare shares of the data, and evaluate what --probe asks for,")
@with_detail
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
def diagnose(
    reference: str, quantized: str, data: str | None, text: Path | None, length: int, tokenizer: str | None,
    logdir: Path, run: str | None, append: bool, sort: str | None, top: int, samples: int | None, batch_size: int |
    None, memory: int | None, csv: Path | None, probe_s: float | None, profile_runs: int | None, shard: Share | None,
    is_verified: bool, evaluate: str | None, on: str | None, no_previews: bool, as_json: bool,
) -> None:  # fmt: skip
    """Compare QUANTIZED with REFERENCE op by op, log it for TensorBoard, and say what to change.

    Both are .onnx files, models of TensorFlow (SavedModel folder, .pb, .keras, .tflite), of MXNet (-symbol.json), of
    transformers (a folder, .gguf), or file.py:function that returns a model.
    """
    from inc_tb.measure.op_table import COLUMNS
    from inc_tb.profiling.run import profile
    from inc_tb.search.brief import budget_after, probe_briefly
    from inc_tb.search.probe import Probe, probe
    from inc_tb.show.diagnoses import show_diagnosis, write_lists
    from inc_tb.show.profiles import show_profile
    from inc_tb.show.sorting import find_sorting
    from inc_tb.show.trials import show_comparison
    from inc_tb.show.verified import show_rewritten, show_verified
    from inc_tb.store.remote import shown
    from inc_tb.store.workspace import put_tables_above
    from inc_tb.store.writer import SummaryWriter
    from inc_tb.tuning.rewriting import rewritten_instead
    from inc_tb.tuning.verify import verify

    if sort is not None:
        find_sorting(COLUMNS, sort)  # before anything takes time
    if (data is None) == (text is None):
        both = "neither was given" if data is None else "both were given"
        raise UsageError(f"expected --data, or --text for a language model; {both}.")
    if shard is not None:
        refuse_with_share(append=append, csv=csv, probe=probe_s, profile=profile_runs, verify=is_verified)
    refuse_with_on(on, shard=shard, text=text, tokenizer=tokenizer)
    if evaluate is not None and not is_verified:
        raise UsageError("--eval was given without --verify; expected both.")
    scored = load_function(*split_function(evaluate)) if evaluate is not None else None
    folder = run_folder(logdir, run, name_of(quantized))
    check_folder(logdir)
    check_folder(csv)
    if run is not None and not append:
        refuse_taken(folder, run, (reference, quantized), goes_on=bool(probe_s))
    models = open_model(reference), open_model(quantized)
    given = Given(*models, (reference, quantized))
    given.check_files()
    budget = None if memory is None else memory << 20
    adapter = open_pair(*models, memory_budget=budget, batch_size=batch_size)
    for ability, wanted in (("open_switches", probe_s), ("open_timer", profile_runs)):
        if wanted:
            framework_of(models[1]).require(ability)
    words = open_tokenizer(tokenizer or reference) if text is not None or tokenizer is not None else None
    if text is not None:
        batches = open_text(text, words, adapter.inputs(), length, batch_size).first(samples)
    else:
        batches = open_for(adapter, data or "").first(samples)
    if shard is not None:
        asked = {"batch-size": batch_size, "samples": samples, "length": None if text is None else length}
        place = share_folder(logdir, run, quantized)
        write_share(shard, adapter, batches, models, (reference, quantized), given, place, asked, as_json=as_json)
        return
    began = time.monotonic()
    engine = started(on)
    with progress_bar("comparing samples", batches.samples) as progress:
        if engine is not None:
            found = diagnose_on(
                engine, (reference, quantized), data, names=(reference, quantized), samples=samples,
                batch_size=batch_size, memory_budget=budget, progress=progress,
            )  # fmt: skip
        else:
            found = diagnose_adapted(
                adapter, batches, models, names=(reference, quantized), given=given, progress=progress,
                watch=token_watch(words), previews=not no_previews,
            )  # fmt: skip
    probed = Probe(found)
    with progress_bar("probing the output") as probing:
        if probe_s is None:
            budget_s = budget_after(time.monotonic() - began)
            probed = probe_briefly(models, batches, found, budget_s, probing)
            found = probed.diagnosis
        with SummaryWriter(folder, whole=True) as writer:
            writer.add_diagnosis(found)
        if probe_s:
            first, second = models if engine is None else (reference, quantized)  # which workers open themselves
            probed = probe(
                first, second, batches, budget_s=probe_s, logdir=folder, diagnosis=found, progress=probing, on=engine
            )
    found, comparison, complete = probed.diagnosis, probed.comparison, probed.complete
    times = None
    if profile_runs is not None:
        one_by_one = (
            open_text(text, words, adapter.inputs(), length, 1)
            if text is not None
            else open_data(data or "", adapter.inputs(), 1)
        )
        one_by_one = one_by_one.first(samples)
        with progress_bar("timing runs", profile_runs) as timing:
            times = profile(models[0], one_by_one, quantized=models[1], runs=profile_runs, progress=timing)
        found = times.join(found)
        with SummaryWriter(folder, whole=True) as writer:
            writer.add_profile(times)
            writer.update_diagnosis(found)
    instead = None
    is_wanted = (as_json or detail() is not Detail.QUIET) and probe_s != 0
    if is_verified or (is_wanted and time.monotonic() - began < _QUICK_S):
        with contextlib.redirect_stdout(sys.stderr):
            instead = rewritten_instead(*models, batches, found)
    record = instead.write(folder) if instead is not None else None
    put_tables_above(folder, logdir, found)
    write_lists(folder, found)
    if csv is not None:
        found.to_csv(csv)
    verified, failed = None, None
    if is_verified:
        try:
            with contextlib.redirect_stdout(sys.stderr):  # what the user's own function prints is no part of the answer
                verified = verify(*models, batches, found, scored)
        except IncTbError as error:
            failed = error  # told once the diagnosis is
    if as_json:
        more: dict[str, Any] = {"comparison": comparison, "complete": complete} if comparison else {}
        more |= {"verified": verified} if verified is not None else {}
        more |= {"without_fp32": {"cure": str(record), "found": instead}} if instead is not None else {}
        print_json({**found.to_json(), **more, **({"profile": times.to_json()} if times is not None else {})})
        if failed is not None:
            raise failed
        return
    show_diagnosis(
        out, found, sort=sort, top=top, detail=detail(), comparison=comparison,
        next_step=f"inc-tb suggest {shlex.quote(shown(folder))}" if found.suggestions else "",
    )  # fmt: skip
    if detail() is not Detail.QUIET:
        if times is not None:
            show_profile(out, times, top)
        show_comparison(out, comparison)
    if verified is not None:
        show_verified(out, verified)
    if instead is not None and record is not None and detail() is not Detail.QUIET:
        cure = f"--cure {shlex.quote(shown(record))} -o rewritten{instead.suffix}"
        show_rewritten(out, instead, f"inc-tb apply {shlex.quote(reference)} {cure}")
    logged = f"{plural(found.ops.count, 'op')} and {plural(found.samples, 'sample')}"
    out.print(f"Logged {logged} to [bold]{escape(shown(folder))}[/]. ", end="")
    invite(logdir)
    if failed is not None:
        raise failed
