"""The command `inc-tb`."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import inc_tb
from inc_tb.capture import open_models
from inc_tb.data import open_data
from inc_tb.diagnose import diagnose_adapted
from inc_tb.errors import IncTbError, UsageError

_out = Console(soft_wrap=False)
_err = Console(stderr=True)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(inc_tb.__version__, prog_name="inc-tb")
@click.option("--debug", is_flag=True, help="Show a traceback when something fails.")
def cli(debug: bool) -> None:
    """Find out why a quantized model lost its accuracy."""


@cli.command()
@click.option("--logdir", type=click.Path(path_type=Path), default=Path("nc_workspace"), show_default=True)
@click.option("--serve/--no-serve", default=None, help="Start TensorBoard afterwards. [default: when on a terminal]")
@click.option("--json", "as_json", is_flag=True, help="Print the trials as JSON.")
def demo(logdir: Path, serve: bool | None, as_json: bool) -> None:
    """See it find a culprit: a real CNN, three quantizations, under a minute, nothing needed."""
    from inc_tb.demo import run_demo
    from inc_tb.records import Trial

    trials: list[Trial] = run_demo(_err if as_json else _out, logdir)
    if as_json:
        _print_json({"logdir": str(logdir), "trials": trials})
        return
    _invite(logdir)
    if sys.stdout.isatty() if serve is None else serve:
        _out.print("Starting it; Ctrl-C ends it.")
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--host", "127.0.0.1"]
        subprocess.run(command, check=False)


@cli.command()
@click.argument("reference", type=click.Path(path_type=Path))
@click.argument("quantized", type=click.Path(path_type=Path))
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
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
def diagnose(
    reference: Path, quantized: Path, data: str, logdir: Path, run: str | None, sort: str, top: int,
    samples: int | None, batch_size: int | None, memory: int, csv: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Compare QUANTIZED with REFERENCE op by op, log it for TensorBoard, and say what to change."""
    from inc_tb.events import SummaryWriter
    from inc_tb.metrics import COLUMNS
    from inc_tb.report import check_column, show_diagnosis

    check_column([column.name for column in COLUMNS], sort)
    folder = _run_folder(logdir, run, quantized.stem)
    for given in (logdir, csv):
        if given is not None and given.exists() and not given.is_dir():
            raise UsageError(f"{given}: is a file; expected a folder to write to. Choose another place.")
    adapter = open_models(reference, quantized, memory_budget=memory << 20)
    batches = open_data(data, adapter.inputs(), batch_size or adapter.batch_size()).first(samples)
    with _progress(batches.samples) as progress:
        found = diagnose_adapted(adapter, batches, names=(str(reference), str(quantized)), progress=progress)
    with SummaryWriter(folder) as writer:
        writer.add_diagnosis(found)
    if csv is not None:
        found.to_csv(csv)
    if as_json:
        _print_json(found.to_json())
        return
    show_diagnosis(_out, found, sort=sort, top=top)
    _out.print(f"Logged {found.ops.count} ops and {found.samples} samples to [bold]{escape(str(folder))}[/]. ", end="")
    _invite(logdir)


@contextmanager
def _progress(total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on standard error that is gone when the work is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=_err, transient=True, disable=not _err.is_terminal) as bar:
        task = bar.add_task("comparing samples", total=total)
        yield lambda done: bar.update(task, completed=done)


def _run_folder(logdir: Path, run: str | None, name: str) -> Path:
    """The named run, or one that is not there yet: another model with the same name does not mix with the first."""
    if run is not None:
        parts = Path(run).parts
        if not parts or Path(run).is_absolute() or ".." in parts:
            raise UsageError(f"--run {run}: expected a name below the logdir, such as trial-001.")
        return logdir / run
    folder, count = logdir / name, 1
    while folder.exists():
        count += 1
        folder = logdir / f"{name}-{count}"
    return folder


def _invite(logdir: Path) -> None:
    place = escape(shlex.quote(str(logdir)))
    beside = Path(sys.executable).with_name("tensorboard")  # where the venv is not activated, as after `make demo`
    program = "tensorboard" if shutil.which("tensorboard") else escape(shlex.quote(os.path.relpath(beside)))
    _out.print(f"See it with\n\n    [bold]{program} --logdir {place}[/]\n", highlight=False, soft_wrap=True)


def _print_json(value: Any) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> None:
    """Exit codes: 0 done, 1 a check does not hold, 2 wrong use or unusable input."""
    given = sys.argv[1:] if arguments is None else arguments
    if "--debug" in given:  # also behind the command
        given = ["--debug", *(argument for argument in given if argument != "--debug")]
    try:
        code = cli.main(given, prog_name="inc-tb", standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        _fail(error.format_message())
    except BrokenPipeError:
        sys.exit(0)
    except Exception as error:  # noqa: BLE001  what nobody foresaw is one line and exit code 2, too
        if "--debug" in given:
            traceback.print_exc()
        is_explained = isinstance(error, IncTbError | OSError)
        _fail(str(error) if is_explained else f"{type(error).__name__}: {error}. Run with --debug to see where.")
    else:
        sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> None:
    sys.stderr.write(f"inc-tb: {' '.join(message.split())}\n")
    sys.exit(2)


if __name__ == "__main__":
    main()
