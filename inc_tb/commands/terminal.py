"""What all commands share: where they print, progress bars, and what they say at the end."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from inc_tb import records
from inc_tb.commands.places import refuse_address
from inc_tb.errors import UsageError
from inc_tb.show.detail import Detail
from inc_tb.show.quantities import number

out = Console(soft_wrap=False)
err = Console(stderr=True)


_DETAIL = "inc_tb.detail"


def with_detail(command: Callable[..., Any]) -> Callable[..., Any]:
    """--quiet and --verbose, the same for all commands; detail() tells which."""
    for name, level, text in (
        ("--verbose", Detail.VERBOSE, "Also print every reason and every config."),
        ("--quiet", Detail.QUIET, "Print the verdict, and nothing while it works."),
    ):
        command = click.option(name, is_flag=True, expose_value=False, callback=_remember(level), help=text)(command)
    return command


def _remember(level: Detail) -> Callable[[click.Context, click.Parameter, bool], None]:
    def remember(context: click.Context, _: click.Parameter, is_given: bool) -> None:
        if is_given and context.meta.setdefault(_DETAIL, level) is not level:
            raise UsageError("--quiet and --verbose were given together; expected one of them.")

    return remember


def detail() -> Detail:
    """Of the command that runs."""
    context = click.get_current_context(silent=True)
    return Detail.USUAL if context is None else context.meta.get(_DETAIL, Detail.USUAL)


class _Rate(ProgressColumn):
    """How many are done in a second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{number(speed, 3)}/s" if speed else "", "progress.data.speed")


@contextmanager
def progress_bar(what: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """A bar on standard error that is gone when the work is done.

    Called with what is done, and perhaps the total, and another text.
    Nothing of it is written where standard error is no terminal. What is printed meanwhile goes above the bar, but for
    what goes to a file or a pipe.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    with Progress(
        *columns, console=err, transient=True, disable=not err.is_terminal or detail() is Detail.QUIET,
        redirect_stdout=sys.stdout.isatty(),
    ) as bar:  # fmt: skip
        task = bar.add_task(what, total=total)

        def show(done: int, of: int | None = None, text: str = what) -> None:
            bar.update(task, completed=done, total=of if of is not None else total, description=text)

        yield show


def as_sizes(_: click.Context, option: click.Parameter, given: str | None) -> tuple[int, ...] | None:
    """Of an option that takes one number or several: 1,8,32."""
    if given is None:
        return None
    parts = given.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise UsageError(f"{option.opts[0]} {given} was given; expected a whole number from 1 on, or several: 1,8,32.")
    return tuple(dict.fromkeys(int(part) for part in parts))


def say(text: str) -> None:
    err.print(escape(text), highlight=False, soft_wrap=not err.is_terminal)


def check_folder(given: Path | None) -> None:
    if given is not None:
        refuse_address(given)
    if given is not None and given.exists() and not given.is_dir():
        raise UsageError(f"{given}: is a file; expected a folder to write to. Choose another place.")


def check_output(given: Path | None) -> None:
    if given is not None and (given.is_dir() or not given.parent.is_dir()):
        wrong = "is a folder" if given.is_dir() else f"there is no folder {given.parent}"
        raise UsageError(f"--output {given}: {wrong}; expected a file to write to. Choose another place.")


def invite(logdir: Path) -> None:
    from inc_tb.store.remote import shown

    place = escape(shlex.quote(shown(logdir)))
    beside = Path(sys.executable).with_name("tensorboard")  # where the venv is not activated, as after `make demo`
    shorter = min(os.path.relpath(beside), str(beside), key=len)
    program = "tensorboard" if shutil.which("tensorboard") else escape(shlex.quote(shorter))
    out.print(f"See it with\n\n    [bold]{program} --logdir {place}[/]\n", highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    sys.stdout.buffer.write(records.to_json(value) + b"\n")
    sys.stdout.flush()
