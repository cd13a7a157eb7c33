"""`processes:4`: processes of this machine, begun anew when one of them dies."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from inc_tb.engines.engine import TRIES, Engine
from inc_tb.errors import UsageError

_HINT = ", and whether your script begins its work under `if __name__ == '__main__':`"


@contextmanager
def open_engine(on: str, workers: str) -> Iterator[Engine]:
    if not workers.isdecimal() or int(workers) < 1:
        raise UsageError(f"--on {on} was given; expected a number of processes from 1 on, such as processes:4.")
    with tempfile.TemporaryDirectory(prefix="inc_tb_on_") as folder, _Processes(int(workers), folder) as executor:
        yield Engine(on, executor, int(workers), partial(_written, Path(folder)), _HINT)


class _Written(NamedTuple):
    """An object in a file that only this user can read."""

    path: Path

    def unsealed(self) -> Any:
        with self.path.open("rb") as file:
            return pickle.load(file)  # noqa: S301, TID251  by this program itself, a moment ago


def _written(folder: Path, value: Any) -> _Written:
    handle, path = tempfile.mkstemp(dir=folder)
    with open(handle, "wb") as file:
        pickle.dump(value, file, pickle.HIGHEST_PROTOCOL)
    return _Written(Path(path))


class _Task(NamedTuple):
    future: Future[Any]
    call: Callable[[], Any]
    tries: int


class _Processes(Executor):
    """A pool that is replaced when a process of it dies, and what it had not ended is done again.

    Processes are spawned: a fork of one that has threads, as all frameworks have, may hang.
    """

    def __init__(self, workers: int, folder: str) -> None:
        """What workers leave is in the folder."""
        self._workers, self._folder = workers, folder
        self._lock = threading.Lock()
        self._is_over = False
        self._pool = self._new_pool()

    def _new_pool(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self._workers, context, _begin_worker, (self._folder,))

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._begin(_Task(future, partial(function, *args, **kwargs), 1))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """At once: what is still running is wanted by nobody."""
        self._is_over = True
        running = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in running:
            process.terminate()
        for process in running:
            process.join()

    def _begin(self, task: _Task) -> None:
        pool = self._pool
        try:
            running = pool.submit(task.call)
        except BrokenProcessPool as error:
            self._again(task, pool, error)
            return
        task.future.add_done_callback(lambda future: running.cancel() if future.cancelled() else None)
        running.add_done_callback(partial(self._ended, task, pool))

    def _ended(self, task: _Task, pool: ProcessPoolExecutor, running: Future[Any]) -> None:
        if running.cancelled() or task.future.cancelled():
            task.future.cancel()
            return
        error = running.exception()
        if isinstance(error, BrokenProcessPool):
            self._again(task, pool, error)
        elif task.future.set_running_or_notify_cancel():
            if error is not None:
                task.future.set_exception(error)
            else:
                task.future.set_result(running.result())

    def _again(self, task: _Task, pool: ProcessPoolExecutor, error: BrokenProcessPool) -> None:
        if task.tries >= TRIES or self._is_over:
            if task.future.set_running_or_notify_cancel():
                task.future.set_exception(error)
            return
        with self._lock:
            if self._pool is pool:
                self._pool = self._new_pool()
        self._begin(task._replace(tries=task.tries + 1))


def _begin_worker(folder: str) -> None:
    """One whose program is killed would wait for its next task for ever."""
    tempfile.tempdir = folder
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent,), daemon=True).start()


def _exit_after(parent: Any) -> None:
    parent.join()
    os._exit(1)
