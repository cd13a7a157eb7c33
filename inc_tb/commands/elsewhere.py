"""`--on ENGINE`, the same for all commands that can have work done in other processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from inc_tb.engines.engine import Engine
from inc_tb.engines.named import opened
from inc_tb.errors import UsageError


def with_on(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "--on", metavar="ENGINE",
        help=f"{what} on processes:N of this machine, ray://HOST:PORT (or auto, local) or dask://HOST:PORT (or local).",
    )  # fmt: skip


def started(on: str | None) -> Engine | None:
    """Until the command ends."""
    return None if on is None else click.get_current_context().with_resource(opened(on))


def refuse_with_on(on: str | None, **given: Any) -> None:
    """Options that need all samples in one process."""
    wrong = [f"--{name}" for name, value in given.items() if value]
    if on is not None and wrong:
        raise UsageError(f"--on was given with {', '.join(wrong)}; expected one of them.")
