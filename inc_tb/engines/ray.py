"""`ray://head:10001`, `ray://auto` for the cluster that this machine belongs to, `ray://local` for one on it alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any

from inc_tb.engines.engine import TRIES, Engine
from inc_tb.engines.places import LOCAL, imported, reach, unreachable
from inc_tb.errors import UsageError

_AUTO = "auto"


@contextmanager
def open_engine(on: str, place: str) -> Iterator[Engine]:
    ray = imported("ray", on, "ray")
    address = _address(on, place)
    if ray.is_initialized():  # by the program that calls us, which also ends it
        if address not in (LOCAL, _AUTO):
            raise UsageError(f"--on {on} was given, and this program has called ray.init; expected ray://{_AUTO} then.")
        yield _engine(ray, on)
        return
    try:
        ray.init(address, log_to_driver=False, logging_level="error")
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        raise unreachable(on, error) from error
    try:
        yield _engine(ray, on)
    finally:
        ray.shutdown()


def _address(on: str, place: str) -> str:
    if place in (LOCAL, _AUTO):
        return place
    host, port = reach(on, place, 10001)
    return f"ray://{host}:{port}"


def _engine(ray: Any, on: str) -> Engine:
    return Engine(on, _Tasks(ray), int(ray.cluster_resources().get("CPU", 1)), ray.put)


class _Tasks(Executor):
    """Tasks of Ray, which does those again whose worker or node has died."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._call = ray.remote(max_retries=TRIES)(_called)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        found: Future[Any] = self._call.remote(function, *args, **kwargs).future()
        return found


def _called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)
