"""Engines by their names, and executors as they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from inc_tb.engines import dask, processes, ray
from inc_tb.engines.engine import Engine
from inc_tb.errors import UsageError

On = str | Executor | Engine
"""Where work is to be done: processes:4, ray://…, dask://…, an executor of the caller's, or an engine that runs."""
ENGINES: Mapping[str, Callable[[str, str], AbstractContextManager[Engine]]] = {
    "processes:": processes.open_engine, "ray://": ray.open_engine, "dask://": dask.open_engine,
}  # fmt: skip
"""By what their names begin with; each is given the whole name, and what comes behind that."""
EXPECTED = "processes:N, ray://HOST:PORT, ray://auto, ray://local, dask://HOST:PORT or dask://local"


@contextmanager
def opened(on: On) -> Iterator[Engine]:
    if isinstance(on, Engine):
        yield on
        return
    if isinstance(on, ThreadPoolExecutor):
        raise UsageError(
            "a ThreadPoolExecutor was given; expected an executor of processes, as frameworks and tools get into each "
            "other's way in one. Give a ProcessPoolExecutor or processes:N."
        )
    if isinstance(on, Executor):
        width = getattr(on, "_max_workers", None)  # that of the standard library's
        yield Engine(type(on).__name__, on, width or os.cpu_count() or 1)
        return
    begin = next((begin for begin in ENGINES if isinstance(on, str) and on.startswith(begin)), None)
    if begin is None:
        raise UsageError(f"--on {on} was given; expected {EXPECTED}.")
    with ENGINES[begin](on, on.removeprefix(begin)) as engine:
        yield engine


def refuse_together(on: On, **given: Any) -> None:
    """What needs all samples in one process."""
    wrong = [name for name, value in given.items() if value]
    if wrong:
        raise UsageError(f"on={on!r} was given together with {', '.join(wrong)}; expected one of them.")
