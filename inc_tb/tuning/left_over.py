"""What is still rounded where a tool was told to keep everything in fp32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from inc_tb.frameworks.models import open_results
from inc_tb.frameworks.ops import Batch

_SAME = 1e-6
"""Energy of a difference that other kernels for the same numbers make, relative to the numbers; int8 makes far more."""


def difference(reference: Any, model: Any, batches: Sequence[Batch]) -> float | None:
    """Energy of the difference of the results, relative to them; None where they are the same."""
    runs = [open_results(one) for one in (reference, model)]
    mine, theirs = ([np.asarray(r, np.float64) for batch in batches for r in run(batch)] for run in runs)
    energy = sum(float(np.square(x).sum()) for x in mine)
    if [x.shape for x in mine] != [y.shape for y in theirs]:
        return None
    error = sum(float(np.square(x - y).sum()) for x, y in zip(mine, theirs, strict=True))
    return error / energy if error > _SAME * energy else None


def left_by_tool(error: float, kept: int) -> str:
    """What it means that the results differ from fp32's."""
    return (
        f"with all {kept} ops in fp32 that the tool can be told, the results still have an error of {error:.2g} of "
        "their energy: something is rounded that no config here reaches. The tool is at fault, not an op of the model"
    )
