"""What can go wrong, as one tree.

IncTbError                  everything below; the command line prints it as one line and exits with 2
├── ModelError              a model file that is missing, damaged, or of a kind we do not read
├── MismatchError           two models that are not the same network, or data that does not fit a model
├── DataError               data that cannot be read
├── RecordError             a stored record that is damaged or from a newer version
├── OutOfMemoryError        less memory than one sample takes
└── UsageError              an argument outside of what a call accepts

Every message says what was given, what was expected, and what to do next.
"""


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


class UsageError(IncTbError, ValueError):
    pass


def first_line(error: BaseException) -> str:
    """What an error of others says, in one line."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
