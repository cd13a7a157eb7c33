"""What all engines share: tasks are functions of ours, their errors come back, what is large is sent once."""

from __future__ import annotations

import pickle
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, NamedTuple, Protocol, TypeVar

from inc_tb.errors import EngineError, IncTbError, UsageError, first_line

T = TypeVar("T")
TRIES = 3
"""How often a task may be begun whose worker dies, before it is given up."""
_OPENED: dict[str, Any] = {}
_MOST_OPENED = 2
_ALONE = threading.Lock()
"""One task at a time in each worker, also if it has threads: tools that quantize get into each other's way."""


class Sealed(Protocol):
    """What is sent in a form of its own."""

    def unsealed(self) -> Any: ...


class Sent:
    """What a task gets beside its arguments: the same for all tasks of one kind, and opened once in each worker."""

    def __init__(self, token: str, value: Any) -> None:
        self._token, self._value = token, value

    def opened(self, make: Callable[[Any], T]) -> T:
        """What is made of it; the last few are kept."""
        if self._token not in _OPENED:
            while len(_OPENED) >= _MOST_OPENED:
                del _OPENED[next(iter(_OPENED))]
            _OPENED[self._token] = make(_received(self._value))
        found: T = _OPENED[self._token]
        return found


class Shared(NamedTuple):
    token: str
    handle: Any


class Engine:
    """An executor, how many tasks it carries out side by side, and how it sends what is large."""

    def __init__(
        self, name: str, executor: Executor, width: int, put: Callable[[Any], Any] = lambda value: value, hint: str = ""
    ) -> None:  # fmt: skip
        self.name, self.width = name, max(1, width)
        self._executor, self._put, self._hint = executor, put, hint

    def share(self, value: Any, what: str) -> Shared:
        """To be given to many tasks; only what can be pickled gets to another process."""
        try:
            pickle.Pickler(_Nowhere()).dump(value)
        except Exception as error:  # whatever objects of others do when they are pickled
            raise UsageError(
                f"{what} cannot be sent to the workers of {self.name} ({type(error).__name__}: {first_line(error)}); "
                "expected what they can open themselves. Give paths and file.py:function."
            ) from error
        return Shared(uuid.uuid4().hex, self._put(value))

    def submit(self, task: Callable[..., Any], shared: Shared, *args: Any) -> Future[Any]:
        """The task is a function of a module, and is called with what was given, and these."""
        return self._executor.submit(_carried_out, task, shared.token, shared.handle, *args)

    def result(self, future: Future[Any]) -> Any:
        """What the task has returned, or the error that it has raised."""
        try:
            found = future.result()
        except Exception as error:  # each engine has errors of its own for workers that are gone
            raise EngineError(
                f"{self.name}: a worker did not end its task, also when it was tried again ({type(error).__name__}: "
                f"{first_line(error)}). See whether it had enough memory{self._hint}."
            ) from error
        if isinstance(found, Exception):
            raise found
        return found


class _Nowhere:
    def write(self, data: bytes | memoryview) -> int:
        return len(data)


def _received(value: Any) -> Any:
    try:
        return value.unsealed() if hasattr(value, "unsealed") else value
    except Exception as error:
        raise UsageError(
            f"a worker cannot read what it was sent ({type(error).__name__}: {first_line(error)}); expected what it "
            "can import or open itself. Give paths and file.py:function."
        ) from error


def _carried_out(task: Callable[..., Any], token: str, value: Any, *args: Any) -> Any:
    """In a worker. Errors of ours are results: engines put those of tasks into errors of their own."""
    try:
        with _ALONE:
            return task(Sent(token, value), *args)
    except IncTbError as error:
        return type(error)(str(error))
    except Exception as error:  # noqa: BLE001  told where the work was asked for
        return EngineError(f"a worker failed: {type(error).__name__}: {first_line(error)}.")
