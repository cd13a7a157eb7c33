"""`dask://scheduler:8786`, or `dask://local` for a cluster on this machine."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from inc_tb.engines.engine import TRIES, Engine
from inc_tb.engines.places import LOCAL, imported, reach, unreachable


@contextmanager
def open_engine(on: str, place: str) -> Iterator[Engine]:
    distributed = imported("distributed", on, "dask")
    if place == LOCAL:
        with distributed.LocalCluster(threads_per_worker=1, dashboard_address=None) as cluster:
            yield from _opened(distributed.Client(cluster), on)
        return
    host, port = reach(on, place, 8786)
    try:
        client = distributed.Client(f"tcp://{host}:{port}", timeout=10)
    except (OSError, TimeoutError, ValueError) as error:
        raise unreachable(on, error) from error
    yield from _opened(client, on)


def _opened(client: Any, on: str) -> Iterator[Engine]:
    with client:
        executor = client.get_executor(retries=TRIES)
        try:
            yield Engine(on, executor, len(client.nthreads()), partial(_put, client))
        finally:
            with suppress(Exception):  # what was not needed any more may be gone
                executor.shutdown(wait=False)


def _put(client: Any, value: Any) -> Any:
    """As what a task gives, which is done again where the worker is lost that holds it; scattered data are gone."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sending large graph")
        return client.submit(_same, value, pure=False)


def _same(value: Any) -> Any:
    return value
