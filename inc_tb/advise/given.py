"""Two models that cannot be meant as a reference and its quantized model: told before anything is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from os import PathLike
from typing import Any

import numpy as np

from inc_tb.errors import IncTbError, UsageError
from inc_tb.frameworks.models import is_same, open_pair, open_results
from inc_tb.frameworks.ops import Array, Batch, Op


def refuse_swapped(names: tuple[str, str]) -> None:
    first, second = names
    raise UsageError(
        f"{first}, given first, is quantized, and {second}, given second, is not; expected the fp32 model first, then "
        "the quantized one. Swap the two."
    )


class Given:
    """A reference, which may be missing, and its quantized model; `names` are what to call them."""

    def __init__(self, reference: Any, quantized: Any, names: tuple[str, str]) -> None:
        self._reference, self._quantized = reference, quantized
        self._names = names
        self._batch: Batch = {}

    def check_files(self) -> None:
        """Before they are opened: files are quick to tell apart, and hold all that a model does."""
        are_files = all(isinstance(model, str | PathLike) for model in (self._reference, self._quantized))
        if self._reference is not None and (are_files or self._reference is self._quantized):
            self._refuse_the_same()

    def check_ops(self, ops: Sequence[Op], batch: Batch) -> None:
        """Once it is known what is quantized. A reference may be, too, as long as the other one is."""
        self._batch = batch
        if self._reference is not None and not any_quantized(ops) and self._is_swapped(batch):
            refuse_swapped(self._names)

    def check_values(self, differs: bool) -> None:
        """Of objects only what they give proves that they are the same: code may do what no parameter shows."""
        if self._reference is not None and not differs:
            self._refuse_the_same(lambda *models: all(map(np.array_equal, *map(self._results, models))))

    def _results(self, model: Any) -> list[Array]:
        return open_results(model)(self._batch)

    def _is_swapped(self, batch: Batch) -> bool:
        """Opened the other way round they show what the first one holds."""
        with suppress(IncTbError):
            turned = open_pair(self._quantized, self._reference)
            turned.trace(batch)
            return any_quantized(turned.ops())
        return False

    def _refuse_the_same(self, give_the_same: Callable[[Any, Any], bool] = lambda *_: True) -> None:
        models = self._reference, self._quantized
        if is_same(*models) and give_the_same(*models):
            first, second = self._names
            what = f"{first} and {second} are the same model"
            if first == second:
                is_one = self._reference is self._quantized or isinstance(self._reference, str | PathLike)
                what = f"{first} was given twice" if is_one else f"the two models, both {first}, are the same"
            raise UsageError(
                f"{what}; expected the fp32 model, then what it became by quantization. Give both of them."
            )


def any_quantized(ops: Sequence[Op]) -> bool:
    return any(op.weight is not None or op.activation is not None for op in ops)
