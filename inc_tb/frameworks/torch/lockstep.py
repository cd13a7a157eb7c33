"""Models that stop at every call, so that two of them go through the same batch side by side.

Only what is being compared is held then, not all the intermediate values of a model. Each model runs in a thread of
its own, one at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

Stop = Callable[[Any], Any]
"""Called inside of the model: hands something over, and returns what it is told."""


class _Abandoned(BaseException):
    """Ends a run that nobody waits for any more."""


class Paused:
    """A function that runs until it stops, and goes on when told; `work` gets the function to stop with."""

    def __init__(self, work: Callable[[Stop], Any], with_grad: bool = False) -> None:
        self._work = work
        self._turn = threading.Semaphore(0)
        self._done = threading.Semaphore(0)
        self._handed: Any = None
        self._told: Any = None
        self._error: BaseException | None = None
        self._is_over = False
        self._is_abandoned = False
        self._context = _torch_context(with_grad)
        self._thread: threading.Thread | None = None
        self.result: Any = None

    def advance(self, told: Any = None) -> Any:
        """Go on with what it is told until it stops again: what it hands over, or None at the end."""
        if self._is_over:
            return None
        self._told = told
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        else:
            self._turn.release()
        self._done.acquire()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return self._handed

    def close(self) -> None:
        if self._thread is not None and not self._is_over:
            self._is_abandoned = True
            self._turn.release()
            self._done.acquire()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            with self._context():
                self.result = self._work(self._stop)
        except _Abandoned:
            pass
        except BaseException as error:  # noqa: BLE001  raised again where the run is waited for
            self._error = error
        self._is_over, self._handed = True, None
        self._done.release()

    def _stop(self, handed: Any) -> Any:
        if self._is_abandoned:
            return None  # a model that catches everything runs on to its end
        self._handed = handed
        self._done.release()
        self._turn.acquire()
        told, self._told, self._handed = self._told, None, None
        if self._is_abandoned:
            raise _Abandoned
        return told


def _torch_context(with_grad: bool) -> Callable[[], ExitStack]:
    """What torch keeps for each thread: gradients, and the automatic types that hold where this is called."""
    enabled, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    def enter() -> ExitStack:
        stack = ExitStack()
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.set_grad_enabled(with_grad))
        if enabled:
            stack.enter_context(torch.autocast("cpu", dtype=dtype))
        return stack

    return enter
