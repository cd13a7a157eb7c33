"""TensorFlow writes to the process's standard error from C++, past Python."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator

_LOCK = threading.RLock()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Nothing of it is shown; where the work fails, the exception says what there is to say."""
    with _LOCK, warnings.catch_warnings(), _without_stderr():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    try:
        sys.stderr.flush()
        kept = os.dup(2)
    except (OSError, ValueError, AttributeError):  # there is none
        yield
        return
    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
