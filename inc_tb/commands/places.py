"""Options and arguments that are a folder here, or an address elsewhere: s3://bucket/logs."""

from __future__ import annotations

from pathlib import Path

import click

from inc_tb.errors import UsageError

Place = Path | str
"""A folder, or an address as it was given."""


def as_logdir(context: click.Context, _: click.Parameter, given: str) -> Path:
    """A folder to log to. Of an address a copy on this machine, which is sent when the command ends."""
    from inc_tb.store.remote import Mirror, is_remote

    if not is_remote(given):
        return Path(given)
    mirror = Mirror(given)
    context.call_on_close(mirror.finish)
    return mirror.folder


def as_place(_: click.Context, __: click.Parameter, given: str) -> Place:
    """A run to be read."""
    from inc_tb.store.remote import is_remote

    return given if is_remote(given) else Path(given)


def as_places(context: click.Context, argument: click.Parameter, given: tuple[str, ...]) -> tuple[Place, ...]:
    return tuple(as_place(context, argument, one) for one in given)


def refuse_address(given: Path) -> None:
    """Where only a folder will do; a path has lost one of the slashes."""
    kind, _, rest = str(given).partition(":/")
    if rest and len(kind) > 1 and kind.isalnum():
        raise UsageError(f"{kind}://{rest.lstrip('/')} was given; expected a folder of this machine. Copy it there.")
