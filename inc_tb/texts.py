"""A text file as the batches of a language model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from inc_tb.data import Data
from inc_tb.errors import DataError, MismatchError, UsageError
from inc_tb.frameworks.ops import Array, Batch, Input
from inc_tb.frameworks.registry import describe, framework_of

_IDS = "input_ids"
_AT_ONCE = 8
LENGTH = 128
"""Tokens of a sequence, unless told otherwise."""


def open_text(
    source: str | PathLike[str],
    tokenizer: Any,
    inputs: Sequence[Input],
    length: int = LENGTH,
    at_once: int | None = None,
) -> Data:
    """The tokens of a text, cut into sequences of one length; what is left over is not used."""
    path = Path(source)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as text ({error}); expected a text file in UTF-8.") from error
    ids = np.asarray(tokenizer(text, add_special_tokens=False)[_IDS], np.int64)
    if len(ids) < length:
        raise DataError(
            f"{path}: has {len(ids)} tokens; expected at least one sequence of {length}. Give a longer text, or a "
            "smaller --length."
        )
    rows = ids[: len(ids) // length * length].reshape(-1, length)
    names = [i.name for i in inputs]
    _check(names)
    size = at_once or _AT_ONCE

    def batches() -> Iterator[Batch]:
        for start in range(0, len(rows), size):
            yield _batch(rows[start : start + size], names)

    return Data(batches, len(rows))


def open_tokenizer(place: str | PathLike[str]) -> Any:
    """Of a folder of transformers or a GGUF file."""
    framework = framework_of(Path(place))
    if not framework.can("open_tokenizer"):
        raise UsageError(
            f"{describe(place)} was given for its tokenizer; expected a folder of transformers or a .gguf file. "
            "Name one with --tokenizer."
        )
    return framework.open_tokenizer(Path(place))


def _check(names: Sequence[str]) -> None:
    if _IDS not in names or not set(names) <= set(_KNOWN):
        raise MismatchError(
            f"the model has the inputs {list(names)}; of text come {', '.join(_KNOWN)}. Give the data with --data."
        )


def _batch(rows: npt.NDArray[np.int64], names: Sequence[str]) -> dict[str, Array]:
    return {name: _KNOWN[name](rows) for name in names}


_KNOWN: dict[str, Callable[[npt.NDArray[np.int64]], Array]] = {
    _IDS: lambda rows: rows,
    "attention_mask": np.ones_like,
    "position_ids": lambda rows: np.broadcast_to(np.arange(rows.shape[1]), rows.shape).copy(),
    "token_type_ids": np.zeros_like,
}
"""What can be made of tokens, by the name of the input."""
