"""What engines behind an address share: whether they are installed, and whether anybody is there."""

from __future__ import annotations

import socket
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from inc_tb.errors import EngineError, UsageError, first_line

LOCAL = "local"
_PATIENCE_S = 5.0


def imported(package: str, on: str, extra: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise UsageError(
            f"--on {on} needs {package}, which is not installed: pip install 'inc-tb[{extra}]'."
        ) from error


def reach(on: str, place: str, usual_port: int) -> tuple[str, int]:
    """Host and port, once somebody answers there: the engines' own clients try for minutes."""
    try:
        split = urlsplit(f"//{place}")
        host, port = split.hostname or "", split.port or usual_port
    except ValueError:
        host, port = "", usual_port
    if not host or split.path:
        raise UsageError(f"--on {on} was given; expected host:port behind ://, or {LOCAL}.")
    try:
        socket.create_connection((host, port), _PATIENCE_S).close()
    except OSError as error:
        raise unreachable(on, error) from error
    return host, port


def unreachable(on: str, error: BaseException) -> EngineError:
    return EngineError(
        f"{on}: cannot be reached ({first_line(error)}). Is it running, and its port open to this machine?"
    )
