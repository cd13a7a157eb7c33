"""MXNet, which wants a name that numpy has given up: `numpy.bool` is there while it is loaded, and gone afterwards."""

import logging
import warnings

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    _was_there = hasattr(np, "bool")
    if not _was_there:
        np.bool = bool  # type: ignore[misc, assignment, unused-ignore]
    try:
        _level = logging.getLogger().level
        import mxnet as mx
        import mxnet.contrib.quantization  # noqa: F401
    finally:
        if not _was_there:
            del np.bool
        logging.getLogger().setLevel(_level)

__all__ = ["mx"]
