"""`inc-tb import`"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from inc_tb.commands.terminal import check_folder, invite, out, print_json, run_folder, say
from inc_tb.errors import DataError, UsageError
from inc_tb.importers.profiles import find_profiles, import_profile
from inc_tb.timing import Profile

_ENDINGS = (".gz", ".json", ".trace", ".pt")


@click.command("import")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--logdir", type=click.Path(path_type=Path), default=Path("nc_workspace"), show_default=True)
@click.option(
    "--run",
    metavar="NAME",
    help="Name of the run below the logdir; where several are found, of the folder for them.  [default: as in PATH]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
def import_(path: Path, logdir: Path, run: str | None, as_json: bool) -> None:
    """Log what another tool has measured, for TensorBoard.

    PATH is a trace of ONNX Runtime or torch.profiler (.json, .json.gz), a benchmark workspace of Neural Compressor, or
    a folder with any of them below. Each becomes a run of its own.
    """
    check_folder(logdir)
    profiles = _read(find_profiles(path))
    place = logdir
    if run is not None:
        if run_folder(logdir, run, "").exists():
            raise UsageError(f"--run {run}: {logdir / run} is there already; expected a new name. Choose another one.")
        if len(profiles) > 1:
            place, run = logdir / run, None
    listed = []
    for source, profile in profiles.items():
        folder = run_folder(place, run, _name(source))
        _log(folder, profile)
        listed.append(_listed(folder.relative_to(logdir), source, profile))
        if not as_json:
            _show(folder, profile)
    if as_json:
        print_json({"runs": listed})
    else:
        invite(logdir)


def _read(sources: list[Path]) -> dict[Path, Profile]:
    """All before anything is written. One that cannot be read does not stop the others."""
    found: dict[Path, Profile] = {}
    for source in sources:
        try:
            found[source] = import_profile(source)
        except DataError as error:
            if len(sources) == 1:
                raise
            say(f"Left out: {error}")
    if not found:
        raise DataError(f"none of the {len(sources)} files can be imported; expected at least one. See above for why.")
    return found


def _log(folder: Path, profile: Profile) -> None:
    from inc_tb.events import SummaryWriter

    try:
        with SummaryWriter(folder) as writer:
            writer.add_profile(profile)
    except BaseException:  # a full disk, Ctrl-C: half a run is none
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _name(source: Path) -> str:
    name = source.resolve().name
    while not source.is_dir() and name.endswith(_ENDINGS):
        name = name.rpartition(".")[0]
    return name.encode("utf-8", "replace").decode().strip(".") or "imported"


def _listed(name: Path, source: Path, profile: Profile) -> dict[str, Any]:
    ops = sum(bool(row.op) for row in profile.rows)
    told = {"name": str(name), "source": str(source), "trials": 0, "ops": ops, "baseline": None, "best": None}
    return {**told, "notes": profile.notes}


def _show(folder: Path, profile: Profile) -> None:
    from inc_tb.report import show_profile

    show_profile(out, profile)
    ops = sum(bool(row.op) for row in profile.rows)
    out.print(f"Logged {ops} ops to [bold]{escape(str(folder))}[/].\n", highlight=False)
