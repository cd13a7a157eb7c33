"""`inc-tb diagnose --shard 3/16` and `inc-tb merge`."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from inc_tb.advise.diagnose import diagnosed
from inc_tb.advise.given import Given
from inc_tb.advise.shares import Share, batches_of, measured_share
from inc_tb.commands.places import Place, as_logdir, as_places
from inc_tb.commands.runs import name_of, refuse_taken, run_folder
from inc_tb.commands.terminal import check_folder, detail, invite, out, print_json, progress_bar, say, with_detail
from inc_tb.data import Data
from inc_tb.errors import DataError, UsageError
from inc_tb.frameworks.protocols import Adapter
from inc_tb.records import plural


def as_share(_: click.Context, option: click.Parameter, given: str | None) -> Share | None:
    if given is None:
        return None
    found = re.fullmatch(r"(\d+)/(\d+)", given)
    share = Share(int(found[1]), int(found[2])) if found else Share(0, 0)
    if not 1 <= share.place <= share.shares:
        raise UsageError(
            f"{option.opts[0]} {given} was given; expected which one of how many, from 1/16 to 16/16, say."
        )
    return share


def refuse_with_share(**given: Any) -> None:
    """Options that need all samples."""
    wrong = [f"--{name}" for name, value in given.items() if value]
    if wrong:
        raise UsageError(
            f"--shard was given with {', '.join(wrong)}; a shard only leaves statistics. Give the others without it."
        )


def write_share(
    share: Share, adapter: Adapter, batches: Data, models: tuple[Any, Any], names: tuple[str, str], given: Given,
    place: Path, asked: dict[str, int | None], *, as_json: bool,
) -> None:  # fmt: skip
    """Measure one share, and leave what was found in a file below the place."""
    from inc_tb.measure.shardfiles import SUFFIX, store
    from inc_tb.store.remote import shown

    own = batches_of(share, batches)
    if own is None:
        raise DataError(
            f"--shard {share}: the data has fewer than {plural(share.place, 'batch', 'batches')}, so that nothing is "
            "left for this shard. Use fewer shards, or a smaller --batch-size in all of them."
        )
    with progress_bar("comparing samples") as progress:
        stored, samples = measured_share(share, adapter, own, models, names, given, asked, progress)
    path = place / f"{share.place}-of-{share.shares}{SUFFIX}"
    store(path, stored)
    if as_json:
        print_json({"shard": str(share), "file": shown(path), "samples": samples})
    else:
        wrote = f"{shown(path)}, {plural(samples, 'sample')}"
        say(f"Wrote {wrote}. When all are there: inc-tb merge {shown(place)} --run NAME")


def share_folder(logdir: Path, run: str | None, quantized: str) -> Path:
    """The same for all shares, whatever is there already."""
    folder = run_folder(logdir, run or name_of(quantized))
    return folder.with_name(f"{folder.name}.shards")


@click.command()
@click.argument("shards", nargs=-1, required=True, callback=as_places)
@click.option("--logdir", callback=as_logdir, default="nc_workspace", show_default=True)
@click.option("--run", required=True, help="Name of the run below the logdir.")
@with_detail
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output, as diagnose does.")
def merge(shards: tuple[Place, ...], logdir: Path, run: str, as_json: bool) -> None:
    """Make one run of the SHARDS that `inc-tb diagnose --shard` has left: files, or folders of them.

    All have to be there, each once. Counts, histograms and extremes are those of one process; sums are added up in
    another order.
    """
    from inc_tb.measure.shardfiles import files_of
    from inc_tb.measure.shardfiles import merge as merge_files
    from inc_tb.show.diagnoses import show_diagnosis, write_lists
    from inc_tb.store.remote import fetched, shown
    from inc_tb.store.workspace import put_tables_above
    from inc_tb.store.writer import SummaryWriter

    check_folder(logdir)
    folder = run_folder(logdir, run)
    with ExitStack() as copies:
        here = [copies.enter_context(fetched(one)) if isinstance(one, str) else one for one in shards]
        whole = merge_files(files_of(here))
    refuse_taken(folder, run, whole.names, goes_on=False, can_append=False)
    found = diagnosed(whole.measured, whole.ops, whole.framework, whole.names, whole.notes, whole.origin)
    with SummaryWriter(folder, whole=True) as writer:
        writer.add_diagnosis(found)
    put_tables_above(folder, logdir, found)
    write_lists(folder, found)
    if as_json:
        print_json(found.to_json())
        return
    show_diagnosis(out, found, detail=detail())
    say(f"Logged {plural(found.ops.count, 'op')} and {plural(found.samples, 'sample')} to {shown(folder)}.")
    invite(logdir)
