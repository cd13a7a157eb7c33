"""What can go wrong, as one tree.

IncTbError                  everything below; the command line prints it as one line and exits with 2
├── ModelError              a model file that is missing, damaged, or of a kind we do not read
├── MismatchError           two models that are not the same network, or data that does not fit a model
├── DataError               data that cannot be read
├── RecordError             a stored record that is damaged or from a newer version
├── OutOfMemoryError        less memory than one sample takes
├── EngineError             workers that cannot be reached, or that die again and again
└── UsageError              an argument outside of what a call accepts

Every message says what was given, what was expected, and what to do next.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager


class IncTbError(Exception):
    pass


class ModelError(IncTbError):
    pass


class MismatchError(IncTbError):
    pass


class DataError(IncTbError):
    pass


class RecordError(IncTbError):
    pass


class OutOfMemoryError(IncTbError):
    pass


class EngineError(IncTbError):
    pass


class UsageError(IncTbError, ValueError):
    pass


def first_line(error: BaseException) -> str:
    """What an error of others says, in one line."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@contextmanager
def reading(kind: type[IncTbError], given: object, problem: str, what_to_do: str) -> Iterator[None]:
    """The boundary of a kind of input: whatever its readers raise for what nobody foresaw becomes an error of ours."""
    try:
        yield
    except IncTbError:
        raise
    except MemoryError as error:
        raise OutOfMemoryError(
            f"{given}: there is not enough memory for it. Give this process more memory, or less to do at once."
        ) from error
    except Exception as error:
        raise kind(f"{given}: {problem} ({_told(error)}). {what_to_do}") from error


@contextmanager
def writing(place: object) -> Iterator[None]:
    """The boundary of the disk: what cannot be written there is an error of ours, which says what to do."""
    try:
        yield
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        what_to_do = "Make room there, or choose another folder." if is_full else "Choose another folder."
        told = error.strerror or first_line(error)
        raise UsageError(f"{place}: cannot write there ({told}). {what_to_do}") from error


def _told(error: Exception) -> str:
    """In one line; with its class where its text alone says nothing, as of a KeyError."""
    line = " ".join(first_line(error).split())
    explains_itself = isinstance(error, ValueError | OSError | EOFError) and " " in line
    return line if explains_itself else f"{type(error).__name__}: {line}"
