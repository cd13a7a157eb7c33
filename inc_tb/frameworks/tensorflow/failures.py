"""What TensorFlow and TFLite raise, in our words."""

from __future__ import annotations

from inc_tb.errors import IncTbError, MismatchError, OutOfMemoryError
from inc_tb.frameworks.tensorflow.forms import first_line
from inc_tb.frameworks.tensorflow.library import tf


def cannot_run(name: str, who: str, error: Exception) -> IncTbError:
    if isinstance(error, tf.errors.ResourceExhaustedError):
        return OutOfMemoryError(f"{name}: {who} could not get the memory that it needs ({first_line(error)})")
    return MismatchError(
        f"{name}: {who} cannot run this batch ({first_line(error)}). Check that the data is what the model was made "
        "for."
    )
