"""Calibration data, which every trial goes through anew."""

from __future__ import annotations

from os import PathLike
from typing import Any

import numpy as np

from inc_tb.data import Data, as_batch, check_fit, cut, is_one_batch, open_data
from inc_tb.errors import DataError, MismatchError
from inc_tb.frameworks.models import read_inputs
from inc_tb.frameworks.ops import Array, Batch

_BATCH = 8


def calibration_data(model: Any, given: Any, samples: int | None) -> Data:
    """Batches as the model takes them, which can be gone through again and again; files are read anew each time."""
    inputs = read_inputs(model)
    if isinstance(given, str | PathLike):
        given = open_data(given, inputs, _BATCH)
    elif is_one_batch(given):
        given = cut(as_batch(given, inputs), _BATCH, inputs)
    elif not isinstance(given, Data):
        given = list(given)
    data = given if isinstance(given, Data) else Data(lambda: given)
    data = data.first(samples)
    wanted = {i.name: i.dtype for i in inputs if i.is_known}

    def fitted(batch: Any) -> Batch:
        arrays = as_batch(batch, inputs)
        return {name: _as_dtype(name, array, wanted.get(name, array.dtype)) for name, array in arrays.items()}

    first = next(iter(data), None)
    if first is None:
        raise DataError("the calibration data has no samples; expected at least one batch. Check the data source.")
    check_fit(as_batch(first, inputs), inputs)
    bad = [name for name, a in as_batch(first, inputs).items() if a.dtype.kind == "f" and not np.isfinite(a).all()]
    if bad:
        raise DataError(
            f"the calibration data has NaN or infinite values in {', '.join(bad)}; expected finite numbers."
        )
    return Data(lambda: map(fitted, data))


def _as_dtype(name: str, array: Array, dtype: np.dtype[Any]) -> Array:
    try:
        return np.asarray(array, dtype, order="C")
    except (ValueError, TypeError) as error:  # text
        raise MismatchError(
            f"the array {name} holds {array.dtype}, the model expects {dtype}. Convert the data."
        ) from error
