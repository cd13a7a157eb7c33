"""`inc-tb import`"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

from inc_tb.commands.runs import run_folder
from inc_tb.commands.terminal import check_folder, detail, invite, out, print_json, say, with_detail
from inc_tb.engines.models import open_model
from inc_tb.errors import DataError, UsageError
from inc_tb.frameworks.models import read_graph
from inc_tb.records import GraphNode, Trial, plural, storable_text
from inc_tb.show.detail import Detail
from inc_tb.sources.imported import Imported, ImportedRun
from inc_tb.sources.imports import find_sources, read_all, read_source
from inc_tb.sources.logged import log_runs, told
from inc_tb.sources.neural_compressor.insights import find_registered
from inc_tb.sources.source import Found

if TYPE_CHECKING:
    from inc_tb.show.verdict import Line

_PAUSE_S = 0.5
_SHOWN_TRIALS = 12
_VERDICT_LINES = 5


@click.command("import")
@click.argument("path", type=click.Path(path_type=Path), required=False)
@click.option("--logdir", type=click.Path(path_type=Path), default=Path("nc_workspace"), show_default=True)
@click.option(
    "--run",
    metavar="NAME",
    help="Name below the logdir for what is found; where that is several, of a folder for them.  [default: as in PATH]",
)
@click.option("--insights", is_flag=True, help="Import the workspaces that Neural Insights knew, instead of PATH.")
@click.option(
    "--watch", is_flag=True, help="Go on while a tuning runs: every trial as soon as it has ended, to Ctrl-C."
)
@click.option(
    "--model",
    metavar="MODEL",
    help="The fp32 model, for workspaces that do not say which op reads which: a file, a folder, or file.py:function.",
)
@with_detail
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
def import_(
    path: Path | None, logdir: Path, run: str | None, insights: bool, watch: bool, model: str | None, as_json: bool
) -> None:
    """Log what another tool has measured, for TensorBoard.

    PATH is a workspace of Neural Compressor (tuning, diagnosis or benchmark), a log of its tuning, a trace of ONNX
    Runtime or torch.profiler (.json, .json.gz), or a folder with any of them below. Every trial, diagnosis and profile
    becomes a run; importing a workspace again adds what has come since.
    """
    check_folder(logdir)
    if (path is None) != insights:
        given = "neither PATH nor --insights was" if path is None else "both PATH and --insights were"
        raise UsageError(f"{given} given; expected one of them. Give the folder that the tool wrote to.")
    if run is not None:
        run_folder(logdir, run, "")  # a name below the logdir
    graph = read_graph(open_model(model)) if model is not None else ()
    if watch:
        found = _watch(_folder(path), logdir, run, graph, as_json)
    else:
        found = _import(
            find_registered(Path.home()) if path is None else find_sources(path), logdir, run, graph, as_json
        )
    if as_json:
        print_json({"runs": [imported.to_json() for imported in found]})
    elif found:
        invite(logdir)


def _folder(path: Path | None) -> Path:
    if path is None or not path.is_dir():
        raise UsageError(
            f"--watch with {path or '--insights'}: expected the folder in which a tuning runs, such as nc_workspace."
        )
    return path


def _import(
    sources: list[Found], logdir: Path, run: str | None, graph: Sequence[GraphNode], as_json: bool
) -> list[Imported]:
    """All is read before anything is written."""
    found = read_all(sources, graph)
    for imported in (imported for imported in found if not imported.runs):
        say(f"Left out: {imported.notes[0]}")
    usable = [imported for imported in found if imported.runs]
    for imported in usable:
        new = log_runs(imported, logdir, _name(run, imported.name, len(usable)))
        if not as_json:
            _show(imported, new, logdir)
    return usable


def _name(run: str | None, found: str, count: int) -> str | None:
    """What --run says: the name of the only thing that was found, or of a folder for all of them."""
    return None if run is None else run if count == 1 else str(Path(run, found))


def _watch(folder: Path, logdir: Path, run: str | None, graph: Sequence[GraphNode], as_json: bool) -> list[Imported]:
    """Until Ctrl-C. What cannot be read at the moment is tried again when it has changed."""
    seen: dict[Path, Any] = {}
    found: dict[Path, Imported] = {}
    say(f"Watching {folder} for trials; Ctrl-C ends it.")
    try:
        while True:
            sources = [source for source in _sources_now(folder) if source.watched()]
            for source in sources:
                if (state := _state(source)) != seen.get(source.path):
                    seen[source.path] = state
                    before = found.get(source.path)
                    name = before.name if before is not None else _name(run, source.name, len(sources))
                    imported = _follow(source, before, logdir, name, graph, as_json)
                    found.update({source.path: imported} if imported is not None else {})
            time.sleep(_PAUSE_S)
    except KeyboardInterrupt:
        return list(found.values())


def _sources_now(folder: Path) -> list[Found]:
    try:
        return find_sources(folder)
    except DataError:  # nothing yet
        return []


def _state(source: Found) -> Any:
    """What changes when there is more to read."""
    found = []
    for place in source.watched():
        with suppress(OSError):  # gone since
            at = place.stat()
            found += [(str(place), at.st_mtime_ns, at.st_size)] if place.is_file() else []
    return found


def _follow(
    source: Found, before: Imported | None, logdir: Path, name: str | None, graph: Sequence[GraphNode], as_json: bool
) -> Imported | None:
    """Runs that were logged before are not looked at again, unless tensors of theirs may have come."""
    from inc_tb.show.trials import show_trial

    try:
        imported = read_source(source, graph)
    except DataError as error:
        say(f"Not yet: {error}")
        return None
    logged = {run.name: told(run.trial) for run in before.runs} if before is not None else {}
    known = [
        run.name
        for run in imported.runs
        if run.name in logged and logged[run.name] == told(run.trial) and not run.has_tensors
    ]
    new = log_runs(imported, logdir, name, known)
    for trial in (r.trial for r in new if r.trial is not None and not as_json):
        show_trial(out, trial, trial is min(imported.trials, key=_rank))
    return imported


def _show(imported: Imported, new: list[ImportedRun], logdir: Path) -> None:
    from inc_tb.show.verdict import show_verdict

    out.print(f"[bold]{escape(storable_text(str(imported.source)))}[/]", highlight=False)
    show_verdict(out, _verdict(imported))
    if detail() is not Detail.QUIET:
        _show_tables(imported)
    place = f"[bold]{escape(str(logdir / imported.name))}[/]"
    ops = plural(imported.ops, "op")
    many = f"{plural(len(imported.runs), 'run')}, {ops}" if imported.trials else ops
    logged = f"{len(new)} new of {many}" if imported.trials else many
    out.print(f"Logged {logged} to {place}.\n" if new else f"Nothing new: {place} has all {many}.\n", highlight=False)


def _verdict(imported: Imported) -> list[Line]:
    """The best trial, and what the first diagnosis or profile says."""
    from inc_tb.show.verdict import Line, trial_text, verdict_of_diagnosis, verdict_of_profile

    tried = [trial for trial in imported.trials if trial.accuracy is not None]
    lines = [Line("best", f"{trial_text(min(tried, key=_rank))}, of {plural(len(tried), 'trial')}")] if tried else []
    for run in imported.runs:
        if run.has_tensors and run.diagnosis is not None:
            return [*lines, *verdict_of_diagnosis(run.diagnosis)][:_VERDICT_LINES]
        if run.profile is not None:
            return [*lines, *verdict_of_profile(run.profile)][:_VERDICT_LINES]
    return lines


def _show_tables(imported: Imported) -> None:
    from inc_tb.show.diagnoses import show_tables, write_lists
    from inc_tb.show.profiles import show_times
    from inc_tb.show.trials import show_trials

    shown: list[str] = []
    for run in imported.runs:
        if run.has_tensors and run.diagnosis is not None:
            if run.diagnosis.logged is not None:
                write_lists(run.diagnosis.logged, run.diagnosis)
            show_tables(out, run.diagnosis, top=6, detail=detail())
            shown += run.diagnosis.notes
        if run.profile is not None:
            show_times(out, run.profile)
            shown += run.profile.notes
    trials = imported.trials
    if trials:
        best = sorted(range(len(trials)), key=lambda at: _rank(trials[at]))[:_SHOWN_TRIALS]
        show_trials(out, [trials[at] for at in sorted(best)])
    if len(trials) > _SHOWN_TRIALS:
        out.print(f"The best {_SHOWN_TRIALS} of {len(trials)}; all of them are in the log.", highlight=False)
    for note in (note for note in imported.notes if note not in shown):
        out.print(f"[yellow]note:[/] {escape(note)}", highlight=False)


def _rank(trial: Trial) -> float:
    """Low for the best."""
    if trial.accuracy is None:
        return math.inf
    return trial.accuracy if trial.lower_is_better else -trial.accuracy
